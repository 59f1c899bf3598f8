// What a selection keeps of a CTA's part of a row, a bit an element, and the ascending places that the bits
// stand for.
//
// Beside the list of select_ascending.cuh, which takes parts of any length and rows on any boundary, nothing
// kept needs a place before all is kept, no pass sorts, and no bit is cleared: threads write the bits of all
// that they hold. It holds one tile of whole vectors.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_tiles.cuh"
#include "common/select_workspace.cuh"

namespace qsa {
namespace select {

constexpr uint32_t kWordBits = 32;

template <int kThreads, int kVectors>
struct alignas(16) KeptMarks {
  static constexpr uint32_t kWarps = kThreads / kWarpLanes;
  static constexpr uint32_t kElements = kThreads * kVectors * kVectorScores;
  static constexpr uint32_t kThreadBits = kVectors * kVectorScores;
  // Of as many elements as a warp holds, but consecutive ones.
  static constexpr uint32_t kSpanElements = kWarpLanes * kThreadBits;
  static_assert(kThreads % kWarpLanes == 0 && kWarps <= kWarpLanes, "a span a lane");
  static_assert(kWordBits % kThreadBits == 0, "a thread's bits lie in one word");

  uint32_t word[kElements / kWordBits];
  uint32_t span_kept[kWarps];
};

// A barrier must follow before anything is kept.
template <int kThreads, int kVectors>
__device__ QSA_PASS void prepare_marks(KeptMarks<kThreads, kVectors>& marks) {
  if (threadIdx.x < marks.kWarps) {
    marks.span_kept[threadIdx.x] = 0;
  }
}

// An Output of the engine for plain rows.
template <int kThreads, int kVectors>
struct MarkOutput {
  using Marks = KeptMarks<kThreads, kVectors>;
  Marks& marks;

  __device__ __forceinline__ void keep(uint32_t index) {
    atomicOr(&marks.word[index / kWordBits], 1u << index % kWordBits);
    atomicAdd(&marks.span_kept[index / Marks::kSpanElements], 1u);
  }

  template <class Scores>
  __device__ __forceinline__ void keep_above(const Scores& scores, float bar) {
    const uint32_t own = scores.marks_above(bar);
    count(own);
    write_bits<true>(own);
  }

  template <class Scores>
  __device__ __forceinline__ void keep_marked(const Scores&, uint32_t own) {
    count(own);
    write_bits<false>(own);
  }

  __device__ __forceinline__ void overlap() {}
  __device__ __forceinline__ void finish_overlap() {}
  __device__ __forceinline__ void settle() {}

 private:
  // `own` as ScoreTiles::marks_above() places it, four bits a vector. The 128 elements of a warp's vectors
  // are at most 128 marks, so four vectors are counted in the bytes of a word.
  __device__ __forceinline__ void count(uint32_t own) {
    const uint32_t pairs = own - (own >> 1 & 0x55555555u);
    const uint32_t fours = (pairs & 0x33333333u) + (pairs >> 2 & 0x33333333u);
    const uint32_t even = __reduce_add_sync(kAllLanes, fours & 0x0f0f0f0fu);
    const uint32_t odd = kVectors > 1 ? __reduce_add_sync(kAllLanes, fours >> 4 & 0x0f0f0f0fu) : 0u;
    // A lane a vector adds it to the span that it lies in.
    const uint32_t vector = lane_index();
    if (vector < static_cast<uint32_t>(kVectors)) {
      const uint32_t kept = (vector % 2 == 0 ? even : odd) >> (vector / 2 * 8) & 0xffu;
      atomicAdd(&marks.span_kept[(vector * Marks::kWarps + warp_index()) / kVectors], kept);
    }
  }

  // Two lanes' vectors are a byte. The first time nothing is known of it.
  template <bool kIsFirst>
  __device__ __forceinline__ void write_bits(uint32_t own) {
    const uint32_t ascending =
        __brev(own);  // the first vector in the highest four bits, its elements upwards
    const uint32_t next = __shfl_down_sync(kAllLanes, ascending, 1);
    if (lane_index() % 2 == 0) {
      QSA_UNROLL
      for (uint32_t v = 0; v < static_cast<uint32_t>(kVectors); ++v) {
        const uint32_t shift = kWordBits - kVectorScores * (v + 1);
        const uint32_t two = (ascending >> shift & 0xfu) | (next >> shift & 0xfu) << kVectorScores;
        uint8_t& byte = reinterpret_cast<uint8_t*>(marks.word)[(v * kThreads + threadIdx.x) / 2];
        byte = static_cast<uint8_t>(kIsFirst ? two : byte | two);
      }
    }
  }
};

// How many elements the CTA keeps. All lanes of a warp call it, after a barrier behind the last one kept.
template <int kThreads, int kVectors>
__device__ __forceinline__ uint32_t kept_of(const KeptMarks<kThreads, kVectors>& marks) {
  const uint32_t lane = lane_index();
  return __reduce_add_sync(kAllLanes, lane < marks.kWarps ? marks.span_kept[lane] : 0u);
}

// Calls visit(place, index) for every element kept: the place-th of the CTA, counted from 0, in ascending
// order. All threads call it, after a barrier behind the last element kept.
template <int kThreads, int kVectors, class Visit>
__device__ QSA_PASS void for_each_kept(const KeptMarks<kThreads, kVectors>& marks, const Visit& visit) {
  using Marks = KeptMarks<kThreads, kVectors>;
  const uint32_t lane = lane_index();
  const uint32_t span = warp_index();
  const uint32_t first = threadIdx.x * Marks::kThreadBits;
  const uint32_t word = marks.word[first / kWordBits] >> first % kWordBits;
  uint32_t own =
      Marks::kThreadBits == kWordBits ? word : word & ((1u << Marks::kThreadBits % kWordBits) - 1u);
  uint32_t place = __reduce_add_sync(kAllLanes, lane < span ? marks.span_kept[lane] : 0u);
  // One vote a digit of the count: they do not wait for each other, as the steps of a scan would.
  const uint32_t count = static_cast<uint32_t>(__popc(own));
  QSA_UNROLL
  for (uint32_t digit = 0; 1u << digit <= Marks::kThreadBits; ++digit) {
    const uint32_t have = __ballot_sync(kAllLanes, (count >> digit & 1u) != 0);
    place += static_cast<uint32_t>(__popc(have & ((1u << lane) - 1u))) << digit;
  }
  QSA_ROLLED
  for (; own != 0; own &= own - 1u) {
    visit(place, first + static_cast<uint32_t>(__ffs(static_cast<int>(own))) - 1u);
    ++place;
  }
}

}  // namespace select
}  // namespace qsa
