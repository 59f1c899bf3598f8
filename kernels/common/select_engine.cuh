// Selects the `keep` first elements of a row of finite scores, in the order of float_order.cuh, with one CTA
// or with a cluster of CTAs that hold consecutive parts of the row.
//
// How. A histogram of 2,048 coarse bins finds the bin that the last kept element lies in. What lies above
// that bin is kept; what lies in it is ranked exactly, element against element, when it is at most kRankLimit
// elements. Otherwise the bin is narrowed first: drawn in to the least and the greatest score in it (the
// lowest bin to one side of zero) and, if these differ, divided by a histogram of that range. A histogram
// divides what is left by 2,048, so three end it, whatever the row holds: no buffer limits how many elements
// a bin may have. Where all scores left are equal, each CTA learns how many of them it keeps and divides its
// own by their index.
//
// The caller's parts are two template arguments:
//   Scores   like ScoreTiles
//   Output   keep(index)              keeps one element; called by any one thread
//            keep_above(scores, bar)  keeps the elements of the tile held whose score is above `bar`
//            overlap()                once a vector in the first pass: work to hide behind the histogram
//            finish_overlap()         ends that work; what it wrote is ordered before every element kept
// All but keep() and overlap() are called by all threads of the CTA together. Every kept element is kept
// once, in any order, by the CTA that holds it.
//
// Loops that hold a barrier or a warp collective end by values that every thread reads from the same shared
// words between the same two barriers, so all threads leave them together. [select.every-thread-agrees]
//
// A Team is what differs between one CTA and a cluster: LocalTeam in select_list.cuh, and ClusterTeam in
// select_cluster.cuh.
#pragma once

#include <cstdint>

#include "common/float_order.cuh"
#include "common/portability.cuh"
#include "common/select_list.cuh"
#include "common/select_tiles.cuh"
#include "common/select_workspace.cuh"

namespace qsa {
namespace select {

// First pass: counts every score of the row, and traps if one is not finite.
template <class Scores, class Output>
__device__ QSA_PASS void count_coarse(Scores& scores, Workspace& shared, Output& output) {
  const SharedWords bins(shared.bins, kCoarseFirst);
  float probe = 0.0f;
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t) {
    // First, because the scores are still on their way.
    output.overlap();
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      probe = finite_probe(score[e], probe);
      // Counted without a test: an element outside the row falls in the lowest bin, where it can only raise
      // the population, never hide an element of the row.
      bins.increment(coarse_bin(score[e]));
    }
  });
  if (met_non_finite(probe)) {
    QSA_TRAP("a score inside the row's prefix is not finite");
  }
}

__device__ __forceinline__ Window window_of(const Threshold& threshold, uint32_t need, uint32_t count) {
  Window window;
  window.lowest = threshold.bin == 0 ? kLowestFinite : coarse_floor(threshold.bin);
  window.highest = threshold.bin == kBins - 1 ? kLargestFinite : coarse_ceiling(threshold.bin);
  window.first = 0;
  window.end = count;
  window.need = need - threshold.above;
  window.population = threshold.population;
  return window;
}

// What a thread holds of a window.
template <class Scores>
__device__ QSA_PASS Contents contents_held(const Window& window, Scores& scores) {
  float least = kInfinity;
  float greatest = -kInfinity;
  uint32_t population = 0;
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t first_index) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      if (window.holds(score[e]) && window.spans(first_index + e)) {
        least = fminf(least, score[e]);
        greatest = fmaxf(greatest, score[e]);
        population += 1u;
      }
    }
  });
  return Contents{ordered_bits(least), ordered_bits(greatest), 0, population};
}

// Draws the window in to the least and the greatest score in it.
template <class Team, class Scores>
__device__ QSA_PASS void draw_in(Team& team, Window& window, Scores& scores) {
  const Contents all = team.combine(contents_held(window, scores));
  window.lowest = from_ordered_bits(all.least);
  window.highest = from_ordered_bits(all.greatest);
}

// What a thread holds of the zeros of a window on both sides of zero, and above them.
template <class Scores>
__device__ QSA_PASS Contents zeros_held(const Window& window, Scores& scores) {
  uint32_t positives = 0;
  uint32_t zeros = 0;
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      positives += score[e] > 0.0f && score[e] <= window.highest ? 1u : 0u;
      zeros += score[e] == 0.0f ? 1u : 0u;
    }
  });
  return Contents{kOrderedZero, kOrderedZero, positives, zeros};
}

// Reduces a window on both sides of zero to its positive scores, its zeros or its negative ones. Zeros are
// the ties that real rows have. [select.zeros-equal]
template <class Team, class Scores>
__device__ QSA_PASS void take_side(Team& team, Window& window, Scores& scores) {
  const Contents all = team.combine(zeros_held(window, scores));
  const uint32_t positives = all.above;
  const uint32_t zeros = all.population;
  if (window.need <= positives) {
    window.lowest = kLeastPositive;
    window.population = positives;
  } else if (window.need <= positives + zeros) {
    window.lowest = 0.0f;
    window.highest = 0.0f;
    window.need -= positives;
    window.population = zeros;
  } else {
    window.highest = -kLeastPositive;
    window.need -= positives + zeros;
    window.population -= positives + zeros;
  }
}

// Narrows a window to one of 2,048 equal parts of its range of scores.
template <class Team, class Scores>
__device__ QSA_PASS void narrow_scores(Team& team, Window& window, Scores& scores) {
  const uint32_t lowest = ordered_bits(window.lowest);
  const uint32_t highest = ordered_bits(window.highest);
  const uint32_t shift = bin_shift(highest - lowest);
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t first_index) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      if (window.holds(score[e]) && window.spans(first_index + e)) {
        atomicAdd(&team.shared.bins[(ordered_bits(score[e]) - lowest) >> shift], 1u);
      }
    }
  });
  const Threshold threshold = team.find_threshold(window.need);
  const uint32_t least = lowest + (threshold.bin << shift);
  // The last part may be cut short, and its full width would wrap.
  const uint32_t greatest = least + min(highest - least, (1u << shift) - 1u);
  window.lowest = from_ordered_bits(least);
  window.highest = from_ordered_bits(greatest);
  window.need -= threshold.above;
  window.population = threshold.population;
}

// Narrows a window of equal scores to one of 2,048 equal parts of its range of indices. Bins run against the
// index, so that what stands before lies in the bins above.
template <int kThreads, class Scores>
__device__ QSA_PASS void narrow_indices(Window& window, Scores& scores, Workspace& shared) {
  const uint32_t last = ~window.first;
  const uint32_t least = ~(window.end - 1u);
  const uint32_t shift = bin_shift(last - least);
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t first_index) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      const uint32_t index = first_index + e;
      if (score[e] == window.lowest && window.spans(index)) {
        atomicAdd(&shared.bins[(~index - least) >> shift], 1u);
      }
    }
  });
  const Threshold threshold = find_threshold<kThreads>(shared, window.need);
  const uint32_t lowest = least + (threshold.bin << shift);
  const uint32_t highest = lowest + min(last - lowest, (1u << shift) - 1u);
  window.first = ~highest;
  window.end = ~lowest + 1u;
  window.need -= threshold.above;
  window.population = threshold.population;
}

// Last pass: keeps what stands before the window and lists what lies inside, in any order.
template <class Team, class Scores, class Output>
__device__ QSA_PASS void collect(Team& team, const Window& window, Scores& scores, Output& output) {
  scores.for_each_tile([&] {
    output.keep_above(scores, window.highest);
    float score = 0.0f;
    uint32_t marks = scores.marks_within(window.lowest, window.highest, score);
    if (window.lowest == window.highest) {
      // All ties are marked: as many as the row holds.
      marks &= scores.marks_before(window.end) & ~scores.marks_before(window.first);
    }
    // Few threads hold any, and fewer hold two.
    QSA_ROLLED
    for (bool is_greatest = true; marks != 0; is_greatest = false) {
      const uint32_t mark = take_mark(marks);
      const uint32_t index = scores.index_of_mark(mark);
      if (!is_greatest) {
        score = scores.score_of_mark(mark);
      }
      if (window.spans(index)) {
        team.list(atomicAdd(&team.shared.listed, 1u), score, index);
      }
    }
  });
}

// Keeps what stands before a window of equal scores by its index alone. [select.ties-ascending]
template <class Scores, class Output>
__device__ QSA_PASS void keep_preceding(const Window& window, Scores& scores, Output& output) {
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t first_index) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      if (score[e] == window.highest && first_index + e < window.first) {
        output.keep(first_index + e);
      }
    }
  });
}

// The elements of a window of equal scores: each CTA decides about its own.
template <class Team, class Scores, class Output>
__device__ QSA_PASS void keep_ties(Team& team, Window& window, Scores& scores, Output& output) {
  team.take_own_share(window);
  auto alone = team.alone();
  while (window.population > kRankLimit) {
    narrow_indices<Team::kTeamThreads>(window, scores, team.shared);
    clear_bins<Team::kTeamThreads>(team.shared);
    __syncthreads();  // the bins are zero before anything is counted
  }
  collect(alone, window, scores, output);
  if (window.first > 0) {
    keep_preceding(window, scores, output);
  }
  alone.keep_listed(window.need, output);
}

// Keeps the `keep` first elements. Requires 1 <= keep <= the elements of the row, scores that no pass has
// been made over, and a barrier since prepare(). Whoever reads what other threads kept needs a barrier of its
// own first.
template <class Team, class Scores, class Output>
__device__ QSA_PASS void select_first(Team& team, Scores& scores, uint32_t keep, Output& output) {
  count_coarse(scores, team.shared, output);
  team.meet();
  output.finish_overlap();
  const Threshold threshold = team.find_threshold(keep);
  Window window = window_of(threshold, keep, scores.count());
  while (window.population > kRankLimit) {
    if (window.lowest < 0.0f && window.highest > 0.0f) {
      take_side(team, window, scores);
    } else {
      draw_in(team, window, scores);
    }
    if (window.lowest == window.highest) {
      keep_ties(team, window, scores, output);
      return;
    }
    if (window.population > kRankLimit) {
      narrow_scores(team, window, scores);
    }
  }
  collect(team, window, scores, output);
  team.keep_listed(window.need, output);
}

}  // namespace select
}  // namespace qsa
