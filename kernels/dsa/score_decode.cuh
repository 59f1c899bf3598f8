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
#if defined(DSA_PH)
__device__ long long g_phase[8][16];
#define PH(i)                                                         \
  do {                                                                \
    if (threadIdx.x == 0 && blockIdx.y % 16 == 0 && blockIdx.y < 128) \
      g_phase[blockIdx.y / 16][i] = clock64();                        \
  } while (0)
#else
#define PH(i)
#endif

constexpr int kThreads = QSA_HOST ? 128 : 256;
constexpr int kWarps = kThreads / kLanes;
constexpr int kCtaPools = kWarps * kTilePools;
#ifndef DSA_R
#define DSA_R 2
#endif
#ifndef DSA_U
#define DSA_U 4
#endif
#define DSA_STR(x) #x
#define DSA_UN(x) _Pragma(DSA_STR(unroll x))
constexpr int kResidentCtas = DSA_R;

// The heads of a row, and its weights times the scale.
struct Query {
  Vectors<kHeads> heads;
  float2 weight[kHeads / 2];
};

__device__ __forceinline__ void load_query(const ScoreArguments& arguments, int64_t number, Query& query) {
  const int thread = static_cast<int>(threadIdx.x);
  const uint16_t* const q = arguments.q + number * kHeads * kDims;
  DSA_UNROLL
  for (int unit = thread; unit < kHeads * kVectorChunks; unit += kThreads) {
    async_copy16(query.heads.at(unit / kVectorChunks, unit % kVectorChunks), q + unit * kChunkDims);
  }
  async_copy_commit();
  if (thread < kHeads / 2) {
    const float* const row_weights = arguments.weights + number * kHeads;
    query.weight[thread] =
        make_float2(load_weight(row_weights, 2 * thread), load_weight(row_weights, 2 * thread + 1));
  }
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

__global__ void __launch_bounds__(kThreads, kResidentCtas) decode_kernel(ScoreArguments arguments) {
  QSA_SHARED(Query, query, 1);
  PH(0);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  const int32_t number = static_cast<int32_t>(blockIdx.x);
  const LiveWords words = load_words(arguments.geometry);
  load_query(arguments, number, *query);
  PH(1);
  const int32_t sequence = number / arguments.query_rows;
  const int32_t live = live_tokens(words, arguments.geometry, arguments.tokens, arguments.lists.kpool);
  PH(2);
  const int32_t visible = visible_of(arguments, sequence, number % arguments.query_rows, live);
  const uint16_t* const keys = keys_of(arguments, sequence);
  float* const row_scores = scores_of(arguments, number);
  const int32_t stride = static_cast<int32_t>(gridDim.y) * kCtaPools;
  int32_t first = (static_cast<int32_t>(blockIdx.y) * kWarps + warp) * kTilePools;
  bool is_query_there = false;
  // The bound is the warp's, not the lane's: all 32 lanes take part in each multiplication. What is left out
  // is a second copy of the loop's code before it: a launch waits for the instructions that it runs once.
  do {
    const bool has_pools = first < visible;
    KeyPair key[kChunks];
    if (has_pools) {
      load_keys(keys, first + quad, visible, quad_lane, key);
    }
    PH(3);
    if (!is_query_there) {
      async_copy_wait<0>();
      __syncthreads();  // every thread's part of the query is there before any warp reads it
      is_query_there = true;
    }
    PH(4);
    if (has_pools) {
      float sum[2] = {};
      DSA_UN(DSA_U)
      for (int tile = 0; tile < kHeadTiles; ++tile) {
        Dots dot = {};
        DSA_UNROLL
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const int own_chunk = kQuadLanes * chunk + quad_lane;
          multiply(key[chunk], *query->heads.at(kTileHeads * tile + quad, own_chunk), dot);
        }
        add_heads(dot, query->weight[kTileHeads / 2 * tile + quad_lane], sum);
      }
      PH(5);
      const float score = combine_quad(sum, quad_lane);
      const int32_t pool = first + kTilePools / 2 * (quad_lane % 2) + quad;
      if (quad_lane < 2 && pool < visible) {
        row_scores[pool] = score;
      }
    }
    first += stride;
  } while (first < visible);
  PH(6);
  // [dsa.masked] What the row does not see of the live pools. [dsa.untouched-tail]
  const int32_t pools = arguments.lists.pools_seen(sequence, live - 1);
  const int32_t cta_first = static_cast<int32_t>(blockIdx.y) * kThreads;
  const int32_t cta_stride = static_cast<int32_t>(gridDim.y) * kThreads;
  DSA_ROLLED
  for (int32_t pool = visible + cta_first + static_cast<int32_t>(threadIdx.x); pool < pools;
       pool += cta_stride) {
    row_scores[pool] = kMaskedScore;
  }
  // [dsa.zero-pools] written once, whether or not there is a pool.
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    arguments.visible_pools[number] = visible;
  }
  PH(7);
}

// CTAs of a row: as many as are resident at once, never more than the ceiling has pools for.
inline int32_t launch(const ScoreArguments& arguments, int64_t rows, void* stream) {
  const int64_t capacity = arguments.tokens / arguments.lists.kpool;
  const int64_t resident = static_cast<int64_t>(multiprocessor_count()) * kResidentCtas;
  const int64_t wanted = (resident + rows - 1) / rows;
  const int64_t needed = (capacity + kCtaPools - 1) / kCtaPools;
  const int64_t ranges = needed < wanted ? needed : wanted;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ranges < 1 ? 1 : ranges));
  return QSA_LAUNCH(decode_kernel, grid, dim3(kThreads), 0, stream, arguments);
}

}  // namespace score_decode
}  // namespace dsa
}  // namespace qsa
