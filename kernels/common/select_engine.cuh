// Selects the `keep` first elements of a row of finite scores, in the order of float_order.cuh, with one CTA
// or with a cluster of CTAs that hold consecutive parts of the row.
//
// How. A histogram of 2,048 coarse bins finds the bin that the last kept element lies in. What lies above
// that bin is kept; what lies in it is ranked exactly, element against element, when it is at most kRankLimit
// elements. Otherwise the bin is narrowed first: drawn in to the least and the greatest score in it (the
// lowest bin to one side of zero) and, if these differ, divided by a histogram of that range. A histogram
// divides what is left by 2,048, so three end it, whatever the row holds: no buffer limits how many elements
// a bin may have. Where all scores left are equal, each CTA learns how many of them it keeps and counts its
// own in the order of their index.
//
// The caller's parts are two template arguments:
//   Scores   like ScoreTiles
//   Output   keep(index)              keeps one element; called by any one thread
//            keep_above(scores, bar)  keeps the elements of the tile held whose score is above `bar`; once
//            for
//                                     every tile, before any other of its elements is kept
//            keep_marked(scores, marks)  keeps the elements of the tile held that have marks
//            overlap()                once a vector in the first pass: work to hide behind the histogram
//            finish_overlap()         ends that work; what it wrote is ordered before every element kept
//            settle()                 once, after a barrier behind finish_overlap() and every keep_above()
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

__device__ __forceinline__ Window window_of(const Threshold& threshold, uint32_t need) {
  const float lowest = threshold.bin == 0 ? kLowestFinite : coarse_floor(threshold.bin);
  const float highest = threshold.bin == kBins - 1 ? kLargestFinite : coarse_ceiling(threshold.bin);
  return Window{lowest, highest, need - threshold.above, threshold.population};
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
      if (window.holds(score[e]) && scores.has(first_index + e)) {
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
  window.population = all.population;
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
  scores.for_each_vector([&](const float (&score)[kVectorScores], uint32_t) {
    QSA_UNROLL
    for (uint32_t e = 0; e < kVectorScores; ++e) {
      // As in the first pass, what the row does not have can only raise a population.
      if (window.holds(score[e])) {
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

// Last pass: keeps what stands before the window and lists what lies inside, in any order.
template <class Team, class Scores, class Output>
__device__ QSA_PASS void collect(Team& team, const Window& window, Scores& scores, Output& output) {
  // One word alone. Were its index known to be zero, the compiler would have a warp add together first, which
  // takes longer than the few additions that there are.
  const SharedWords listed(&team.shared.listed, 0);
  scores.for_each_tile([&] {
    output.keep_above(scores, window.highest);
    float score = 0.0f;
    uint32_t marks = scores.marks_within(window.lowest, window.highest, score);
    // Few threads hold any, and fewer hold two.
    QSA_ROLLED
    for (bool is_greatest = true; marks != 0; is_greatest = false) {
      const uint32_t mark = take_mark(marks);
      const uint32_t index = scores.index_of_mark(mark);
      // Before its score is read: what the row does not have may be no memory either.
      if (!scores.has(index)) {
        continue;
      }
      if (!is_greatest) {
        score = scores.score_of_mark(mark);
      }
      team.list(listed.take(index >> 31), score, index);
    }
  });
}

// Of the ties that a tile holds, those among the first: the order of a tile's elements is that of its
// vectors, then threads.
template <int kThreads, class Scores>
struct TieRanking {
  static constexpr uint32_t kWords = (Scores::kHeldVectors + 1) / 2;
  static_assert(kWords <= kTieWords && kThreads * kVectorScores < 1 << 16,
                "two counts a word, of all threads");
  uint32_t marks;
  uint32_t before[kWords];  // ties of the same vector in the threads below
  uint32_t total[kWords];   // in all threads
  uint32_t count;           // of the tile

  // A barrier must follow before the workspace is used again.
  __device__ __forceinline__ TieRanking(uint32_t held, Workspace& shared) : marks(held), count(0) {
    constexpr uint32_t kWarps = kThreads / kWarpLanes;
    const uint32_t lane = lane_index();
    QSA_UNROLL
    for (uint32_t w = 0; w < kWords; ++w) {
      const uint32_t own = ties_of(2 * w) | ties_of(2 * w + 1) << 16;
      uint32_t up_to_here = own;
      QSA_UNROLL
      for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
        const uint32_t lower = __shfl_up_sync(kAllLanes, up_to_here, step);
        up_to_here += lane >= step ? lower : 0u;
      }
      before[w] = up_to_here - own;
      if (lane == kWarpLanes - 1) {
        shared.warp_ties[w][warp_index()] = up_to_here;
      }
    }
    __syncthreads();  // every warp has told its ties
    QSA_UNROLL
    for (uint32_t w = 0; w < kWords; ++w) {
      const uint32_t ties = lane < kWarps ? shared.warp_ties[w][lane] : 0u;
      before[w] += __reduce_add_sync(kAllLanes, lane < warp_index() ? ties : 0u);
      total[w] = __reduce_add_sync(kAllLanes, ties);
      count += (total[w] & 0xffffu) + (total[w] >> 16);
    }
  }

  // Marks of those that have fewer than `need` ties before them, given how many lie in lower tiles.
  __device__ __forceinline__ uint32_t first_ones(uint32_t lower, uint32_t need) const {
    uint32_t kept = 0;
    QSA_UNROLL
    for (uint32_t v = 0; v < Scores::kHeldVectors; ++v) {
      uint32_t rank = lower + (before[v / 2] >> (16 * (v % 2)) & 0xffffu);
      QSA_UNROLL
      for (uint32_t e = 0; e < kVectorScores; ++e) {
        const uint32_t mark = 1u << (kVectorScores * v + kVectorScores - 1u - e);
        if ((marks & mark) != 0) {
          kept |= rank < need ? mark : 0u;
          ++rank;
        }
      }
      lower += total[v / 2] >> (16 * (v % 2)) & 0xffffu;
    }
    return kept;
  }

 private:
  __device__ __forceinline__ uint32_t ties_of(uint32_t vector) const {
    const uint32_t own = vector < Scores::kHeldVectors ? marks >> (kVectorScores * vector) & 0xfu : 0u;
    return static_cast<uint32_t>(__popc(own));
  }
};

// The elements of a window of equal scores: each CTA decides about its own. [select.ties-ascending]
template <class Team, class Scores, class Output>
__device__ QSA_PASS void keep_ties(Team& team, const Window& window, Scores& scores, Output& output) {
  const bool downwards = scores.is_next_downwards();
  uint32_t passed = 0;
  scores.for_each_tile([&] {
    output.keep_above(scores, window.highest);
    float unused = 0.0f;
    const uint32_t held = scores.marks_within(window.lowest, window.highest, unused) & scores.marks_in_row();
    const TieRanking<Team::kTeamThreads, Scores> ties(held, team.shared);
    passed += ties.count;
    const uint32_t lower = downwards ? window.population - passed : passed - ties.count;
    output.keep_marked(scores, ties.first_ones(lower, window.need));
    __syncthreads();  // the counts of this tile are read before those of the next are written
  });
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
  Window window = window_of(threshold, keep);
  bool is_tied = false;
  while (is_rare(window.population > kRankLimit)) {
    if (window.lowest < 0.0f && window.highest > 0.0f) {
      take_side(team, window, scores);
    } else {
      draw_in(team, window, scores);
    }
    is_tied = window.lowest == window.highest;
    if (is_tied) {
      team.take_own_share(window);
      break;
    }
    narrow_scores(team, window, scores);
    // What the row does not have counts as the lowest score there is.
    is_tied = window.lowest == window.highest && window.lowest > kLowestFinite;
    if (is_tied) {
      team.take_own_share_of_bin(window);
      break;
    }
  }
  if (is_rare(is_tied)) {
    keep_ties(team, window, scores, output);
    output.settle();
    return;
  }
  collect(team, window, scores, output);
  team.keep_listed(window, output);
}

}  // namespace select
}  // namespace qsa
