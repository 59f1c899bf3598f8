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

// A launch shape: threads a CTA, and tiles of 16 pools that a warp reads at a time.
template <int kThreadCount, int kTileCount, int kResident>
struct Shape {
  static constexpr int kThreads = kThreadCount;
  static constexpr int kTiles = kTileCount;
  static constexpr int kWarps = kThreads / kLanes;
  static constexpr int kWarpPools = kTiles * kTilePools;
  static constexpr int kCtaPools = kWarps * kWarpPools;
  static constexpr int kResidentCtas = kResident;
};

using Heads = Vectors<kHeads>;
using Keys = KeyPair[kChunks];

template <int kThreads>
__device__ __forceinline__ void load_heads(Heads& heads, const uint16_t* q) {
  DSA_UNROLL
  for (int unit = static_cast<int>(threadIdx.x); unit < kHeads * kVectorChunks; unit += kThreads) {
    const int head = unit / kVectorChunks;
    const int chunk = unit % kVectorChunks;
    async_copy16(heads.at(head, chunk), q + unit * kChunkDims);
  }
}

// Pools g and g + 8 from `first` on. One at or past `visible` is not read: the last one before it stands in,
// and its score is not written.
__device__ __forceinline__ void load_keys(const uint16_t* keys, int32_t first, int32_t visible, int quad_lane,
                                          Keys& tile) {
  const int64_t low = min(first, visible - 1);
  const int64_t high = min(first + kTilePools / 2, visible - 1);
  DSA_UNROLL
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int dim = kChunkDims * (kQuadLanes * chunk + quad_lane);
    tile[chunk].low = __ldg(reinterpret_cast<const uint4*>(keys + low * kDims + dim));
    tile[chunk].high = __ldg(reinterpret_cast<const uint4*>(keys + high * kDims + dim));
  }
}

template <class Launch>
__global__ void __launch_bounds__(Launch::kThreads, Launch::kResidentCtas)
    decode_kernel(ScoreArguments arguments) {
  constexpr int kTiles = Launch::kTiles;
  QSA_SHARED(Heads, heads, 1);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  const int32_t number = static_cast<int32_t>(blockIdx.x);
  load_heads<Launch::kThreads>(*heads, arguments.q + static_cast<int64_t>(number) * kHeads * kDims);
  async_copy_commit();
  const Weights weights = load_weights(arguments.weights + static_cast<int64_t>(number) * kHeads, quad_lane);
  const int32_t sequence = number / arguments.query_rows;
  const int32_t live = live_tokens(arguments.geometry, arguments.tokens, arguments.lists.kpool);
  const int32_t visible = visible_of(arguments, sequence, number % arguments.query_rows, live);
  const uint16_t* const keys = keys_of(arguments, sequence);
  int32_t first = (static_cast<int32_t>(blockIdx.y) * Launch::kWarps + warp) * Launch::kWarpPools;
  Keys key[kTiles];
  if (first < visible) {
    DSA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      load_keys(keys, first + tile * kTilePools + quad, visible, quad_lane, key[tile]);
    }
  }
  async_copy_wait<0>();
  __syncthreads();  // every thread's part of the heads is there before any warp reads them
  float* const row_scores = scores_of(arguments, number);
  const int32_t stride = static_cast<int32_t>(gridDim.y) * Launch::kCtaPools;
  // The bound is the warp's, not the lane's: all 32 lanes take part in each multiplication.
  for (; first < visible; first += stride) {
    Dots dot[kTiles] = {};
    DSA_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      DSA_UNROLL
      for (int head_tile = 0; head_tile < kHeadTiles; ++head_tile) {
        const uint4 head = *heads->at(kTileHeads * head_tile + quad, kQuadLanes * chunk + quad_lane);
        DSA_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply(key[tile][chunk], head, dot[tile][head_tile]);
        }
      }
    }
    if (first + stride < visible) {
      DSA_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        load_keys(keys, first + stride + tile * kTilePools + quad, visible, quad_lane, key[tile]);
      }
    }
    DSA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const float score = sum_heads(dot[tile], weights, quad_lane);
      const int32_t pool = first + tile * kTilePools + kTilePools / 2 * (quad_lane % 2) + quad;
      if (quad_lane < 2 && pool < visible) {
        row_scores[pool] = score;
      }
    }
#if !defined(DSA_HOIST)
    __syncwarp();  // keeps the heads in shared memory: in registers they would leave no room for the keys
#endif
  }
  // [dsa.masked] What the row does not see of the live pools. [dsa.untouched-tail]
  const int32_t pools = arguments.lists.pools_seen(sequence, live - 1);
  const int32_t cta_first = static_cast<int32_t>(blockIdx.y) * Launch::kThreads;
  const int32_t cta_stride = static_cast<int32_t>(gridDim.y) * Launch::kThreads;
  for (int32_t pool = visible + cta_first + static_cast<int32_t>(threadIdx.x); pool < pools;
       pool += cta_stride) {
    row_scores[pool] = kMaskedScore;
  }
  // [dsa.zero-pools] written once, whether or not there is a pool.
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    arguments.visible_pools[number] = visible;
  }
}

// CTAs of a row: as many as are resident at once, never more than the ceiling has pools for.
template <class Launch>
int32_t launch_shape(const ScoreArguments& arguments, int64_t rows, void* stream) {
  const int64_t capacity = arguments.tokens / arguments.lists.kpool;
  const int64_t resident = static_cast<int64_t>(multiprocessor_count()) * Launch::kResidentCtas;
  const int64_t wanted = (resident + rows - 1) / rows;
  const int64_t needed = (capacity + Launch::kCtaPools - 1) / Launch::kCtaPools;
  const int64_t ranges = needed < wanted ? needed : wanted;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ranges < 1 ? 1 : ranges));
  constexpr auto* kernel = decode_kernel<Launch>;
  return QSA_LAUNCH(kernel, grid, dim3(Launch::kThreads), 0, stream, arguments);
}

inline int32_t launch(const ScoreArguments& arguments, int64_t rows, void* stream) {
#if QSA_HOST
  return launch_shape<Shape<128, 1, 4>>(arguments, rows, stream);
#elif defined(DSA_T)
  return launch_shape<Shape<DSA_T, DSA_K, DSA_R>>(arguments, rows, stream);
#else
  return launch_shape<Shape<256, 1, 2>>(arguments, rows, stream);
#endif
}

}  // namespace score_decode
}  // namespace dsa
}  // namespace qsa
