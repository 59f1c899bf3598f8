// dsa_index_scores: how much each query row wants each pool.
//
// Computes   for every query row at position p and every pool j of its sequence:
//              score = sum over heads h of weights_h * relu(q_h . pool_key_j / sqrt(128))
//                [dsa.relu-per-head] [dsa.head-weight] [dsa.scale] [dsa.nan-stays]
//              where the pool's last token is p or before it, and the least f32 elsewhere
//                [dsa.visible-by-last-token] [dsa.masked]
//            and how many pools the row sees: as pools ascend, they are the first ones of the list.
// Inputs     q [batch, query_rows, 32, 128] bf16
//            weights [batch, query_rows, 32] f32, heads^-0.5 included
//            pool_keys [batch, pool_capacity, 128] bf16, lists and `valid` as dsa_kpool_compress leaves them
//            q_pos [query_rows] i32: the token that each row stands at, in every sequence; null with
//              geometry, where the one row stands at the last live token
//            geometry [5] i32 on the device, or null: `tokens` is the live length, not its ceiling
// Outputs    scores [batch, query_rows, score_cols] f32; of a row the sequence's live pools are written, what
//              follows is left untouched [dsa.untouched-tail]
//            visible_pools [batch, query_rows] i32 [dsa.zero-pools]
// Requires   bases of bf16 and f32 inputs aligned to 16 bytes; score_cols >= max(1, tokens / kpool), the
//            stride of rows whatever the live length [dsa.row-stride]; with geometry one sequence and one row
// Traps      a position outside 0 .. live tokens - 1; a geometry that contradicts itself or passes `tokens`;
//            a sequence that lists more pools than pool_capacity holds
// Succeeds   with nothing to do for no sequences, no rows or no tokens.
// Numerics   products of bf16 are exact; the tensor cores sum them in f32. Head weights times 1/sqrt(128),
//            the product with the relu and the sum over heads are f32. The order depends on no launch shape.
// Launch     a CTA takes one query row or eight, and every gridDim.y-th tile of 64 pools. Grid and tile count
//            come from the ceiling, the loop's end from the live length.
// Scratch    32 KiB of static shared memory: two tiles of keys.
// Not for    compute capability below 8, or other than 32 heads of 128.
//
// How. A warp keeps the 32 heads of its row in registers as the left operand: two tiles of 16 heads by 128
// dims, 64 registers. The dims of a dot product may come in any order, as long as both operands agree: lane
// 4g + t holds chunks of 8 dims at t, t + 4, t + 8 and t + 12 of head g (and g + 8) and of pool g, so that
// every load is 16 bytes and no operand is shuffled. A lane ends with two pools of four heads; relu, weights
// and a butterfly over the 8 lanes of a column leave the score.
//
// On an H200, warm, replayed from a graph: one row of 65,536 tokens 4.6 us, of 262,144 tokens 7.2 us; 2,048
// rows by 16,384 pools 969 us, 284 TFLOP/s, where the card's library multiplied bf16 matrices at 803.

#include "common/portability.cuh"
#include "common/status.h"
#include "dsa/pool_lists.cuh"

#if QSA_HOST
#define DSA_UNROLL
#else
#define DSA_UNROLL _Pragma("unroll")
#endif

namespace qsa {
namespace dsa {
namespace {

constexpr int kHeads = 32;
constexpr int kDims = 128;
constexpr float kScale = 0.08838834764831845f;     // 1 / sqrt(128)
constexpr float kMaskedScore = -3.402823466e+38f;  // the least f32

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kQuadLanes = 4;

constexpr int kTilePools = 64;
constexpr int kColumns = 8;                                 // pools of one multiplication
constexpr int kColumnGroups = kTilePools / kColumns;        // 8
constexpr int kHeadTiles = kHeads / 16;                     // 2
constexpr int kChunks = 4;                                  // 16-byte chunks of a vector that a lane holds
constexpr int kKeyChunks = kDims * 2 / 16;                  // 16 of a key
constexpr int kLoads = kTilePools * kKeyChunks / kThreads;  // 4 a thread

struct ScoreArguments {
  const uint16_t* q;
  const float* weights;
  const uint16_t* pool_keys;
  const int32_t* q_pos;
  const int32_t* geometry;
  float* scores;
  int32_t* visible_pools;
  PoolLists lists;
  int64_t score_cols;
  int32_t query_rows;
  int32_t tokens;
};

// What a warp knows of its row.
struct Row {
  int64_t number;  // among all rows of the batch
  int32_t visible;
  bool present;  // false for a warp whose row lies behind the last one
};

struct Tile {
  uint4 chunk[kTilePools][kKeyChunks];
};

constexpr int kMostSharedBytes = 33 * 1024;  // what an engine may count on: two tiles and a word a warp
static_assert(2 * sizeof(Tile) + kWarps * sizeof(int32_t) <= kMostSharedBytes, "two tiles fit");

// Chunks of neighbouring keys lie in different halves of 128 bytes, so that 8 lanes read all banks once.
__device__ __forceinline__ int place_of(int pool, int chunk) { return chunk ^ ((pool & 1) * kQuadLanes); }

__device__ __forceinline__ void load_tile(Tile& tile, const uint16_t* keys, int32_t first, int32_t pools) {
  DSA_UNROLL
  for (int load = 0; load < kLoads; ++load) {
    const int unit = load * kThreads + static_cast<int>(threadIdx.x);
    const int pool = unit / kKeyChunks;
    const int chunk = unit % kKeyChunks;
    uint4* const target = &tile.chunk[pool][place_of(pool, chunk)];
    if (first + pool < pools) {
      const uint16_t* const source = keys + static_cast<int64_t>(first + pool) * kDims + chunk * 8;
      async_copy16(target, source);
    } else {
      *target = make_uint4(0, 0, 0, 0);  // no key: nothing is stored for it either
    }
  }
}

// The row's place among all of the batch; a row behind the last one stands in for that.
__device__ __forceinline__ int64_t number_of(const ScoreArguments& arguments, int64_t sequence, int32_t row) {
  return sequence * arguments.query_rows + min(row, arguments.query_rows - 1);
}

__device__ __forceinline__ Row row_of(const ScoreArguments& arguments, int64_t sequence, int32_t row,
                                      int32_t live) {
  Row found;
  found.present = row < arguments.query_rows;
  found.number = number_of(arguments, sequence, row);
  const int64_t own = found.number - sequence * arguments.query_rows;
  const int32_t position = arguments.geometry != nullptr ? live - 1 : __ldg(arguments.q_pos + own);
  // Below zero only where nothing is live: the row then sees nothing.
  if (arguments.geometry == nullptr && (position < 0 || position >= live)) {
    QSA_TRAP("a query row stands outside 0 .. live tokens - 1");
  }
  found.visible = arguments.lists.pools_seen(sequence, position);
  return found;
}

// The left operand of a lane: by tile of heads, chunk, and the four words of rows g and g + 8.
using Query = uint4[kHeadTiles][kChunks][2];

__device__ __forceinline__ void load_query(const uint16_t* q, int quad, int quad_lane, Query& query) {
  DSA_UNROLL
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    DSA_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      DSA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int head = 16 * tile + 8 * half + quad;
        const int dim = 8 * (kQuadLanes * chunk + quad_lane);
        query[tile][chunk][half] = __ldg(reinterpret_cast<const uint4*>(q + head * kDims + dim));
      }
    }
  }
}

// Dot products of a lane's heads and pools: [tile of heads][head g: 2 pools, head g + 8: 2 pools].
__device__ __forceinline__ void multiply(const Query& query, const uint4 (&key)[kChunks],
                                         float (&dot)[kHeadTiles][4]) {
  DSA_UNROLL
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    DSA_UNROLL
    for (int i = 0; i < 4; ++i) {
      dot[tile][i] = 0.0f;
    }
    DSA_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4& head = query[tile][chunk][0];
      const uint4& other = query[tile][chunk][1];
      const uint32_t first[4] = {head.x, other.x, head.y, other.y};
      const uint32_t first_key[2] = {key[chunk].x, key[chunk].y};
      mma_m16n8k16_bf16(dot[tile], first, first_key, dot[tile]);
      const uint32_t second[4] = {head.z, other.z, head.w, other.w};
      const uint32_t second_key[2] = {key[chunk].z, key[chunk].w};
      mma_m16n8k16_bf16(dot[tile], second, second_key, dot[tile]);
    }
  }
}

// [dsa.nan-stays] a comparison keeps a NaN; fmaxf(x, 0) would turn it into a valid-looking zero.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// The scores of the lane's two pools, the same in all 8 lanes that share them.
__device__ __forceinline__ void sum_heads(const float (&dot)[kHeadTiles][4],
                                          const float (&weight)[kHeadTiles][2], float (&score)[2]) {
  DSA_UNROLL
  for (int pool = 0; pool < 2; ++pool) {
    // [dsa.relu-per-head] each head is cut at zero before it is weighed and added.
    float sum = 0.0f;
    DSA_UNROLL
    for (int tile = 0; tile < kHeadTiles; ++tile) {
      sum = __fmaf_rn(weight[tile][0], relu(dot[tile][pool]), sum);
      sum = __fmaf_rn(weight[tile][1], relu(dot[tile][2 + pool]), sum);
    }
    DSA_UNROLL
    for (int distance = kQuadLanes; distance < kLanes; distance *= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, distance));
    }
    score[pool] = sum;
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 2) score_kernel(ScoreArguments arguments) {
  QSA_SHARED(Tile, tiles, 2);
  QSA_SHARED(int32_t, warp_visible, kWarps);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  const PoolLists& lists = arguments.lists;
  const int32_t groups = (arguments.query_rows + kRows - 1) / kRows;
  const int64_t sequence = blockIdx.x / groups;
  const int32_t own_row = static_cast<int32_t>(blockIdx.x % groups) * kRows + warp % kRows;
  // The query is on its way while the geometry and the row are looked up.
  Query query;
  load_query(arguments.q + number_of(arguments, sequence, own_row) * kHeads * kDims, quad, quad_lane, query);
  const int32_t live = live_tokens(arguments.geometry, arguments.tokens, lists.kpool);
  const Row row = row_of(arguments, sequence, own_row, live);
  const int32_t pools = lists.pools_seen(sequence, live - 1);
  if (lane == 0) {
    warp_visible[warp] = row.visible;
    // [dsa.zero-pools] written once, whether or not there is a pool.
    if (blockIdx.y == 0 && warp < kRows && row.present) {
      arguments.visible_pools[row.number] = row.visible;
    }
  }
  __syncthreads();  // every warp's row is there before the rows are compared
  int32_t most = 0;
  for (int other = 0; other < kRows; ++other) {
    most = max(most, warp_visible[other]);
  }
  // [dsa.row-stride] the capacity's, whatever is live.
  float* const row_scores = arguments.scores + row.number * arguments.score_cols;
  const uint16_t* const keys = arguments.pool_keys + sequence * lists.pool_capacity * kDims;
  const int32_t stride = static_cast<int32_t>(gridDim.y);
  const int32_t seen_tiles = (most + kTilePools - 1) / kTilePools;
  const int32_t live_tiles = (pools + kTilePools - 1) / kTilePools;
  int32_t tile = static_cast<int32_t>(blockIdx.y);

  if (tile < seen_tiles) {
    load_tile(tiles[0], keys, tile * kTilePools, pools);
    async_copy_commit();
    float weight[kHeadTiles][2];
    DSA_UNROLL
    for (int i = 0; i < 2 * kHeadTiles; ++i) {
      // [dsa.head-weight] [dsa.scale] once, together.
      const float given = __ldg(arguments.weights + row.number * kHeads + 8 * i + quad);
      weight[i / 2][i % 2] = __fmul_rn(given, kScale);
    }
    for (int turn = 0; tile < seen_tiles; tile += stride, turn ^= 1) {
      if (tile + stride < seen_tiles) {
        load_tile(tiles[turn ^ 1], keys, (tile + stride) * kTilePools, pools);
      }
      async_copy_commit();
      async_copy_wait<1>();
      __syncthreads();  // the tile is there for every warp before any of them reads it
      for (int group = warp / kRows; group < kColumnGroups; group += kWarps / kRows) {
        uint4 key[kChunks];
        DSA_UNROLL
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const int pool = group * kColumns + quad;
          key[chunk] = tiles[turn].chunk[pool][place_of(pool, kQuadLanes * chunk + quad_lane)];
        }
        float dot[kHeadTiles][4];
        multiply(query, key, dot);
        float score[2];
        sum_heads(dot, weight, score);
        // Lane t of the first quad has the pools 2t and 2t + 1.
        DSA_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int32_t pool = tile * kTilePools + group * kColumns + 2 * quad_lane + i;
          // [dsa.untouched-tail]
          if (quad == 0 && row.present && pool < pools) {
            // [dsa.masked]
            row_scores[pool] = pool < row.visible ? score[i] : kMaskedScore;
          }
        }
      }
      __syncthreads();  // every warp has read the tile before it is overwritten
    }
  }
  // What no row of the CTA sees is not read, only masked.
  for (; tile < live_tiles; tile += stride) {
    const int32_t end = min(pools, (tile + 1) * kTilePools);
    const int32_t begin = tile * kTilePools + warp / kRows * kLanes + lane;
    for (int32_t pool = begin; row.present && pool < end; pool += kWarps / kRows * kLanes) {
      row_scores[pool] = kMaskedScore;
    }
  }
}

// Row groups times ranges of tiles, by the ceiling alone. Few rows: two tiles a CTA at least, as the query
// costs about one, and one wave. Many rows: a few waves, so that causal rows even out.
template <int kRows>
int32_t launch_rows(const ScoreArguments& arguments, int64_t batch, void* stream) {
  constexpr int64_t kCtasPerMultiprocessor = 2;
  constexpr int64_t kLeastTiles = 2;
  constexpr int64_t kWaves = 4;
  constexpr int64_t kMostRanges = 65535;  // gridDim.y
  const int64_t groups = batch * ((arguments.query_rows + kRows - 1) / kRows);
  const int64_t tiles = (arguments.tokens / arguments.lists.kpool + kTilePools - 1) / kTilePools;
  const int64_t slots = static_cast<int64_t>(multiprocessor_count()) * kCtasPerMultiprocessor;
  const int64_t most = kRows == 1 ? (tiles + kLeastTiles - 1) / kLeastTiles : tiles;
  const int64_t wanted = kRows == 1 ? slots / groups : (kWaves * slots + groups - 1) / groups;
  int64_t ranges = most < wanted ? most : wanted;
  ranges = ranges < 1 ? 1 : (ranges < kMostRanges ? ranges : kMostRanges);
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(ranges));
  return QSA_LAUNCH(score_kernel<kRows>, grid, dim3(kThreads), 0, stream, arguments);
}

// Eight rows share a tile of keys; few rows share nothing and leave the eight warps a row.
constexpr int32_t kFewRows = 4;

int32_t launch(const ScoreArguments& arguments, int64_t batch, void* stream) {
  return arguments.query_rows <= kFewRows ? launch_rows<1>(arguments, batch, stream)
                                          : launch_rows<8>(arguments, batch, stream);
}

}  // namespace
}  // namespace dsa
}  // namespace qsa

extern "C" int32_t dsa_index_scores(const uint16_t* q, const float* weights, const uint16_t* pool_keys,
                                    const int32_t* q_pos, const uint8_t* valid, const int32_t* geometry,
                                    const int32_t* first_keys, const int32_t* slots, float* scores,
                                    int32_t* visible_pools, int64_t batch, int64_t query_rows, int64_t tokens,
                                    int64_t token_capacity, int64_t pool_capacity, int64_t score_cols,
                                    int64_t kpool, void* stream) {
  const int32_t refusal = qsa::dsa::refuse_sequences(batch, tokens, token_capacity, pool_capacity, kpool);
  if (refusal != QSA_OK) {
    return refusal;
  }
  if (query_rows < 0 || score_cols < 0 || batch * query_rows > INT32_MAX || query_rows > INT32_MAX) {
    return QSA_BAD_EXTENT;
  }
  // [dsa.one-row-replay] the geometry's last token is one row's position.
  if (geometry != nullptr && (batch > 1 || query_rows > 1)) {
    return QSA_BAD_EXTENT;
  }
  const int64_t least_stride = tokens < kpool ? 1 : tokens / kpool;
  if (score_cols < least_stride) {
    return QSA_BAD_STRIDE;
  }
  if (batch == 0 || query_rows == 0 || tokens == 0) {
    return QSA_OK;
  }
  const void* const aligned[] = {q, weights, pool_keys};
  for (const void* buffer : aligned) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!qsa::dsa::is_aligned(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  if (scores == nullptr || visible_pools == nullptr || (q_pos == nullptr && geometry == nullptr) ||
      (first_keys == nullptr) != (valid == nullptr) || (slots == nullptr) != (valid == nullptr)) {
    return QSA_NULL_POINTER;
  }
  const qsa::dsa::ScoreArguments arguments{
      q,
      weights,
      pool_keys,
      q_pos,
      geometry,
      scores,
      visible_pools,
      {valid, first_keys, slots, nullptr, token_capacity, pool_capacity, static_cast<int32_t>(kpool)},
      score_cols,
      static_cast<int32_t>(query_rows),
      static_cast<int32_t>(tokens)};
  return qsa::dsa::launch(arguments, batch, stream);
}
