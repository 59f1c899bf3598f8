// A row held by a cluster of CTAs, CTA c its c-th part: a Team of the selection engine. CTAs wait for each
// other at the cluster's barrier alone.
//
// Every CTA adds up the histograms of all, and candidates are written to all, so that each CTA finds the cut
// and ranks by itself: what a cluster waits for is distance, so one exchange of more is better than two.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_workspace.cuh"

namespace qsa {
namespace select {

// Shared memory of one CTA of a cluster beside its Workspace; the others read and write it.
template <int kCtas>
struct alignas(16) Exchange {
  Contents contents[kCtas];
  uint32_t listed[kCtas];
  uint32_t kept[kCtas];
  uint64_t key[kCtas][kRankLimit];
};

template <int kThreads, int kCtas>
struct ClusterTeam {
  static constexpr int kTeamThreads = kThreads;
  Workspace& shared;
  Exchange<kCtas>& exchange;
  uint32_t rank;   // of this CTA
  uint32_t first;  // the index in the row of its part's first element
  uint32_t count;  // elements in its part

  // As the CTA's own, for the elements that all CTAs counted. Each CTA begins with its own bins, so that not
  // all read the same at a time.
  __device__ QSA_PASS Threshold find_threshold(uint32_t need) {
    cluster_sync();  // every element is counted before any bin is read
    OwnBins<kThreads> own;
    QSA_UNROLL
    for (uint32_t i = 0; i < kCtas; ++i) {
      own.add(map_shared_rank(shared.bins, (rank + i) % kCtas));
    }
    return own.find(need, shared);
  }

  // What all CTAs found in the window. Makes the bins ready for another histogram.
  __device__ QSA_PASS Contents combine(const Contents& own) {
    const Contents cta = combine_threads<kThreads>(own, shared);
    if (threadIdx.x < kCtas) {
      map_shared_rank(&exchange, threadIdx.x)->contents[rank] = cta;
    }
    cluster_sync();  // all contents are there before any are read, and no bin is read any more
    select::prepare<kThreads>(shared);
    __syncthreads();  // the bins are zero before anything is counted
    return combine_found(exchange.contents, kCtas);
  }

  __device__ __forceinline__ void list(float score, uint32_t index) {
    shared.key[atomicAdd(&shared.listed, 1u)] = key_of(score, first + index);
  }

  // How many elements all CTAs listed, once their keys lie side by side.
  __device__ QSA_PASS uint32_t complete_list() {
    constexpr uint32_t kWarps = kThreads / kWarpLanes;
    __syncthreads();  // this CTA's list is complete before it is told
    const uint32_t own_listed = shared.listed;
    const uint32_t lane = lane_index();
    QSA_ROLLED
    for (uint32_t cta = warp_index(); cta < kCtas; cta += kWarps) {
      Exchange<kCtas>* const there = map_shared_rank(&exchange, cta);
      QSA_ROLLED
      for (uint32_t i = lane; i < own_listed; i += kWarpLanes) {
        there->key[rank][i] = shared.key[i];
      }
      if (lane == 0) {
        there->listed[rank] = own_listed;
      }
    }
    cluster_sync();  // all lists are told before any of them is read
    const uint32_t told = lane < kCtas ? exchange.listed[lane] : 0u;
    QSA_ROLLED
    for (uint32_t cta = warp_index(); cta < kCtas; cta += kWarps) {
      const uint32_t begin = __reduce_add_sync(kAllLanes, lane < cta ? told : 0u);
      const uint32_t listed = __shfl_sync(kAllLanes, told, static_cast<int>(cta));
      QSA_ROLLED
      for (uint32_t i = lane; i < listed; i += kWarpLanes) {
        shared.key[begin + i] = exchange.key[cta][i];
      }
    }
    __syncthreads();  // the keys lie side by side before any is ranked
    return __reduce_add_sync(kAllLanes, told);
  }
  __device__ __forceinline__ const uint64_t* listed_keys() const { return shared.key; }

  // Keeps the element if it is this CTA's.
  template <class Output>
  __device__ __forceinline__ void keep(uint32_t index, Output& output) const {
    if (index - first < count) {
      output.keep(index - first);
    }
  }

  // How many elements the CTAs below keep, given how many this one does.
  __device__ __forceinline__ uint32_t kept_before(uint32_t kept) {
    const uint32_t lane = lane_index();
    if (threadIdx.x < kCtas) {
      map_shared_rank(&exchange, threadIdx.x)->kept[rank] = kept;
    }
    cluster_sync();  // every CTA has told how many it keeps
    return __reduce_add_sync(kAllLanes, lane < rank ? exchange.kept[lane] : 0u);
  }

  // Of a window of equal scores, after combine(): how many of this CTA's are kept. Parts follow the index, so
  // those of the CTAs below come first. [select.ties-ascending]
  __device__ __forceinline__ void take_own_share(Window& window) {
    const uint32_t lane = lane_index();
    const uint32_t ties = lane < kCtas ? exchange.contents[lane].population : 0u;
    const uint32_t before = __reduce_add_sync(kAllLanes, lane < rank ? ties : 0u);
    window.population = __shfl_sync(kAllLanes, ties, static_cast<int>(rank));
    window.need = window.need > before ? min(window.need - before, window.population) : 0u;
    if (window.need == 0) {
      window.end = window.first;
      window.population = 0;
    }
  }
};

}  // namespace select
}  // namespace qsa
