// Many query rows against many pools: what a prefill asks of dsa_index_scores.
//
// A CTA takes eight rows and every gridDim.y-th slab of 64 pools, which it copies to shared memory while it
// multiplies the slab before. A warp keeps the 32 heads of its row in registers, 64 of them.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "dsa/score_mma.cuh"
#include "dsa/score_row.cuh"

namespace qsa {
namespace dsa {
namespace score_prefill {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / kLanes;  // a warp a row
constexpr int kSlabPools = 64;
constexpr int kSlabTiles = kSlabPools / kTilePools;            // 4
constexpr int kLoads = kSlabPools * kVectorChunks / kThreads;  // 4 a thread
constexpr int kResidentCtas = 2;

using Slab = Vectors<kSlabPools>;
// Head g of each eight, by chunk.
using Query = uint4[kHeadTiles][kChunks];

__device__ __forceinline__ void load_slab(Slab& slab, const uint16_t* keys, int32_t first, int32_t pools) {
  DSA_UNROLL
  for (int load = 0; load < kLoads; ++load) {
    const int unit = load * kThreads + static_cast<int>(threadIdx.x);
    const int pool = unit / kVectorChunks;
    const int chunk = unit % kVectorChunks;
    uint4* const target = slab.at(pool, chunk);
    if (first + pool < pools) {
      const uint16_t* const source = keys + static_cast<int64_t>(first + pool) * kDims + chunk * kChunkDims;
      async_copy16(target, source);
    } else {
      *target = make_uint4(0, 0, 0, 0);  // no key: nothing is stored for it either
    }
  }
}

__device__ __forceinline__ void load_query(const uint16_t* q, int quad, int quad_lane, Query& query) {
  DSA_UNROLL
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    DSA_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int head = kTileHeads * tile + quad;
      const int dim = kChunkDims * (kQuadLanes * chunk + quad_lane);
      query[tile][chunk] = __ldg(reinterpret_cast<const uint4*>(q + head * kDims + dim));
    }
  }
}

// What a warp knows of its row.
struct Row {
  int64_t number;  // among all rows of the batch; that of the last one for a row behind it
  int32_t visible;
  bool present;  // false for a warp whose row lies behind the last one
};

__device__ __forceinline__ Row row_of(const ScoreArguments& arguments, int64_t sequence, int32_t row,
                                      int32_t live) {
  const int32_t own = min(row, arguments.query_rows - 1);
  Row found;
  found.present = row < arguments.query_rows;
  found.number = sequence * arguments.query_rows + own;
  found.visible = visible_of(arguments, sequence, own, live);
  return found;
}

__global__ void __launch_bounds__(kThreads, kResidentCtas) prefill_kernel(ScoreArguments arguments) {
  QSA_SHARED(Slab, slabs, 2);
  QSA_SHARED(int32_t, warp_visible, kRows);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  const PoolLists& lists = arguments.lists;
  const int32_t groups = (arguments.query_rows + kRows - 1) / kRows;
  const int64_t sequence = static_cast<int32_t>(blockIdx.x) / groups;
  const int32_t own_row = static_cast<int32_t>(blockIdx.x) % groups * kRows + warp;
  const LiveWords words = load_words(arguments.geometry);
  trap_if_wrong(words, arguments.geometry, arguments.tokens, lists.kpool);
  const int32_t live = live_tokens(words, arguments.geometry, arguments.tokens);
  const Row row = row_of(arguments, sequence, own_row, live);
  Query query;
  load_query(arguments.q + row.number * kHeads * kDims, quad, quad_lane, query);
  float2 weight[kHeadTiles];
  DSA_UNROLL
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    const float* const two = arguments.weights + row.number * kHeads + kTileHeads * tile + 2 * quad_lane;
    weight[tile] = make_float2(scaled(__ldg(two)), scaled(__ldg(two + 1)));
  }
  const int32_t pools = lists.pools_seen(sequence, live - 1);
  if (lane == 0) {
    warp_visible[warp] = row.visible;
    // [dsa.zero-pools] written once, whether or not there is a pool.
    if (blockIdx.y == 0 && row.present) {
      arguments.visible_pools[row.number] = row.visible;
    }
  }
  __syncthreads();  // every warp's row is there before the rows are compared
  int32_t most = 0;
  for (int other = 0; other < kRows; ++other) {
    most = max(most, warp_visible[other]);
  }
  float* const row_scores = scores_of(arguments, row.number);
  const uint16_t* const keys = keys_of(arguments, sequence);
  const int32_t stride = static_cast<int32_t>(gridDim.y);
  const int32_t seen_slabs = (most + kSlabPools - 1) / kSlabPools;
  const int32_t live_slabs = (pools + kSlabPools - 1) / kSlabPools;
  int32_t slab = static_cast<int32_t>(blockIdx.y);

  if (slab < seen_slabs) {
    load_slab(slabs[0], keys, slab * kSlabPools, pools);
  }
  async_copy_commit();
  for (int turn = 0; slab < seen_slabs; slab += stride, turn ^= 1) {
    if (slab + stride < seen_slabs) {
      load_slab(slabs[turn ^ 1], keys, (slab + stride) * kSlabPools, pools);
    }
    async_copy_commit();
    async_copy_wait<1>();
    __syncthreads();  // the slab is there for every warp before any of them reads it
    DSA_ROLLED
    for (int tile = 0; tile < kSlabTiles; ++tile) {
      Dots dot[kHeadTiles] = {};
      DSA_UNROLL
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int pool = tile * kTilePools + quad;
        const int own_chunk = kQuadLanes * chunk + quad_lane;
        const KeyPair key = {*slabs[turn].at(pool, own_chunk),
                             *slabs[turn].at(pool + kTilePools / 2, own_chunk)};
        DSA_UNROLL
        for (int head_tile = 0; head_tile < kHeadTiles; ++head_tile) {
          multiply(key, query[head_tile][chunk], dot[head_tile]);
        }
      }
      float sum[2] = {};
      DSA_UNROLL
      for (int head_tile = 0; head_tile < kHeadTiles; ++head_tile) {
        add_heads(dot[head_tile], weight[head_tile], sum);
      }
      const float score = combine_quad(sum, quad_lane);
      const int32_t pool = slab * kSlabPools + tile * kTilePools + kTilePools / 2 * (quad_lane % 2) + quad;
      // [dsa.untouched-tail]
      if (quad_lane < 2 && row.present && pool < pools) {
        // [dsa.masked]
        row_scores[pool] = pool < row.visible ? score : kMaskedScore;
      }
    }
    __syncthreads();  // every warp has read the slab before it is overwritten
  }
  // What no row of the CTA sees is not read, only masked.
  for (; slab < live_slabs; slab += stride) {
    const int32_t end = min(pools, (slab + 1) * kSlabPools);
    for (int32_t pool = slab * kSlabPools + lane; row.present && pool < end; pool += kLanes) {
      row_scores[pool] = kMaskedScore;
    }
  }
}

// Row groups times ranges of slabs, by the ceiling alone: a few waves, so that causal rows even out. The
// emulation has nothing to even out, and CTAs that take more slabs.
inline int32_t launch(const ScoreArguments& arguments, int64_t batch, void* stream) {
  constexpr int64_t kWaves = QSA_HOST ? 1 : 4;
  constexpr int64_t kMostRanges = 65535;  // gridDim.y
  const int64_t groups = batch * ((arguments.query_rows + kRows - 1) / kRows);
  const int64_t slabs = (arguments.tokens / arguments.lists.kpool + kSlabPools - 1) / kSlabPools;
  const int64_t slots = static_cast<int64_t>(multiprocessor_count()) * kResidentCtas;
  const int64_t wanted = (kWaves * slots + groups - 1) / groups;
  int64_t ranges = slabs < wanted ? slabs : wanted;
  ranges = ranges < 1 ? 1 : (ranges < kMostRanges ? ranges : kMostRanges);
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(ranges));
  return QSA_LAUNCH(prefill_kernel, grid, dim3(kThreads), 0, stream, arguments);
}

}  // namespace score_prefill
}  // namespace dsa
}  // namespace qsa
