// Puts the indices that a selection kept, listed in any order, into ascending order: a counting sort by the
// upper bits of the index, then a rank among the few that share them. Any indices below `count` are served.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_engine.cuh"

namespace qsa {
namespace select {

constexpr uint32_t kMostKept = 512;

// Shared memory beside Workspace, whose bins this borrows.
struct KeptList {
  uint32_t kept;
  uint32_t index[kMostKept];
  uint32_t sorted[kMostKept];
};

// A barrier must follow before anything is kept.
__device__ __forceinline__ void prepare_list(KeptList& list) {
  if (threadIdx.x == 0) {
    list.kept = 0;
  }
}

// An Output of the engine: only lists what is kept.
struct ListOutput {
  KeptList& list;

  __device__ __forceinline__ void keep(uint32_t index) { list.index[atomicAdd(&list.kept, 1u)] = index; }

  // A warp claims the places of all it keeps at once: where many lanes keep something, one atomic addition
  // each costs more than counting first.
  template <class Scores>
  __device__ __forceinline__ void keep_above(const Scores& scores, float bar) {
    uint32_t own = 0;
    scores.for_each_held([&](const float (&score)[kVectorScores], uint32_t) {
      QSA_UNROLL
      for (uint32_t e = 0; e < kVectorScores; ++e) {
        own += score[e] > bar ? 1u : 0u;
      }
    });
    uint32_t place = claim_places(own);
    scores.for_each_held([&](const float (&score)[kVectorScores], uint32_t first_index) {
      QSA_UNROLL
      for (uint32_t e = 0; e < kVectorScores; ++e) {
        if (score[e] > bar) {
          list.index[place] = first_index + e;
          ++place;
        }
      }
    });
  }

  __device__ __forceinline__ void overlap() {}
  __device__ __forceinline__ void finish_overlap() {}

 private:
  // The first of `own` places in the list that are this lane's alone. All lanes of the warp call it.
  __device__ __forceinline__ uint32_t claim_places(uint32_t own) {
    const uint32_t lane = lane_index();
    uint32_t up_to_here = own;
    QSA_UNROLL
    for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
      const uint32_t lower = __shfl_up_sync(kAllLanes, up_to_here, step);
      up_to_here += lane >= step ? lower : 0u;
    }
    uint32_t begin = 0;
    if (lane == kWarpLanes - 1) {
      begin = atomicAdd(&list.kept, up_to_here);
    }
    begin = __shfl_sync(kAllLanes, begin, kWarpLanes - 1);
    return begin + up_to_here - own;
  }
};

// Bins run against the index, so that what stands before a bin lies in the bins above it.
__device__ __forceinline__ uint32_t ascending_bin(uint32_t index, uint32_t shift) {
  return kBins - 1u - (index >> shift);
}

// Calls place(rank, index) once for every listed index, by any thread; rank counts the listed indices below
// it. Requires that list.kept indices, all below `count`, are listed, and that the bins are clear.
template <int kThreads, class Place>
__device__ QSA_PASS void place_ascending(KeptList& list, uint32_t count, Workspace& shared, Place place) {
  constexpr uint32_t kOwnBins = kBins / kThreads;
  const uint32_t shift = bin_shift(count - 1u);
  __syncthreads();  // the list is complete before any of it is counted
  const uint32_t kept = list.kept;
  QSA_ROLLED
  for (uint32_t i = threadIdx.x; i < kept; i += kThreads) {
    atomicAdd(&shared.bins[ascending_bin(list.index[i], shift)], 1u);
  }
  __syncthreads();  // every index is counted before any bin is read
  const uint32_t lowest_bin = threadIdx.x * kOwnBins;
  uint32_t total = 0;
  QSA_UNROLL
  for (uint32_t i = 0; i < kOwnBins; ++i) {
    total += shared.bins[lowest_bin + i];
  }
  uint32_t begin = sum_above<kThreads>(total, shared);
  QSA_UNROLL
  for (uint32_t i = kOwnBins; i-- > 0;) {
    const uint32_t population = shared.bins[lowest_bin + i];
    shared.bins[lowest_bin + i] = begin;
    begin += population;
  }
  __syncthreads();  // every bin says where its indices begin before any of them is placed
  QSA_ROLLED
  for (uint32_t i = threadIdx.x; i < kept; i += kThreads) {
    const uint32_t index = list.index[i];
    list.sorted[atomicAdd(&shared.bins[ascending_bin(index, shift)], 1u)] = index;
  }
  __syncthreads();  // every bin says where its indices end, and they lie there, before they are ranked
  QSA_ROLLED
  for (uint32_t i = threadIdx.x; i < kept; i += kThreads) {
    const uint32_t index = list.sorted[i];
    const uint32_t bin = ascending_bin(index, shift);
    const uint32_t bin_begin = bin == kBins - 1u ? 0u : shared.bins[bin + 1u];
    const uint32_t bin_end = shared.bins[bin];
    uint32_t rank = bin_begin;
    QSA_ROLLED
    for (uint32_t other = bin_begin; other < bin_end; ++other) {
      rank += list.sorted[other] < index ? 1u : 0u;
    }
    place(rank, index);
  }
}

}  // namespace select
}  // namespace qsa
