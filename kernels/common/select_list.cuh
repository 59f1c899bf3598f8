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

// What the CTAs of a row listed: every CTA has it whole, and each CTA's own elements follow those of the CTAs
// below. kNoKey where nothing is listed.
struct alignas(16) List {
  uint64_t key[kRankLimit];
};

// A barrier must follow before anything is listed.
template <int kThreads>
__device__ QSA_PASS void clear_list(List& list) {
  static_assert(kNoKey == 0, "cleared as words");
  uint4* const words = reinterpret_cast<uint4*>(&list);
  QSA_UNROLL
  for (uint32_t i = threadIdx.x; i < sizeof(list) / sizeof(uint4); i += kThreads) {
    words[i] = make_uint4(0, 0, 0, 0);
  }
}

// Calls keep(index) for those of the elements listed in places `first` to `end` that are among the `need`
// first of the `listed` ones. A warp ranks as many of its own together as make 32 for the CTA, against 32
// others at a time. All lanes call it.
template <int kThreads, class Keep>
__device__ QSA_PASS void rank_listed(const List& list, uint32_t first, uint32_t end, uint32_t listed,
                                     uint32_t need, Keep keep) {
  constexpr uint32_t kWarps = kThreads / kWarpLanes;
  constexpr uint32_t kRounds = kWarpLanes / kWarps;
  const uint32_t lane = lane_index();
  QSA_ROLLED
  for (uint32_t place = first + warp_index(); place < end; place += kRounds * kWarps) {
    uint64_t key[kRounds];
    uint32_t rank[kRounds];
    QSA_UNROLL
    for (uint32_t r = 0; r < kRounds; ++r) {
      key[r] = place + r * kWarps < end ? list.key[place + r * kWarps] : kNoKey;
      rank[r] = 0;
    }
    QSA_ROLLED
    for (uint32_t base = 0; base < listed; base += kWarpLanes) {
      const uint64_t other = list.key[base + lane];
      QSA_UNROLL
      for (uint32_t r = 0; r < kRounds; ++r) {
        rank[r] += static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, other > key[r])));
      }
    }
    // Lane r keeps the r-th.
    uint64_t own_key = key[0];
    uint32_t own_rank = rank[0];
    QSA_UNROLL
    for (uint32_t r = 1; r < kRounds; ++r) {
      own_key = lane == r ? key[r] : own_key;
      own_rank = lane == r ? rank[r] : own_rank;
    }
    if (lane < kRounds && own_key != kNoKey && own_rank < need) {
      keep(index_of_key(own_key));
    }
  }
}

// A row held by one CTA.
template <int kThreads>
struct LocalTeam {
  static constexpr int kTeamThreads = kThreads;
  Workspace& shared;
  List& elements;

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
    elements.key[place] = key_of(score, index);
  }
  // Keeps the first of the elements of the window, all of which are listed.
  template <class Output>
  __device__ QSA_PASS void keep_listed(const Window& window, Output& output) {
    __syncthreads();  // the list is complete before any of it is ranked
    // No more are listed than the window holds, and that is known by now.
    const uint32_t most = window.population;
    rank_listed<kThreads>(elements, 0, most, most, window.need, [&](uint32_t index) { output.keep(index); });
    output.settle();
  }
  __device__ __forceinline__ void take_own_share(Window&) const {}
  __device__ __forceinline__ void take_own_share_of_bin(Window&) const {}
};

}  // namespace select
}  // namespace qsa
