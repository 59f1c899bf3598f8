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

// Calls keep(index) for those of the elements in list `own` that are among the `need` first of all lists. A
// warp ranks kRounds elements at a time, each lane comparing them with its share of the others.
template <int kThreads, int kCtas, class Keep>
__device__ QSA_PASS void rank_listed(const Lists<kCtas>& lists, uint32_t own, uint32_t need, Keep keep) {
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  constexpr uint32_t kRounds = 2;
  constexpr uint32_t kHeld = kCtas == 1 ? 1 : 4;
  constexpr uint32_t kLanes = kWarpLanes / kCtas;  // lanes that share a list
  const uint32_t lane = lane_index();
  const uint64_t* const others = lists.key[lane / kLanes] + lane % kLanes;
  QSA_ROLLED
  for (uint32_t first = warp_index(); first < kRankLimit; first += kRounds * kWarps) {
    uint64_t key[kRounds];
    uint32_t rank[kRounds];
    QSA_UNROLL
    for (uint32_t r = 0; r < kRounds; ++r) {
      const uint32_t place = first + r * kWarps;
      key[r] = place < kRankLimit ? lists.key[own][place] : kNoKey;
      rank[r] = 0;
    }
    if (key[0] == kNoKey) {
      return;
    }
    bool more = true;
    QSA_ROLLED
    for (uint32_t base = 0; more; base += kHeld * kLanes) {
      uint64_t other[kHeld];
      QSA_UNROLL
      for (uint32_t i = 0; i < kHeld; ++i) {
        other[i] = others[base + i * kLanes];
      }
      QSA_UNROLL
      for (uint32_t i = 0; i < kHeld; ++i) {
        QSA_UNROLL
        for (uint32_t r = 0; r < kRounds; ++r) {
          rank[r] += static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, other[i] > key[r])));
        }
      }
      // A list is full from the front.
      more = base + kHeld * kLanes < kRankLimit && __any_sync(kAllLanes, other[kHeld - 1] != kNoKey);
    }
    // Lane r keeps the r-th.
    QSA_UNROLL
    for (uint32_t r = 0; r < kRounds; ++r) {
      if (lane == r && key[r] != kNoKey && rank[r] < need) {
        keep(index_of_key(key[r]));
      }
    }
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
  __device__ __forceinline__ void list(float score, uint32_t index) {
    lists.key[0][atomicAdd(&shared.listed, 1u)] = key_of(score, index);
  }
  // Keeps the `need` first of the elements listed.
  template <class Output>
  __device__ QSA_PASS void keep_listed(uint32_t need, Output& output) {
    __syncthreads();  // the list is complete before any of it is ranked
    rank_listed<kThreads>(lists, 0, need, [&](uint32_t index) { output.keep(index); });
  }
  __device__ __forceinline__ LocalTeam alone() { return *this; }
  __device__ __forceinline__ void take_own_share(Window&) {}
};

}  // namespace select
}  // namespace qsa
