// Puts the indices that a selection kept, listed in any order, into ascending order, through a bitmap.
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

  template <class Scores>
  __device__ __forceinline__ void keep_above(const Scores& scores, float bar) {
    keep_marked(scores, scores.marks_above(bar));
  }

  // A warp claims the places of all it keeps at once: where many lanes keep something, one atomic addition
  // each costs more than counting first.
  template <class Scores>
  __device__ __forceinline__ void keep_marked(const Scores& scores, uint32_t marks) {
    uint32_t place = claim_places(static_cast<uint32_t>(__popc(marks)));
    QSA_ROLLED
    while (marks != 0) {
      list.index[place] = scores.index_of_mark(take_mark(marks));
      ++place;
    }
  }

  __device__ __forceinline__ void overlap() {}
  __device__ __forceinline__ void finish_overlap() {}
  __device__ __forceinline__ void settle() {}

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

// Sorts list.index into list.sorted. The bins become a bitmap of one word a thread, with no more bits than
// the row needs, so that all threads have as many to look through; a row of more than 32 elements a thread
// takes several turns. All indices are below `count`; the bins may hold anything.
template <int kThreads>
__device__ QSA_PASS void sort_ascending(KeptList& list, uint32_t count, Workspace& shared) {
  constexpr int kMostShift = 5;
  // 2^shift bits a word.
  const int shift = min(32 - __clz(static_cast<int>((count - 1u) / kThreads)), kMostShift);
  const uint32_t span = static_cast<uint32_t>(kThreads) << shift;
  // Words run against the index, so that what stands before lies in the words above.
  const uint32_t own_word = kThreads - 1u - threadIdx.x;
  uint32_t sorted = 0;
  QSA_ROLLED
  for (uint32_t base = 0; base < count; base += span) {
    shared.bins[threadIdx.x] = 0;
    __syncthreads();  // the list is complete, and the bitmap clear, before any bit is set
    const uint32_t kept = list.kept;
    QSA_ROLLED
    for (uint32_t i = threadIdx.x; i < kept; i += kThreads) {
      const uint32_t index = list.index[i] - base;
      if (index < span) {
        atomicOr(&shared.bins[kThreads - 1u - (index >> shift)], 1u << (index & ((1u << shift) - 1u)));
      }
    }
    __syncthreads();  // every bit is set before any is counted
    uint32_t word = shared.bins[threadIdx.x];
    uint32_t place = sorted + sum_above<kThreads>(static_cast<uint32_t>(__popc(word)), shared);
    const uint32_t first = base + (own_word << shift);
    QSA_ROLLED
    for (; word != 0; word &= word - 1u) {
      list.sorted[place] = first + static_cast<uint32_t>(__ffs(static_cast<int>(word))) - 1u;
      ++place;
    }
    sorted += sum_all<kThreads>(shared);
  }
  __syncthreads();  // all indices are in order before any is used
}

}  // namespace select
}  // namespace qsa
