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

// At most this many elements are ranked against each other.
constexpr uint32_t kRankLimit = 128;

// A lane compares with this many of them at a time, whether they are listed or not.
constexpr uint32_t kRankStep = 4;
constexpr uint32_t kMostSharing = 8;  // lanes that share an element
constexpr uint32_t kKeys = kRankLimit + kRankStep * kMostSharing;

// The coarse bins: 64 an octave from 2^-18 up to 2^14, by sign, exponent and six bits of the fraction of the
// float as it is. The lowest bin also takes everything below (zeros and negative scores), the highest
// everything above. Any range gives the exact result; this one puts few scores of order 1 in a bin.
constexpr int kCoarseShift = 17;
constexpr int kCoarseFirst = (127 - 18) << (23 - kCoarseShift);
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
};

// What was found in a window: the scores as ordered_bits(), how many elements, and how many others are above.
struct alignas(16) Contents {
  uint32_t least;
  uint32_t greatest;
  uint32_t above;
  uint32_t population;
};

// Shared memory of one CTA. The bins are zero except between a counting pass and the search that follows it.
struct alignas(16) Workspace {
  uint32_t bins[kBins];
  uint32_t warp_total[kMostWarps];
  Contents warp_contents[kMostWarps];
  Threshold threshold;
  uint32_t listed;
  uint64_t key[kKeys];  // kNoKey where nothing is listed
};

// Where the last kept element is known to lie: a range of scores, both ends included, and a range of indices
// that is narrower than the CTA's part of the row only when `lowest` equals `highest`.
struct Window {
  float lowest;
  float highest;
  uint32_t first;
  uint32_t end;
  uint32_t need;        // how many of the elements inside are kept
  uint32_t population;  // how many elements are inside, or more

  __device__ __forceinline__ bool spans(uint32_t index) const { return index - first < end - first; }
  __device__ __forceinline__ bool holds(float score) const { return score >= lowest && score <= highest; }
};

__device__ __forceinline__ uint32_t lane_index() { return threadIdx.x % kWarpLanes; }
__device__ __forceinline__ uint32_t warp_index() { return threadIdx.x / kWarpLanes; }

// An element as one integer: whichever stands earlier in the order has the greater one. kNoKey is below all.
constexpr uint64_t kNoKey = 0;
__device__ __forceinline__ uint64_t key_of(float score, uint32_t index) {
  return (static_cast<uint64_t>(ordered_bits(score)) << 32) | (~index & 0xffffffffu);
}
__device__ __forceinline__ uint32_t index_of_key(uint64_t key) { return ~static_cast<uint32_t>(key); }

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
  for (uint32_t i = threadIdx.x; i < kBins / 4; i += kThreads) {
    reinterpret_cast<uint4*>(shared.bins)[i] = make_uint4(0, 0, 0, 0);
  }
  QSA_UNROLL
  for (uint32_t i = threadIdx.x; i < kKeys; i += kThreads) {
    shared.key[i] = kNoKey;
  }
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

// The neighbouring bins that a thread looks through, added up over histograms.
template <int kThreads>
struct OwnBins {
  static constexpr uint32_t kOwn = kBins / kThreads;
  static_assert(kOwn * kThreads == kBins, "every thread owns equally many bins");
  uint32_t population[kOwn];

  __device__ __forceinline__ static uint32_t lowest() { return threadIdx.x * kOwn; }

  __device__ __forceinline__ OwnBins() {
    QSA_UNROLL
    for (uint32_t i = 0; i < kOwn; ++i) {
      population[i] = 0;
    }
  }

  __device__ __forceinline__ void add(const uint32_t* bins) {
    constexpr uint32_t kWide = kOwn < 4 ? kOwn : 4;
    struct alignas(4 * kWide) Wide {
      uint32_t bin[kWide];
    };
    QSA_UNROLL
    for (uint32_t i = 0; i < kOwn; i += kWide) {
      const Wide wide = *reinterpret_cast<const Wide*>(bins + lowest() + i);
      QSA_UNROLL
      for (uint32_t k = 0; k < kWide; ++k) {
        population[i + k] += wide.bin[k];
      }
    }
  }

  // Finds the bin that holds the need-th element from the top, 1 <= need <= elements counted.
  __device__ __forceinline__ Threshold find(uint32_t need, Workspace& shared) const {
    uint32_t total = 0;
    QSA_UNROLL
    for (uint32_t i = 0; i < kOwn; ++i) {
      total += population[i];
    }
    uint32_t above = sum_above<kThreads>(total, shared);
    if (above < need && need <= above + total) {
      // From the highest bin down; the last bin to begin with fewer than `need` elements above it is the one.
      QSA_UNROLL
      for (uint32_t i = kOwn; i-- > 0;) {
        if (above < need) {
          shared.threshold = Threshold{lowest() + i, above, population[i]};
        }
        above += population[i];
      }
    }
    __syncthreads();  // the threshold is written before any thread goes on
    return shared.threshold;
  }
};

// Finds the bin that holds the need-th element from the top, 1 <= need <= elements counted; clears the bins.
template <int kThreads>
__device__ QSA_PASS Threshold find_threshold(Workspace& shared, uint32_t need) {
  __syncthreads();  // every element is counted before any bin is read
  OwnBins<kThreads> own;
  own.add(shared.bins);
  // Only their owner reads the bins, so it may clear them for the next pass, two barriers from here.
  QSA_UNROLL
  for (uint32_t i = 0; i < OwnBins<kThreads>::kOwn; ++i) {
    shared.bins[own.lowest() + i] = 0;
  }
  return own.find(need, shared);
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
// between, which find_threshold() has.
template <int kThreads>
__device__ QSA_PASS Contents combine_threads(const Contents& own, Workspace& shared) {
  const Contents warp = combine_lanes(own);
  if (lane_index() == 0) {
    shared.warp_contents[warp_index()] = warp;
  }
  __syncthreads();  // every warp's contents are written before any warp combines them
  return combine_found(shared.warp_contents, kThreads / kWarpLanes);
}

// A row held by one CTA.
template <int kThreads>
struct LocalTeam {
  static constexpr int kTeamThreads = kThreads;
  Workspace& shared;

  __device__ __forceinline__ Threshold find_threshold(uint32_t need) {
    return select::find_threshold<kThreads>(shared, need);
  }
  __device__ __forceinline__ Contents combine(const Contents& own) {
    return combine_threads<kThreads>(own, shared);
  }
  __device__ __forceinline__ void list(float score, uint32_t index) {
    shared.key[atomicAdd(&shared.listed, 1u)] = key_of(score, index);
  }
  // How many elements are listed, once all are.
  __device__ __forceinline__ uint32_t complete_list() {
    __syncthreads();  // the list is complete before any of it is ranked
    return shared.listed;
  }
  __device__ __forceinline__ const uint64_t* listed_keys() const { return shared.key; }
  template <class Output>
  __device__ __forceinline__ void keep(uint32_t index, Output& output) const {
    output.keep(index);
  }
  __device__ __forceinline__ void take_own_share(Window&) {}
};

}  // namespace select
}  // namespace qsa
