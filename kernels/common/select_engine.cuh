// Selects the `keep` first elements of a row of finite scores, in the order of float_order.cuh, with one CTA.
//
// How. A histogram of 2,048 coarse bins finds the bin that the last kept element lies in. What lies above
// that bin is kept; what lies in it is ranked exactly, element against element, when it is at most kRankLimit
// elements. Otherwise the bin is narrowed first: drawn in to the least and the greatest score in it and
// divided by a histogram of that range, or, once all its scores are equal, by a histogram of the indices. A
// histogram divides what is left by 2,048, so three of scores and two of indices at most end it, whatever the
// row holds: no buffer limits how many elements a bin may have.
//
// The caller's parts are two template arguments:
//   Scores   like ScoreTiles
//   Output   keep(index)              keeps one element; called by any one thread
//            keep_above(scores, bar)  keeps the elements of the tile held whose score is above `bar`
//            overlap()                once a vector in the first pass: work to hide behind the histogram
//            finish_overlap()         ends that work; what it wrote is ordered before every element kept
// All but keep() and overlap() are called by all threads of the CTA together. Every kept element is kept
// once, in any order.
//
// Loops that hold a barrier or a warp collective end by values that every thread reads from the same shared
// words between the same two barriers, so all threads leave them together. [select.every-thread-agrees]
//
// A kernel that spreads one row over several CTAs would replace find_threshold(), which would add up the
// histograms of the CTAs, and the list that rank_candidates() reads; the passes over the scores would stay.
#pragma once

#include <cstdint>

#include "common/float_order.cuh"
#include "common/portability.cuh"
#include "common/select_tiles.cuh"

namespace qsa {
namespace select {

constexpr uint32_t kWarpLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr uint32_t kMostWarps = 32;

constexpr uint32_t kBinBits = 11;
constexpr uint32_t kBins = 1u << kBinBits;

// At most this many elements are ranked against each other: 16 comparisons a thread of 1,024.
constexpr uint32_t kRankLimit = 128;

// The coarse bins: 64 an octave from 2^-18 up to 2^14, by sign, exponent and six bits of the fraction of the
// float as it is. The lowest bin also takes everything below (zeros and negative scores), the highest
// everything above. Any range gives the exact result; this one puts few scores of order 1 in a bin.
constexpr int kCoarseShift = 17;
constexpr int kCoarseFirst = (127 - 18) << (23 - kCoarseShift);
constexpr int kCoarseLast = kCoarseFirst + static_cast<int>(kBins) - 1;

// Shared memory of one CTA. The bins are zero except between a counting pass and the search that follows it.
struct alignas(16) Workspace {
  uint32_t bins[kBins];
  uint32_t warp_total[kMostWarps];
  uint32_t warp_least[kMostWarps];
  uint32_t warp_greatest[kMostWarps];
  uint32_t threshold_bin;
  uint32_t threshold_above;
  uint32_t threshold_population;
  uint32_t candidates;
  float candidate_score[kRankLimit];
  uint32_t candidate_index[kRankLimit];
};

// The bin of a histogram that holds the element sought.
struct Threshold {
  uint32_t bin;
  uint32_t above;       // elements in higher bins
  uint32_t population;  // elements in this bin
};

// Where the last kept element is known to lie: a range of scores, and a range of indices that is narrower
// than the row only when `lowest` equals `highest`. Both ends belong to it.
struct Window {
  float lowest;
  float highest;
  uint32_t first;
  uint32_t last;
  uint32_t need;        // how many of the elements inside are kept
  uint32_t population;  // how many elements are inside, or more

  __device__ __forceinline__ bool holds(float score, uint32_t index) const {
    return score >= lowest && score <= highest && index - first <= last - first;
  }
  // Whether the element stands before the window by its index alone.
  __device__ __forceinline__ bool is_preceded_by(float score, uint32_t index) const {
    return score == highest && index < first;
  }
};

__device__ __forceinline__ uint32_t lane_index() { return threadIdx.x % kWarpLanes; }
__device__ __forceinline__ uint32_t warp_index() { return threadIdx.x / kWarpLanes; }

// How far to shift a range of `span` + 1 values right for it to fit the bins.
__device__ __forceinline__ uint32_t bin_shift(uint32_t span) {
  const uint32_t bits = 32u - static_cast<uint32_t>(__clz(static_cast<int>(span)));
  return bits > kBinBits ? bits - kBinBits : 0u;
}

__device__ __forceinline__ uint32_t coarse_bin(float score) {
  int bits = __float_as_int(score) >> kCoarseShift;
  bits = max(bits, kCoarseFirst);
  bits = min(bits, kCoarseLast);
  return static_cast<uint32_t>(bits - kCoarseFirst);
}

// The least score of a coarse bin.
__device__ __forceinline__ float coarse_floor(uint32_t bin) {
  return __uint_as_float((static_cast<uint32_t>(kCoarseFirst) + bin) << kCoarseShift);
}

// The greatest score of a coarse bin.
__device__ __forceinline__ float coarse_ceiling(uint32_t bin) {
  return __uint_as_float(__float_as_uint(coarse_floor(bin + 1)) - 1u);
}

// Makes the workspace ready. A barrier must follow before select_first().
template <int kThreads>
__device__ QSA_PASS void prepare(Workspace& shared) {
  QSA_UNROLL
  for (uint32_t i = 0; i < kBins / kThreads; ++i) {
    shared.bins[i * kThreads + threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) {
    shared.candidates = 0;
  }
}

// The sum of `value` over all threads above the caller.
template <int kThreads>
__device__ QSA_PASS uint32_t sum_above(uint32_t value, Workspace& shared) {
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  static_assert(kThreads % kWarpLanes == 0 && kWarps <= kMostWarps, "whole warps, one total a lane");
  const uint32_t lane = lane_index();
  const uint32_t warp = warp_index();
  uint32_t from_here_up = value;
  QSA_UNROLL
  for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
    const uint32_t higher = __shfl_down_sync(kAllLanes, from_here_up, step);
    from_here_up += lane + step < kWarpLanes ? higher : 0u;
  }
  if (lane == 0) {
    shared.warp_total[warp] = from_here_up;
  }
  __syncthreads();  // every warp's total is written before any warp adds up those above it
  const bool is_above = lane > warp && lane < kWarps;
  const uint32_t higher_warps = __reduce_add_sync(kAllLanes, is_above ? shared.warp_total[lane] : 0u);
  return higher_warps + from_here_up - value;
}

// Finds the bin that holds the need-th element from the top, 1 <= need <= elements counted; clears the bins.
template <int kThreads>
__device__ QSA_PASS Threshold find_threshold(Workspace& shared, uint32_t need) {
  constexpr uint32_t kOwnBins = kBins / kThreads;
  static_assert(kOwnBins * kThreads == kBins, "every thread owns equally many bins");
  __syncthreads();  // every element is counted before any bin is read
  const uint32_t lowest_bin = threadIdx.x * kOwnBins;
  uint32_t own[kOwnBins];
  uint32_t total = 0;
  QSA_UNROLL
  for (uint32_t i = 0; i < kOwnBins; ++i) {
    own[i] = shared.bins[lowest_bin + i];
    total += own[i];
  }
  // Only their owner reads the bins, so it may clear them for the next pass, two barriers from here.
  QSA_UNROLL
  for (uint32_t i = 0; i < kOwnBins; ++i) {
    shared.bins[lowest_bin + i] = 0;
  }
  uint32_t above = sum_above<kThreads>(total, shared);
  const bool owns_threshold = above < need && need <= above + total;
  if (owns_threshold) {
    // From the highest bin down; the last bin to begin with fewer than `need` elements above it is the one.
    QSA_UNROLL
    for (uint32_t i = kOwnBins; i-- > 0;) {
      if (above < need) {
        shared.threshold_bin = lowest_bin + i;
        shared.threshold_above = above;
        shared.threshold_population = own[i];
      }
      above += own[i];
    }
  }
  __syncthreads();  // the threshold is written, and the bins are clear, before any thread goes on
  return Threshold{shared.threshold_bin, shared.threshold_above, shared.threshold_population};
}

// First pass: counts every score of the row, and traps if one is not finite.
template <class Scores, class Output>
__device__ QSA_PASS void count_coarse(Scores& scores, Workspace& shared, Output& output) {
  float probe = 0.0f;
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t) {
    // First, because the scores are still on their way.
    output.overlap();
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      probe = finite_probe(score[e], probe);
      // Counted without a test: an element outside the row falls in the lowest bin, where it can only raise
      // the population, never hide an element of the row.
      atomicAdd(&shared.bins[coarse_bin(score[e])], 1u);
    }
  });
  if (met_non_finite(probe)) {
    QSA_TRAP("a score inside the row's prefix is not finite");
  }
}

template <class Scores>
__device__ QSA_PASS Window window_of(const Threshold& threshold, uint32_t need, const Scores& scores) {
  Window window;
  window.lowest = threshold.bin == 0 ? kLowestFinite : coarse_floor(threshold.bin);
  window.highest = threshold.bin == kBins - 1 ? kLargestFinite : coarse_ceiling(threshold.bin);
  window.first = 0;
  window.last = scores.count() - 1;
  window.need = need - threshold.above;
  window.population = threshold.population;
  return window;
}

// Draws the window in to the least and the greatest score inside.
template <int kThreads, class Scores>
__device__ QSA_PASS void draw_in(Window& window, Scores& scores, Workspace& shared) {
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  uint32_t least = 0xffffffffu;
  uint32_t greatest = 0;
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t first_index) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      if (window.holds(score[e], first_index + e)) {
        const uint32_t ordered = ordered_bits(score[e]);
        least = min(least, ordered);
        greatest = max(greatest, ordered);
      }
    }
  });
  least = __reduce_min_sync(kAllLanes, least);
  greatest = __reduce_max_sync(kAllLanes, greatest);
  const uint32_t lane = lane_index();
  if (lane == 0) {
    shared.warp_least[warp_index()] = least;
    shared.warp_greatest[warp_index()] = greatest;
  }
  __syncthreads();  // every warp's extremes are written before any warp combines them
  const uint32_t warp = lane < kWarps ? lane : 0u;
  least = __reduce_min_sync(kAllLanes, shared.warp_least[warp]);
  greatest = __reduce_max_sync(kAllLanes, shared.warp_greatest[warp]);
  window.lowest = from_ordered_bits(least);
  window.highest = from_ordered_bits(greatest);
}

// What a window is narrowed by: the scores in it, or, where these are all equal, the indices. Either way an
// element that stands earlier in the order has the greater key.
struct Key {
  bool by_index;
  uint32_t least;
  uint32_t greatest;

  __device__ __forceinline__ uint32_t of(float score, uint32_t index) const {
    return by_index ? ~index : ordered_bits(score);
  }
};

__device__ __forceinline__ Key key_of(const Window& window) {
  if (window.lowest == window.highest) {
    return Key{true, ~window.last, ~window.first};
  }
  return Key{false, ordered_bits(window.lowest), ordered_bits(window.highest)};
}

// Narrows a window to one of 2,048 equal parts of its range of keys.
template <int kThreads, class Scores>
__device__ QSA_PASS void narrow(Window& window, Scores& scores, Workspace& shared) {
  const Key key = key_of(window);
  const uint32_t shift = bin_shift(key.greatest - key.least);
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t first_index) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      const uint32_t index = first_index + e;
      if (window.holds(score[e], index)) {
        atomicAdd(&shared.bins[(key.of(score[e], index) - key.least) >> shift], 1u);
      }
    }
  });
  const Threshold threshold = find_threshold<kThreads>(shared, window.need);
  const uint32_t least = key.least + (threshold.bin << shift);
  // The last part may be cut short, and its full width would wrap.
  const uint32_t greatest = least + min(key.greatest - least, (1u << shift) - 1u);
  if (key.by_index) {
    window.first = ~greatest;
    window.last = ~least;
  } else {
    window.lowest = from_ordered_bits(least);
    window.highest = from_ordered_bits(greatest);
  }
  window.need -= threshold.above;
  window.population = threshold.population;
}

// Keeps what stands before the window and lists what lies inside, of a vector whose scores above the window
// are kept already.
template <class Output>
__device__ QSA_PASS void decide(const float (&score)[kVectorScores], uint32_t first_index,
                                const Window& window, Workspace& shared, Output& output) {
  if (window.first > 0) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      if (window.is_preceded_by(score[e], first_index + e)) {
        output.keep(first_index + e);
      }
    }
  }
  QSA_UNROLL
  for (uint32_t e = 0; e < kVectorScores; ++e) {
    if (window.holds(score[e], first_index + e)) {
      const uint32_t place = atomicAdd(&shared.candidates, 1u);
      shared.candidate_score[place] = score[e];
      shared.candidate_index[place] = first_index + e;
    }
  }
}

// Last pass: keeps what stands before the window and lists what lies inside, in any order.
template <class Scores, class Output>
__device__ QSA_PASS void collect(const Window& window, Scores& scores, Workspace& shared, Output& output) {
  scores.for_each_tile([&] {
    output.keep_above(scores, window.highest);
    scores.for_each_held([&](const float (&score)[kVectorScores], uint32_t first_index) {
      // Few vectors get past this test, so what follows it may be long.
      bool undecided = false;
      QSA_UNROLL
      for (uint32_t e = 0; e < kVectorScores; ++e) {
        undecided = undecided || (score[e] >= window.lowest && score[e] <= window.highest);
      }
      if (undecided) {
        decide(score, first_index, window, shared, output);
      }
    });
  });
}

// Keeps the `need` first of the listed elements. A warp ranks one of them against all.
template <int kThreads, class Output>
__device__ QSA_PASS void rank_candidates(const Workspace& shared, uint32_t need, Output& output) {
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  const uint32_t lane = lane_index();
  const uint32_t candidates = shared.candidates;
  QSA_ROLLED
  for (uint32_t own = warp_index(); own < candidates; own += kWarps) {
    const float score = shared.candidate_score[own];
    const uint32_t index = shared.candidate_index[own];
    uint32_t rank = 0;
    QSA_ROLLED
    for (uint32_t base = 0; base < candidates; base += kWarpLanes) {
      const uint32_t other = base + lane;
      bool before = false;
      if (other < candidates) {
        before = stands_before(shared.candidate_score[other], shared.candidate_index[other], score, index);
      }
      rank += static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, before)));
    }
    if (lane == 0 && rank < need) {
      output.keep(index);
    }
  }
}

// Keeps the `keep` first elements. Requires 1 <= keep <= scores.count(), scores that no pass has been made
// over, and a barrier since prepare(). Whoever reads what other threads kept needs a barrier of its own
// first.
template <int kThreads, class Scores, class Output>
__device__ QSA_PASS void select_first(Scores& scores, uint32_t keep, Workspace& shared, Output& output) {
  count_coarse(scores, shared, output);
  output.finish_overlap();
  const Threshold threshold = find_threshold<kThreads>(shared, keep);
  Window window = window_of(threshold, keep, scores);
  while (window.population > kRankLimit) {
    if (window.lowest != window.highest) {
      draw_in<kThreads>(window, scores, shared);
    }
    narrow<kThreads>(window, scores, shared);
  }
  collect(window, scores, shared, output);
  __syncthreads();  // the list is complete before any of it is ranked
  rank_candidates<kThreads>(shared, window.need, output);
}

}  // namespace select
}  // namespace qsa
