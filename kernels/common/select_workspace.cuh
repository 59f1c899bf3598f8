// What the selection of one CTA works in: a histogram, the search for the bin where the cut lies, the window
// that the search narrows, and the list of what is ranked.
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

// Neighbouring bins are added up in groups of a warp's lanes.
constexpr uint32_t kGroups = kBins / kWarpLanes;

// At most this many elements are ranked against each other.
constexpr uint32_t kRankLimit = 128;

// The coarse bins: 128 an octave from 2^-8 up to 2^8, by sign, exponent and seven bits of the fraction of the
// float as it is. The lowest bin also takes everything below (zeros and negative scores), the highest
// everything above. Any range gives the exact result; this one puts few scores of order 1 in a bin.
constexpr int kCoarseShift = 16;
constexpr int kCoarseFirst = (127 - 8) << (23 - kCoarseShift);
constexpr int kCoarseLast = kCoarseFirst + static_cast<int>(kBins) - 1;

// Parts of a row that CTAs share are multiples of this: a vector of scores, and 16 bytes of a mask.
constexpr int64_t kPartUnit = 4;

constexpr uint32_t kOrderedZero = 0x80000000u;
constexpr uint32_t kNoneLeast = 0xffffffffu;

// The bin of a histogram that holds the element sought.
struct Threshold {
  uint32_t bin;
  uint32_t above;       // elements in higher bins
  uint32_t population;  // elements in this bin
  uint32_t before;      // of these, in the CTAs below
};

// What was found in a window: the scores as ordered_bits(), how many elements, and how many others are above.
struct alignas(16) Contents {
  uint32_t least;
  uint32_t greatest;
  uint32_t above;
  uint32_t population;
};

// Ties that a warp holds are counted by vector, two counts a word.
constexpr uint32_t kTieWords = 4;

// Shared memory of one CTA. The bins are zero when a counting pass begins.
struct alignas(16) Workspace {
  uint32_t bins[kBins];
  uint32_t warp_total[kMostWarps];
  Contents warp_contents[kMostWarps];
  uint32_t warp_ties[kTieWords][kMostWarps];
  Threshold threshold;
  uint32_t listed;
};

// Where the last kept element is known to lie: a range of scores, both ends included.
struct Window {
  float lowest;
  float highest;
  uint32_t need;        // how many of the elements inside are kept
  uint32_t population;  // how many elements are inside, or more

  __device__ __forceinline__ bool holds(float score) const { return score >= lowest && score <= highest; }
};

__device__ __forceinline__ uint32_t lane_index() { return threadIdx.x % kWarpLanes; }
__device__ __forceinline__ uint32_t warp_index() { return threadIdx.x / kWarpLanes; }

// How far to shift a range of `span` + 1 values right for it to fit the bins.
__device__ __forceinline__ uint32_t bin_shift(uint32_t span) {
  const uint32_t bits = 32u - static_cast<uint32_t>(__clz(static_cast<int>(span)));
  return bits > kBinBits ? bits - kBinBits : 0u;
}

// The bin of a score, counted from kCoarseFirst.
__device__ __forceinline__ uint32_t coarse_bin(float score) {
  const int32_t bits = __float_as_int(score) >> kCoarseShift;
  return static_cast<uint32_t>(min(max(bits, kCoarseFirst), kCoarseLast));
}

// The least score of a coarse bin.
__device__ __forceinline__ float coarse_floor(uint32_t bin) {
  return __uint_as_float((static_cast<uint32_t>(kCoarseFirst) + bin) << kCoarseShift);
}

// The greatest score of a coarse bin.
__device__ __forceinline__ float coarse_ceiling(uint32_t bin) {
  return __uint_as_float(__float_as_uint(coarse_floor(bin + 1)) - 1u);
}

template <int kThreads>
__device__ QSA_PASS void clear_bins(Workspace& shared) {
  QSA_UNROLL
  for (uint32_t i = threadIdx.x; i < kBins / 4; i += kThreads) {
    reinterpret_cast<uint4*>(shared.bins)[i] = make_uint4(0, 0, 0, 0);
  }
}

// Makes the workspace ready. A barrier must follow before select_first().
template <int kThreads>
__device__ QSA_PASS void prepare(Workspace& shared) {
  clear_bins<kThreads>(shared);
  if (threadIdx.x == 0) {
    shared.listed = 0;
  }
}

// The sum of `value` over the lanes of the warp from the caller's up.
__device__ __forceinline__ uint32_t sum_from_lane_up(uint32_t value) {
  uint32_t sum = value;
  QSA_UNROLL
  for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
    sum = add_from_lane_above(sum, step);
  }
  return sum;
}

// The sum of `value` over all threads above the caller.
template <int kThreads>
__device__ QSA_PASS uint32_t sum_above(uint32_t value, Workspace& shared) {
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  static_assert(kThreads % kWarpLanes == 0 && kWarps <= kMostWarps, "whole warps, one total a lane");
  const uint32_t lane = lane_index();
  const uint32_t warp = warp_index();
  const uint32_t from_here_up = sum_from_lane_up(value);
  if (lane == 0) {
    shared.warp_total[warp] = from_here_up;
  }
  __syncthreads();  // every warp's total is written before any warp adds up those above it
  const bool is_above = lane > warp && lane < kWarps;
  const uint32_t higher_warps = __reduce_add_sync(kAllLanes, is_above ? shared.warp_total[lane] : 0u);
  return higher_warps + from_here_up - value;
}

// The sum over all threads of what sum_above() was last given.
template <int kThreads>
__device__ __forceinline__ uint32_t sum_all(const Workspace& shared) {
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  const uint32_t lane = lane_index();
  return __reduce_add_sync(kAllLanes, lane < kWarps ? shared.warp_total[lane] : 0u);
}

// Where among 32 counts, one a lane, the need-th element from the top lies, 1 <= need <= their sum.
struct Place {
  uint32_t lane;
  uint32_t above;  // elements in higher lanes
  uint32_t population;
};

// All lanes of the warp call it.
__device__ __forceinline__ Place place_of(uint32_t population, uint32_t need) {
  const uint32_t above = sum_from_lane_up(population) - population;
  const uint32_t begins = __ballot_sync(kAllLanes, above < need);
  // Going down, the last lane to begin with fewer than `need` elements above it.
  const int lane = __ffs(static_cast<int>(begins)) - 1;
  return Place{static_cast<uint32_t>(lane), __shfl_sync(kAllLanes, above, lane),
               __shfl_sync(kAllLanes, population, lane)};
}

// The groups of bins that a warp adds up.
template <int kThreads>
struct WarpGroups {
  static constexpr uint32_t kWarps = kThreads / kWarpLanes;
  static constexpr uint32_t kOwn = kGroups / kWarps;
  static_assert(kThreads % kWarpLanes == 0 && kOwn * kWarps == kGroups, "every warp has equally many");
  uint32_t population[kOwn];  // of this lane's bin in every group
  uint32_t total[kOwn];

  __device__ __forceinline__ static uint32_t first() { return warp_index() * kOwn; }

  __device__ __forceinline__ explicit WarpGroups(const uint32_t* bins) {
    QSA_UNROLL
    for (uint32_t i = 0; i < kOwn; ++i) {
      population[i] = bins[(first() + i) * kWarpLanes + lane_index()];
    }
    QSA_UNROLL
    for (uint32_t i = 0; i < kOwn; ++i) {
      total[i] = __reduce_add_sync(kAllLanes, population[i]);
    }
  }
};

// Finds the bin that holds the need-th element from the top, 1 <= need <= elements counted.
template <int kThreads>
__device__ QSA_PASS Threshold find_threshold(Workspace& shared, uint32_t need) {
  constexpr uint32_t kOwn = kBins / kThreads;
  static_assert(kOwn * kThreads == kBins, "every thread owns equally many bins");
  constexpr uint32_t kWide = kOwn < 4 ? kOwn : 4;
  struct alignas(4 * kWide) Wide {
    uint32_t bin[kWide];
  };
  __syncthreads();  // every element is counted before any bin is read
  const uint32_t lowest = threadIdx.x * kOwn;
  uint32_t own[kOwn];
  uint32_t total = 0;
  QSA_UNROLL
  for (uint32_t i = 0; i < kOwn; i += kWide) {
    const Wide wide = *reinterpret_cast<const Wide*>(shared.bins + lowest + i);
    QSA_UNROLL
    for (uint32_t k = 0; k < kWide; ++k) {
      own[i + k] = wide.bin[k];
      total += wide.bin[k];
    }
  }
  uint32_t above = sum_above<kThreads>(total, shared);
  if (above < need && need <= above + total) {
    // From the highest bin down; the last bin to begin with fewer than `need` elements above it is the one.
    Threshold found{0, 0, 0, 0};
    QSA_UNROLL
    for (uint32_t i = kOwn; i-- > 0;) {
      if (above < need) {
        found = Threshold{lowest + i, above, own[i], 0};
      }
      above += own[i];
    }
    shared.threshold = found;
  }
  __syncthreads();  // the threshold is written before any thread goes on
  return shared.threshold;
}

// What the lanes of a warp found, together.
__device__ __forceinline__ Contents combine_lanes(const Contents& own) {
  Contents all;
  all.least = __reduce_min_sync(kAllLanes, own.least);
  all.greatest = __reduce_max_sync(kAllLanes, own.greatest);
  all.above = __reduce_add_sync(kAllLanes, own.above);
  all.population = __reduce_add_sync(kAllLanes, own.population);
  return all;
}

// What `count` <= 32 warps or CTAs found, together. All lanes of a warp call it.
__device__ __forceinline__ Contents combine_found(const Contents* found, uint32_t count) {
  Contents own{kNoneLeast, 0, 0, 0};
  if (lane_index() < count) {
    own = found[lane_index()];
  }
  return combine_lanes(own);
}

// What the threads of the CTA found, together. The caller's next write of `warp_contents` needs a barrier
// between, which every histogram has.
template <int kThreads>
__device__ QSA_PASS Contents combine_threads(const Contents& own, Workspace& shared) {
  const Contents warp = combine_lanes(own);
  if (lane_index() == 0) {
    shared.warp_contents[warp_index()] = warp;
  }
  __syncthreads();  // every warp's contents are written before any warp combines them
  return combine_found(shared.warp_contents, kThreads / kWarpLanes);
}

}  // namespace select
}  // namespace qsa
