// A row held by a cluster of CTAs, CTA c its c-th part: a Team of the selection engine. CTAs wait for each
// other at mailboxes: the cluster's barrier would also wait until all that was stored to global memory has
// arrived there, which took 1,200 clocks a time (16384 x 1 took 4.2 us with barriers, 3.5 with boxes).
//
// What a cluster waits for is distance, so little is exchanged and each CTA finds the rest by itself: the
// totals of 32 bins each go to all, every CTA then reads the 32 bins where the threshold lies, which also
// tells it how many candidates the CTAs below have, and candidates go to all. (Adding up all 2,048 bins of
// all CTAs took 3,600 clocks with 8 CTAs and 9,700 with 16.)
//
// Whatever one CTA writes into another's memory lies before a round of a box that both end, and so does what
// it reads there: a CTA that has ended the last round may end.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_list.cuh"
#include "common/select_workspace.cuh"

namespace qsa {
namespace select {

// Shared memory of one CTA of a cluster beside its Workspace and its Lists; the others write it.
template <int kCtas>
struct alignas(16) Exchange {
  uint32_t group[kCtas][kGroups];
  Contents contents[kCtas];
  uint32_t kept[kCtas];
  uint32_t kept_below;
  Mailbox group_box;
  Mailbox contents_box;
  Mailbox list_box;
  Mailbox kept_box;
};

// A barrier of the cluster must follow before anything is exchanged.
template <int kCtas>
__device__ __forceinline__ void prepare_exchange(Exchange<kCtas>& exchange) {
  if (kCtas > 1 && threadIdx.x == 0) {
    exchange.group_box.open(1);
    exchange.contents_box.open(1);
    exchange.list_box.open(kCtas);
    exchange.kept_box.open(1);
    exchange.kept_below = 0;
  }
}

// With kCountsBelow it also finds how many elements the CTAs below keep: lists need it, masks do not.
template <int kThreads, int kCtas, bool kCountsBelow = false>
struct ClusterTeam {
  static constexpr int kTeamThreads = kThreads;
  Workspace& shared;
  List& elements;
  Exchange<kCtas>& exchange;
  uint32_t rank;            // of this CTA
  uint32_t first;           // the index in the row of its part's first element
  uint32_t count;           // elements in its part
  uint32_t counted = 0;     // histograms
  uint32_t drawn = 0;       // windows whose contents were combined
  uint32_t kept_above = 0;  // by the CTAs below, above the threshold: a share a lane of the first warp

  // Ends what every thread of the cluster began with cluster_arrive(), once its lists were clear: from here
  // on the CTAs write into each other's memory.
  __device__ __forceinline__ void meet() const { cluster_wait(); }

  // As the CTA's own, for the elements that all CTAs counted.
  __device__ QSA_PASS Threshold find_threshold(uint32_t need) {
    __syncthreads();  // this CTA's elements are counted before its bins are added up
    tell_groups();
    exchange.group_box.wait(counted % 2);  // every element is counted, and every group told
    ++counted;
    if (warp_index() == 0) {
      const Threshold threshold = find_in_groups(need);
      if (lane_index() == 0) {
        shared.threshold = threshold;
      }
    }
    __syncthreads();  // the threshold is written before any thread goes on
    return shared.threshold;
  }

  // What all CTAs found in the window. Makes the bins ready for another histogram.
  __device__ QSA_PASS Contents combine(const Contents& own) {
    const Contents cta = combine_threads<kThreads>(own, shared);
    if (threadIdx.x == 0) {
      exchange.contents_box.expect(rank, sizeof(exchange.contents));
    }
    if (threadIdx.x < kCtas) {
      Contents& here = exchange.contents[rank];
      exchange.contents_box.send(threadIdx.x, &here.least, cta.least);
      exchange.contents_box.send(threadIdx.x, &here.greatest, cta.greatest);
      exchange.contents_box.send(threadIdx.x, &here.above, cta.above);
      exchange.contents_box.send(threadIdx.x, &here.population, cta.population);
    }
    exchange.contents_box.sent();
    exchange.contents_box.wait(drawn % 2);  // all contents are there, and no bin is read any more
    ++drawn;
    clear_bins<kThreads>(shared);
    __syncthreads();  // the bins are zero before anything is counted
    return combine_found(exchange.contents, kCtas);
  }

  __device__ __forceinline__ void list(uint32_t place, float score, uint32_t index) const {
    elements.key[shared.threshold.before + place] = key_of(score, first + index);
  }
  // Keeps those of the first of the window's elements that are this CTA's.
  template <class Output>
  __device__ QSA_PASS void keep_listed(const Window& window, Output& output) {
    __syncthreads();  // this CTA's list is complete before it is told
    tell_listed();
    output.settle();  // while the lists are on their way
    if (counts_below() && warp_index() == 0) {
      const uint32_t kept = __reduce_add_sync(kAllLanes, kept_above);
      if (lane_index() == 0) {
        atomicAdd(&exchange.kept_below, kept);
      }
    }
    exchange.list_box.wait(0);  // all lists are complete before any of them is ranked
    const uint32_t before = shared.threshold.before;
    rank_listed<kThreads>(elements, counts_below() ? 0 : before, before + shared.listed,
                          shared.threshold.population, window.need, [&](uint32_t index) {
                            if (!kCountsBelow || index >= first) {
                              output.keep(index - first);
                            } else {
                              atomicAdd(&exchange.kept_below, 1u);
                            }
                          });
  }

  // How many elements the CTAs below keep. All threads call it, after a barrier behind the last element kept;
  // `count` says how many this CTA keeps.
  template <class Count>
  __device__ QSA_PASS uint32_t kept_before(Count count) {
    if (counts_below()) {
      return exchange.kept_below;
    }
    const uint32_t kept = count();
    if (threadIdx.x == 0) {
      exchange.kept_box.expect(rank, kCtas * sizeof(kept));
    }
    if (threadIdx.x < kCtas) {
      exchange.kept_box.send(threadIdx.x, &exchange.kept[rank], kept);
    }
    exchange.kept_box.sent();
    exchange.kept_box.wait(0);  // every CTA has told how many it keeps
    const uint32_t lane = lane_index();
    return __reduce_add_sync(kAllLanes, lane < rank ? exchange.kept[lane] : 0u);
  }

  // Of a window of equal scores, after combine(): how many of this CTA's are kept. Parts follow the index, so
  // those of the CTAs below come first. [select.ties-ascending]
  __device__ __forceinline__ void take_own_share(Window& window) const {
    const uint32_t lane = lane_index();
    const uint32_t ties = lane < kCtas ? exchange.contents[lane].population : 0u;
    const uint32_t before = __reduce_add_sync(kAllLanes, lane < rank ? ties : 0u);
    window.population = __shfl_sync(kAllLanes, ties, static_cast<int>(rank));
    window.need = window.need > before ? min(window.need - before, window.population) : 0u;
  }
  // The same after find_threshold(), where a bin is one score. Nothing is listed, but no CTA may end, or use
  // its bins again, while another reads them.
  __device__ QSA_PASS void take_own_share_of_bin(Window& window) {
    tell_listed();
    exchange.list_box.wait(0);
    const uint32_t before = shared.threshold.before;
    window.population = shared.bins[shared.threshold.bin];
    window.need = window.need > before ? min(window.need - before, window.population) : 0u;
  }

 private:
  // Where one histogram is enough, its bins and the lists tell a CTA what those below keep, and nothing is
  // exchanged for it.
  __device__ __forceinline__ bool counts_below() const { return kCountsBelow && counted == 1 && drawn == 0; }

  // Writes the totals of this CTA's groups to every CTA.
  __device__ QSA_PASS void tell_groups() {
    const WarpGroups<kThreads> groups(shared.bins);
    if (threadIdx.x == 0) {
      exchange.group_box.expect(rank, sizeof(exchange.group));
    }
    if (lane_index() < kCtas) {
      QSA_UNROLL
      for (uint32_t i = 0; i < groups.kOwn; i += 2) {
        // Two totals are one word of a box.
        exchange.group_box.send(lane_index(),
                                reinterpret_cast<uint64_t*>(&exchange.group[rank][groups.first() + i]),
                                static_cast<uint64_t>(groups.total[i + 1]) << 32 | groups.total[i]);
      }
    }
    exchange.group_box.sent();
  }

  // Writes this CTA's list to the other CTAs, one a warp.
  __device__ QSA_PASS void tell_listed() {
    constexpr uint32_t kWarps = kThreads / kWarpLanes;
    const uint32_t listed = shared.listed;
    uint64_t* const own = elements.key + shared.threshold.before;
    QSA_ROLLED
    for (uint32_t cta = warp_index(); cta < kCtas; cta += kWarps) {
      const uint32_t told = cta == rank ? 0u : listed;
      if (lane_index() == 0) {
        exchange.list_box.expect(cta, told * static_cast<uint32_t>(sizeof(uint64_t)));
      }
      QSA_ROLLED
      for (uint32_t place = lane_index(); place < told; place += kWarpLanes) {
        exchange.list_box.send(cta, own + place, own[place]);
      }
    }
    exchange.list_box.sent();
  }

  // One warp. A lane adds up two groups, then one bin.
  __device__ QSA_PASS Threshold find_in_groups(uint32_t need) {
    static_assert(kGroups == 2 * kWarpLanes, "two groups a lane");
    const uint32_t lane = lane_index();
    uint32_t low = 0;
    uint32_t high = 0;
    uint32_t low_below = 0;
    uint32_t high_below = 0;
    QSA_UNROLL
    for (uint32_t cta = 0; cta < kCtas; ++cta) {
      const uint2 two = *reinterpret_cast<const uint2*>(&exchange.group[cta][2 * lane]);
      if (kCountsBelow && cta == rank) {
        low_below = low;
        high_below = high;
      }
      low += two.x;
      high += two.y;
    }
    const Place pair = place_of(low + high, need);
    high = __shfl_sync(kAllLanes, high, static_cast<int>(pair.lane));
    const bool is_low = need > pair.above + high;
    const uint32_t group = 2 * pair.lane + (is_low ? 0u : 1u);
    const uint32_t above = pair.above + (is_low ? high : 0u);
    uint32_t population = 0;
    uint32_t before = 0;
    QSA_UNROLL
    for (uint32_t cta = 0; cta < kCtas; ++cta) {
      before = cta == rank ? population : before;
      population += map_shared_rank(shared.bins, cta)[group * kWarpLanes + lane];
    }
    const Place place = place_of(population, need - above);
    if constexpr (kCountsBelow) {
      kept_above = lane > pair.lane ? low_below + high_below : 0u;
      kept_above += is_low && lane == pair.lane ? high_below : 0u;
      kept_above += lane > place.lane ? before : 0u;
    }
    return Threshold{group * kWarpLanes + place.lane, above + place.above, place.population,
                     __shfl_sync(kAllLanes, before, static_cast<int>(place.lane))};
  }
};

}  // namespace select
}  // namespace qsa
