// Few query rows against many pools: what a step of decoding asks of dsa_index_scores. A CTA has one row.
//
// Bound by reading the keys, so they go from global memory straight into the registers of the multiplication,
// each once, as many at a time as the registers hold. The row's heads lie in shared memory, and are on their
// way there while the geometry is looked up.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "dsa/score_mma.cuh"
#include "dsa/score_row.cuh"

namespace qsa {
namespace dsa {
namespace score_decode {

// us on an H200 of a form before this, one row of 65,536 and of 262,144 tokens: two CTAs of 256 threads a
// multiprocessor 3.1 and 5.4, three 3.4 and 6.2, one of 512 threads 3.7 and 5.4; 32 pools a warp instead of
// 16 3.3 and 5.7 at best. Then the loads of a turn that has begun before the last one ended were left out,
// and with them a second copy of their code: 2.9 and 5.3.
constexpr int kThreads = QSA_HOST ? 128 : 256;
constexpr int kWarps = kThreads / kLanes;
constexpr int kCtaPools = kWarps * kTilePools;
constexpr int kResidentCtas = 2;

// The heads of a row, and its weights times the scale.
struct Query {
  Vectors<kHeads> heads;
  float weight[kHeads];
};

__device__ __forceinline__ void copy_heads(const uint16_t* q, Query& query) {
  static_assert(kHeads * kVectorChunks % kThreads == 0, "every thread copies as many chunks");
  DSA_UNROLL
  for (int load = 0; load < kHeads * kVectorChunks / kThreads; ++load) {
    const int unit = load * kThreads + static_cast<int>(threadIdx.x);
    async_copy16(query.heads.at(unit / kVectorChunks, unit % kVectorChunks), q + unit * kChunkDims);
  }
  async_copy_commit();
}

// The keys of a lane's pools. One at or past `visible` is not read: the last one before it stands in, and its
// score is not written.
__device__ __forceinline__ void load_keys(const uint16_t* keys, int32_t first, int32_t visible, int quad_lane,
                                          KeyPair (&key)[kChunks]) {
  const int64_t low = min(first, visible - 1);
  const int64_t high = min(first + kTilePools / 2, visible - 1);
  DSA_UNROLL
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int dim = kChunkDims * (kQuadLanes * chunk + quad_lane);
    key[chunk].low = __ldg(reinterpret_cast<const uint4*>(keys + low * kDims + dim));
    key[chunk].high = __ldg(reinterpret_cast<const uint4*>(keys + high * kDims + dim));
  }
}

// How many pools the row sees, and the scores of those that it does not.
__device__ __forceinline__ void write_unscored(const ScoreArguments& arguments, int64_t sequence,
                                               int64_t number, int32_t live, int32_t visible) {
  // [dsa.zero-pools] written once, whether or not there is a pool.
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    arguments.visible_pools[number] = visible;
  }
  // A row of a geometry stands at the last live token.
  if (arguments.geometry != nullptr) {
    return;
  }
  // [dsa.masked] Of the live pools. [dsa.untouched-tail]
  const int32_t pools = arguments.lists.pools_seen(sequence, live - 1);
  const int32_t begin = visible + static_cast<int32_t>(blockIdx.y) * kThreads;
  float* const row_scores = scores_of(arguments, number);
  DSA_ROLLED
  for (int32_t pool = begin + static_cast<int32_t>(threadIdx.x); pool < pools;
       pool += static_cast<int32_t>(gridDim.y) * kThreads) {
    row_scores[pool] = kMaskedScore;
  }
}

template <bool kIsListed>
__global__ void __launch_bounds__(kThreads, kResidentCtas) decode_kernel(ScoreArguments arguments) {
  QSA_SHARED(Query, query, 1);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  const int warp = thread / kLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  arguments.lists = known<kIsListed>(arguments.lists);
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = static_cast<int32_t>(blockIdx.z);
  const int64_t number = static_cast<int64_t>(sequence) * gridDim.x + row;
  const LiveWords words = load_words(arguments.geometry);
  const float weight = thread < kHeads ? __ldg(arguments.weights + number * kHeads + thread) : 0.0f;
  copy_heads(arguments.q + number * kHeads * kDims, *query);
  const int32_t live = live_tokens(words, arguments.geometry, arguments.tokens);
  const int32_t visible = visible_of(arguments, sequence, row, live);
  const uint16_t* const keys = keys_of(arguments, sequence);
  float* const row_scores = scores_of(arguments, number);
  const int32_t stride = static_cast<int32_t>(gridDim.y) * kCtaPools;
  int32_t first = (static_cast<int32_t>(blockIdx.y) * kWarps + warp) * kTilePools;
  bool is_first_turn = true;
  // The bound is the warp's, not the lane's: all 32 lanes take part in each multiplication. There is one copy
  // of the loads, in the loop: a launch waits for instructions, too, that it runs once.
  do {
    const bool has_pools = first < visible;
    KeyPair key[kChunks];
    if (has_pools) {
      load_keys(keys, first + quad, visible, quad_lane, key);
    }
    if (is_first_turn) {
      is_first_turn = false;
      // While the keys are on their way.
      trap_if_wrong(words, arguments.geometry, arguments.tokens, arguments.lists.kpool);
      if (thread < kHeads) {
        query->weight[thread] = scaled(weight);
      }
      write_unscored(arguments, sequence, number, live, visible);
      async_copy_wait<0>();
      __syncthreads();  // every thread's part of the query is there before any warp reads it
    }
    if (has_pools) {
      float sum[2] = {};
      DSA_UNROLL
      for (int tile = 0; tile < kHeadTiles; ++tile) {
        Dots dot = {};
        DSA_UNROLL
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const int own_chunk = kQuadLanes * chunk + quad_lane;
          // Named, as a vector read inside an argument is not seen by the emulation's checker.
          const uint4 heads = *query->heads.at(kTileHeads * tile + quad, own_chunk);
          multiply(key[chunk], heads, dot);
        }
        const float* const two = &query->weight[kTileHeads * tile + 2 * quad_lane];
        const float2 weights = *reinterpret_cast<const float2*>(two);
        add_heads(dot, weights, sum);
      }
      const float score = combine_quad(sum, quad_lane);
      const int32_t pool = first + kTilePools / 2 * (quad_lane % 2) + quad;
      if (quad_lane < 2 && pool < visible) {
        row_scores[pool] = score;
      }
    }
    first += stride;
  } while (first < visible);
}

// CTAs of a row: as many as are resident at once, never more than the ceiling has pools for.
inline int32_t launch(const ScoreArguments& arguments, int64_t batch, void* stream) {
  const int64_t capacity = arguments.tokens / arguments.lists.kpool;
  const int64_t resident = static_cast<int64_t>(multiprocessor_count()) * kResidentCtas;
  const int64_t rows = batch * arguments.query_rows;
  const int64_t wanted = (resident + rows - 1) / rows;
  const int64_t needed = (capacity + kCtaPools - 1) / kCtaPools;
  const int64_t ranges = needed < wanted ? needed : wanted;
  const dim3 grid(static_cast<unsigned>(arguments.query_rows), static_cast<unsigned>(ranges < 1 ? 1 : ranges),
                  static_cast<unsigned>(batch));
  auto* const kernel = arguments.lists.valid != nullptr ? decode_kernel<true> : decode_kernel<false>;
  return QSA_LAUNCH(kernel, grid, dim3(kThreads), 0, stream, arguments);
}

}  // namespace score_decode
}  // namespace dsa
}  // namespace qsa
