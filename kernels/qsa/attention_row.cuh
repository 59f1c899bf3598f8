// Attention of one row's query heads of one KV head over a list of tokens of a paged cache, on the tensor
// cores. Shared by the sparse prefill and by the decode over gathered tokens: only the list differs.
//
// A warp takes 16 tokens at a time. Eight query heads share a KV head, so both products fill a 16 x 8 tile:
//   scores^T [16 tokens, 8 heads]  += keys [16, 16 dims] * queries^T [16 dims, 8]
//   context^T [16 dims, 8 heads]   += values^T [16, 16 tokens] * probabilities^T [16 tokens, 8]
// A dot product does not care in which order its dims come, so a lane's 16-byte load of 8 dims is split over
// two tiles, the same way for keys and queries; and context rows may stand in any order until they are
// stored, so a lane's 16-byte load of a value gives 8 rows of a tile.
//
// Numerics: products of bf16 in f32 with the tensor core's accumulation; the softmax online, in f32, base 2,
// with a running maximum per head and a rescale of sum and context when it moves; probabilities rounded to
// bf16 for the second product, their sum kept from the f32 ones. The order is fixed: tile t belongs to warp
// t % warps, and warps are added in turn, so two runs agree bit for bit, whatever the pages and the batch.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/attention_tiles.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/paged_cache.cuh"

namespace qsa {
namespace attention {

constexpr int kHeads = 16;
constexpr int kKvHeads = 2;
constexpr int kGroupHeads = kHeads / kKvHeads;  // query heads that share a KV head: the tile's 8 columns
constexpr int kDimsPerTile = 16;
constexpr int kKeyGroups = kDims / 32;                       // 16-byte loads of four lanes: 32 dims
constexpr int kValueGroups = kDims / 64;                     // 16-byte loads of eight lanes: 64 dims
constexpr int kContextTiles = kDims / kDimsPerTile;          // of 16 dims and 8 heads
constexpr float kScaleLog2 = 0.0625f * 1.4426950408889634f;  // 1 / sqrt(256), base 2
constexpr float kNothing = -__builtin_huge_valf();           // of nothing, and of what scores minus infinity

// What one warp has seen so far of its tokens. Lane (g, t) = (lane / 4, lane % 4) holds heads 2t and 2t + 1.
struct WarpState {
  float context[kContextTiles][4];
  float peak[2];
  float sum[2];
};

// Lane (g, t) holds of head g the dims 32i + 8t .. + 7, for every group i of 32.
struct Queries {
  uint4 group[kKeyGroups];
};

__device__ __forceinline__ Queries load_queries(const uint16_t* heads, int lane) {
  const uint16_t* head = heads + (lane / 4) * kDims + (lane % 4) * kVectorDims;
  Queries queries;
  for (int i = 0; i < kKeyGroups; ++i) {
    queries.group[i] = __ldg(reinterpret_cast<const uint4*>(head + i * 32));
  }
  return queries;
}

// Scores of 16 tokens and 8 heads in the tensor core's layout: rows g and g + 8, columns 2t and 2t + 1.
// Two accumulators: the tensor core's latency is waited for half as often.
__device__ __forceinline__ void score_tile(const uint4* keys, const Queries& queries, int lane,
                                           float (&scores)[4]) {
  float others[4];
  for (int i = 0; i < 4; ++i) {
    scores[i] = 0.0f;
    others[i] = 0.0f;
  }
  const int token = lane / 4;
  for (int i = 0; i < kKeyGroups; ++i) {
    const int vector = i * 4 + lane % 4;
    const uint4 low = keys[place_of(token, vector)];
    const uint4 high = keys[place_of(token + 8, vector)];
    const uint4 query = queries.group[i];
    const uint32_t first_keys[4] = {low.x, high.x, low.y, high.y};
    const uint32_t first_query[2] = {query.x, query.y};
    mma_m16n8k16_bf16(scores, first_keys, first_query, scores);
    const uint32_t second_keys[4] = {low.z, high.z, low.w, high.w};
    const uint32_t second_query[2] = {query.z, query.w};
    mma_m16n8k16_bf16(others, second_keys, second_query, others);
  }
  for (int i = 0; i < 4; ++i) {
    scores[i] = __fadd_rn(scores[i], others[i]);
  }
}

// The largest over the tokens of a tile: lanes of equal t hold the same heads.
__device__ __forceinline__ float peak_of_tile(float value) {
  for (int distance = 4; distance < kWarpLanes; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// Scores to probabilities, in place, relative to the new peak; sum and context follow the peak.
// A NaN score is no peak, but a NaN probability.
__device__ __forceinline__ void soften(WarpState& state, float (&scores)[4], bool low_live, bool high_live) {
  for (int head = 0; head < 2; ++head) {
    float low = low_live ? __fmul_rn(scores[head], kScaleLog2) : kNothing;
    float high = high_live ? __fmul_rn(scores[2 + head], kScaleLog2) : kNothing;
    const float peak = fmaxf(state.peak[head], peak_of_tile(fmaxf(low, high)));
    // Nothing but NaN and minus infinity so far: any finite peak gives what they are worth.
    const float base = peak == kNothing ? 0.0f : peak;
    low = exp2f(__fsub_rn(low, base));
    high = exp2f(__fsub_rn(high, base));
    const float rescale = exp2f(__fsub_rn(state.peak[head], base));
    state.sum[head] = __fadd_rn(__fmul_rn(state.sum[head], rescale), __fadd_rn(low, high));
    for (int tile = 0; tile < kContextTiles; ++tile) {
      state.context[tile][head] = __fmul_rn(state.context[tile][head], rescale);
      state.context[tile][2 + head] = __fmul_rn(state.context[tile][2 + head], rescale);
    }
    state.peak[head] = peak;
    scores[head] = low;
    scores[2 + head] = high;
  }
}

// Probabilities from the layout of a result (rows are tokens) to that of the second product's right side,
// whose lane (g, t) holds head g of tokens 2t, 2t + 1 and 2t + 8, 2t + 9.
__device__ __forceinline__ void transpose(const float (&scores)[4], int lane, uint32_t (&probabilities)[2]) {
  const int group = lane / 4;
  const int source = (lane % 4) * 8 + group / 2;  // of token 2t; the next token's is four lanes on
  const uint32_t half = group % 2 == 0 ? 0x5410u : 0x7632u;
  for (int i = 0; i < 2; ++i) {
    const uint32_t pair = pack_bf16(scores[2 * i], scores[2 * i + 1]);
    const uint32_t even = __shfl_sync(kFullWarp, pair, source);
    const uint32_t odd = __shfl_sync(kFullWarp, pair, source + 4);
    probabilities[i] = __byte_perm(even, odd, half);
  }
}

__device__ __forceinline__ uint32_t word_of(const uint4& vector, int word) {
  return word == 0 ? vector.x : (word == 1 ? vector.y : (word == 2 ? vector.z : vector.w));
}

// Lane (g, t) loads dims 64i + 8g .. + 7 of tokens 2t, 2t + 1, 2t + 8 and 2t + 9; word w of them gives rows g
// and g + 8 of context tile 4i + w, which are dims 64i + 8g + 2w and the next.
__device__ __forceinline__ void add_values(const uint4* values, const uint32_t (&probabilities)[2], int lane,
                                           WarpState& state) {
  const int pair_token = 2 * (lane % 4);
  const int tokens[4] = {pair_token, pair_token + 1, pair_token + 8, pair_token + 9};
  for (int i = 0; i < kValueGroups; ++i) {
    uint4 value[4];
    for (int row = 0; row < 4; ++row) {
      value[row] = values[place_of(tokens[row], i * 8 + lane / 4)];
    }
    for (int word = 0; word < 4; ++word) {
      uint32_t pair[4];
      for (int row = 0; row < 4; ++row) {
        pair[row] = word_of(value[row], word);
      }
      const uint32_t transposed[4] = {
          __byte_perm(pair[0], pair[1], 0x5410u), __byte_perm(pair[0], pair[1], 0x7632u),
          __byte_perm(pair[2], pair[3], 0x5410u), __byte_perm(pair[2], pair[3], 0x7632u)};
      float (&context)[4] = state.context[4 * i + word];
      mma_m16n8k16_bf16(context, transposed, probabilities, context);
    }
  }
}

__device__ __forceinline__ float sum_of_tokens(float value) {
  for (int distance = 4; distance < kWarpLanes; distance *= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// One warp's share of the list: tiles `warp`, `warp + warps`, ... The list must not be empty.
template <class Tokens>
__device__ __forceinline__ WarpState attend(const PagedCache& cache, const Tokens& tokens, int64_t sequence,
                                            const uint16_t* heads, int kv_head, int warp, int warps, int lane,
                                            Ring& ring) {
  WarpState state;
  for (int tile = 0; tile < kContextTiles; ++tile) {
    for (int i = 0; i < 4; ++i) {
      state.context[tile][i] = 0.0f;
    }
  }
  for (int head = 0; head < 2; ++head) {
    state.peak[head] = kNothing;
    state.sum[head] = 0.0f;
  }
  const int32_t stride = warps * kTileTokens;
  int32_t first = warp * kTileTokens;
  if (first >= tokens.count) {
    return state;
  }
  int64_t offsets = tile_offsets(cache, tokens, sequence, first, kv_head, lane);
  copy_tile(ring.tile[0], cache.keys, offsets, lane);
  async_copy_commit();
  copy_tile(ring.tile[1], cache.values, offsets, lane);
  async_copy_commit();
  offsets = tile_offsets(cache, tokens, sequence, first + stride, kv_head, lane);
  const Queries queries = load_queries(heads, lane);
  const int group = lane / 4;
  // A tile's keys stand at `key_tile`, its values at the place after; the next tile's keys follow, and its
  // values take the place of these keys.
  int key_tile = 0;
  for (; first < tokens.count; first += stride) {
    const bool has_next = first + stride < tokens.count;
    const int value_tile = (key_tile + 1) % kRingTiles;
    const int next_tile = (key_tile + 2) % kRingTiles;
    // [attention.keys-there] every lane's copies, and no lane reads the tile before last any more.
    async_copy_wait<1>();
    __syncwarp();
    if (has_next) {
      copy_tile(ring.tile[next_tile], cache.keys, offsets, lane);
    }
    async_copy_commit();
    // Ids and pages of the tile after the next are on their way while this one is worked on.
    const int64_t following = tile_offsets(cache, tokens, sequence, first + 2 * stride, kv_head, lane);
    float scores[4];
    score_tile(ring.tile[key_tile], queries, lane, scores);
    soften(state, scores, first + group < tokens.count, first + group + 8 < tokens.count);
    uint32_t probabilities[2];
    transpose(scores, lane, probabilities);
    // [attention.values-there] as for the keys, whose place is free now.
    async_copy_wait<1>();
    __syncwarp();
    if (has_next) {
      copy_tile(ring.tile[key_tile], cache.values, offsets, lane);
    }
    async_copy_commit();
    add_values(ring.tile[value_tile], probabilities, lane, state);
    offsets = following;
    key_tile = next_tile;
  }
  for (int head = 0; head < 2; ++head) {
    state.sum[head] = sum_of_tokens(state.sum[head]);
  }
  return state;
}

}  // namespace attention
}  // namespace qsa
