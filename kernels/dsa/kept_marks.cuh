// What a selection keeps of a CTA's part of a row, a bit an element, and the list in ascending order that the
// bits are.
//
// Beside the list of select_ascending.cuh, which takes parts of any length, nothing kept needs a place in a
// list, and no pass sorts it: on an H200, at 16,384 pools over eight CTAs, what comes after the search took
// 950 clocks instead of 1,650. It holds as many elements as the CTA holds in registers.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_workspace.cuh"
#include "common/select_tiles.cuh"

namespace qsa {
namespace dsa {

template <int kThreads, int kVectors>
struct KeptMarks {
  static constexpr uint32_t kWordBits = 32;
  static constexpr uint32_t kThreadBits = kVectorScores * kVectors;
  static constexpr uint32_t kElements = kThreads * kThreadBits;
  static constexpr uint32_t kWords = kElements / kWordBits;
  static constexpr uint32_t kWarps = kThreads / select::kWarpLanes;
  static_assert(kWordBits % kThreadBits == 0, "a thread's bits lie in one word");

  uint32_t kept;
  uint32_t warp_kept[kWarps];
  uint32_t word[kWords];
};

// A barrier must follow before anything is kept.
template <int kThreads, int kVectors>
__device__ QSA_PASS void prepare_marks(KeptMarks<kThreads, kVectors>& marks) {
  QSA_ROLLED
  for (uint32_t i = threadIdx.x; i < marks.kWords; i += kThreads) {
    marks.word[i] = 0;
  }
  if (threadIdx.x == 0) {
    marks.kept = 0;
  }
}

// An Output of the engine.
template <int kThreads, int kVectors>
struct MarkOutput {
  using Marks = KeptMarks<kThreads, kVectors>;
  Marks& marks;

  __device__ __forceinline__ void keep(uint32_t index) {
    mark(index);
    atomicAdd(&marks.kept, 1u);
  }

  template <class Scores>
  __device__ __forceinline__ void keep_above(const Scores& scores, float bar) {
    keep_marked(scores, scores.marks_above(bar));
  }

  template <class Scores>
  __device__ __forceinline__ void keep_marked(const Scores& scores, uint32_t own) {
    const uint32_t count = __reduce_add_sync(select::kAllLanes, static_cast<uint32_t>(__popc(own)));
    if (select::lane_index() == 0) {
      atomicAdd(&marks.kept, count);
    }
    QSA_ROLLED
    while (own != 0) {
      mark(scores.index_of_mark(take_mark(own)));
    }
  }

  __device__ __forceinline__ void overlap() {}
  __device__ __forceinline__ void finish_overlap() {}
  __device__ __forceinline__ void settle() {}

 private:
  __device__ __forceinline__ void mark(uint32_t index) {
    atomicOr(&marks.word[index / Marks::kWordBits], 1u << index % Marks::kWordBits);
  }
};

// The bits of the caller, which stands for as many elements as any thread, and how many are kept below them.
struct OwnMarks {
  uint32_t bits;
  uint32_t first;  // the index of the lowest
  uint32_t before;
};

// All threads call it, after a barrier behind the last element kept.
template <int kThreads, int kVectors>
__device__ QSA_PASS OwnMarks own_marks(KeptMarks<kThreads, kVectors>& marks) {
  using Marks = KeptMarks<kThreads, kVectors>;
  const uint32_t lane = select::lane_index();
  const uint32_t warp = select::warp_index();
  OwnMarks own;
  own.first = threadIdx.x * Marks::kThreadBits;
  const uint32_t word = marks.word[own.first / Marks::kWordBits] >> own.first % Marks::kWordBits;
  own.bits = Marks::kThreadBits == Marks::kWordBits ? word : word & ((1u << Marks::kThreadBits % 32) - 1u);
  // One vote a digit of the count: they do not wait for each other, as the steps of a scan would.
  const uint32_t count = static_cast<uint32_t>(__popc(own.bits));
  own.before = 0;
  uint32_t total = 0;
  QSA_UNROLL
  for (uint32_t digit = 0; 1u << digit <= Marks::kThreadBits; ++digit) {
    const uint32_t have = __ballot_sync(select::kAllLanes, (count >> digit & 1u) != 0);
    own.before += static_cast<uint32_t>(__popc(have & ((1u << lane) - 1u))) << digit;
    total += static_cast<uint32_t>(__popc(have)) << digit;
  }
  if (lane == 0) {
    marks.warp_kept[warp] = total;
  }
  __syncthreads();  // every warp's count is there before any warp adds up those below it
  own.before +=
      __reduce_add_sync(select::kAllLanes, lane < warp && lane < Marks::kWarps ? marks.warp_kept[lane] : 0u);
  return own;
}

}  // namespace dsa
}  // namespace qsa
