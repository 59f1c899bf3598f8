// The elements that a histogram cannot tell apart are listed and ranked against each other: at most
// kRankLimit of a row. LocalTeam is the selection engine's Team for a row held by one CTA.
#pragma once

#include <cstdint>

#include "common/float_order.cuh"
#include "common/portability.cuh"
#include "common/select_workspace.cuh"

namespace qsa {
namespace select {

// An element as one integer: whichever stands earlier in the order has the greater one. kNoKey is below all.
constexpr uint64_t kNoKey = 0;
__device__ __forceinline__ uint64_t key_of(float score, uint32_t index) {
  return (static_cast<uint64_t>(ordered_bits(score)) << 32) | (~index & 0xffffffffu);
}
__device__ __forceinline__ uint32_t index_of_key(uint64_t key) { return ~static_cast<uint32_t>(key); }

// What kCtas CTAs listed, each from the front of its own list; kNoKey where nothing is listed.
template <int kCtas>
struct alignas(16) Lists {
  uint64_t key[kCtas][kRankLimit];
};

// A barrier must follow before anything is listed.
template <int kThreads, int kCtas>
__device__ QSA_PASS void clear_lists(Lists<kCtas>& lists) {
  static_assert(kNoKey == 0, "cleared as words");
  uint4* const words = reinterpret_cast<uint4*>(&lists);
  QSA_UNROLL
  for (uint32_t i = threadIdx.x; i < sizeof(lists) / sizeof(uint4); i += kThreads) {
    words[i] = make_uint4(0, 0, 0, 0);
  }
}

// Ranks the elements of list `own` from place `first` on, one a warp and then kWarps further, kRounds of
// them, against what kHeld lanes' worth of every list holds from place `base` on. All lanes call it.
template <int kThreads, int kCtas, uint32_t kRounds, uint32_t kHeld>
struct Ranking {
  static constexpr uint32_t kWarps = kThreads / kWarpLanes;
  static constexpr uint32_t kLanes = kWarpLanes / kCtas;  // lanes that share a list
  static constexpr uint32_t kOthers = kHeld * kLanes;     // elements of a list looked at together
  static_assert(kOthers <= kRankLimit && kRankLimit % kOthers == 0, "a list is whole turns");
  uint64_t key[kRounds];
  uint32_t rank[kRounds];

  __device__ __forceinline__ Ranking(const uint64_t* own, uint32_t first) {
    QSA_UNROLL
    for (uint32_t r = 0; r < kRounds; ++r) {
      const uint32_t place = first + r * kWarps;
      key[r] = place < kRankLimit ? own[place] : kNoKey;
      rank[r] = 0;
    }
  }

  // Counts what stands before. Returns whether all lists end among these.
  __device__ __forceinline__ bool compare(const Lists<kCtas>& lists, uint32_t base) {
    const uint32_t lane = lane_index();
    uint64_t other[kHeld];
    QSA_UNROLL
    for (uint32_t i = 0; i < kHeld; ++i) {
      other[i] = lists.key[lane / kLanes][base + i * kLanes + lane % kLanes];
    }
    QSA_UNROLL
    for (uint32_t i = 0; i < kHeld; ++i) {
      QSA_UNROLL
      for (uint32_t r = 0; r < kRounds; ++r) {
        rank[r] += static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, other[i] > key[r])));
      }
    }
    // A list is full from the front, so where every list's last is none, nothing follows.
    const bool is_last = lane % kLanes == kLanes - 1;
    return __all_sync(kAllLanes, !is_last || other[kHeld - 1] == kNoKey);
  }

  // Lane r keeps the r-th.
  template <class Keep>
  __device__ __forceinline__ void keep_first(uint32_t need, Keep keep) const {
    uint64_t own_key = key[0];
    uint32_t own_rank = rank[0];
    QSA_UNROLL
    for (uint32_t r = 1; r < kRounds; ++r) {
      own_key = lane_index() == r ? key[r] : own_key;
      own_rank = lane_index() == r ? rank[r] : own_rank;
    }
    if (lane_index() < kRounds && own_key != kNoKey && own_rank < need) {
      keep(index_of_key(own_key));
    }
  }
};

// Calls keep(index) for those of the `listed` elements in list `own` that are among the `need` first of all
// lists.
template <int kThreads, int kCtas, class Keep>
__device__ QSA_PASS void rank_listed(const Lists<kCtas>& lists, uint32_t own, uint32_t listed, uint32_t need,
                                     Keep keep) {
  // Elements a warp ranks together: as many as there are as a rule.
  constexpr uint32_t kUsual = kCtas == 1 ? 32 : 16;
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  constexpr uint32_t kRounds = kUsual > kWarps ? kUsual / kWarps : 1;
  using Usual = Ranking<kThreads, kCtas, kRounds, kCtas == 1 ? 1 : 4>;
  QSA_ROLLED
  for (uint32_t first = warp_index(); first < listed; first += kRounds * kWarps) {
    Usual ranking(lists.key[own], first);
    bool is_done = ranking.compare(lists, 0);
    QSA_ROLLED
    for (uint32_t base = Usual::kOthers; !is_done && base < kRankLimit; base += Usual::kOthers) {
      is_done = ranking.compare(lists, base);
    }
    ranking.keep_first(need, keep);
  }
}

// A row held by one CTA.
template <int kThreads>
struct LocalTeam {
  static constexpr int kTeamThreads = kThreads;
  Workspace& shared;
  Lists<1>& lists;

  // Before anything is exchanged.
  __device__ __forceinline__ void meet() const {}
  __device__ __forceinline__ Threshold find_threshold(uint32_t need) {
    return select::find_threshold<kThreads>(shared, need);
  }
  // Makes the bins ready for another histogram too: nobody reads them since the threshold was found.
  __device__ __forceinline__ Contents combine(const Contents& own) {
    clear_bins<kThreads>(shared);
    return combine_threads<kThreads>(own, shared);
  }
  __device__ __forceinline__ void list(uint32_t place, float score, uint32_t index) const {
    lists.key[0][place] = key_of(score, index);
  }
  // Keeps the `need` first of the elements listed.
  template <class Output>
  __device__ QSA_PASS void keep_listed(uint32_t need, Output& output) {
    __syncthreads();  // the list is complete before any of it is ranked
    rank_listed<kThreads>(lists, 0, shared.listed, need, [&](uint32_t index) { output.keep(index); });
  }
  __device__ __forceinline__ LocalTeam alone() { return *this; }
  __device__ __forceinline__ void take_own_share(Window&) {}
};

}  // namespace select
}  // namespace qsa
