// Clusters: the barrier of all their threads, and another CTA's shared memory.
#include "host/buffers.h"
#include "host/checker.h"
#include "host/findings.h"
#include "host/misuse.h"
#include "host/runtime.h"

namespace qsa::host {

uint32_t cluster_rank() { return current->cta->rank; }
uint32_t cluster_size() { return launch_state.shape.cluster; }

void cluster_arrive(CallSite site) {
  burn_fuel();
  Fiber& self = *current;
  ThreadState& state = state_of(self);
  Launch& launch = launch_state;
  if (state.cluster_arrivals != state.cluster_waits) {
    cluster_misused(site, " calls cluster_arrive twice without a cluster_wait between");
  }
  if (launch.live != launch.threads)
    cluster_misused(site, " waits for threads of the cluster that have returned");
  if (launch.cluster_arrived == 0) launch.cluster_site = site;
  ++state.cluster_arrivals;
  checker::arrive_cluster(self);
  // What a thread does next may come after what others do when they have waited: every one stops here, and
  // the order of the launch says who goes on first.
  if (++launch.cluster_arrived < launch.threads) {
    block_current(Wait::kArrived);
    return;
  }
  launch.cluster_arrived = 0;
  ++launch.cluster_phase;
  make_ready(&self);
  for (uint32_t i = 0; i < launch.threads; ++i) {
    const Wait wait = launch.fibers[i].wait;
    if (wait == Wait::kCluster || wait == Wait::kArrived) make_ready(&launch.fibers[i]);
  }
  block_current(Wait::kNothing);
}

void cluster_wait(CallSite site) {
  burn_fuel();
  Fiber& self = *current;
  ThreadState& state = state_of(self);
  if (state.cluster_arrivals == state.cluster_waits) {
    cluster_misused(site, " calls cluster_wait without a cluster_arrive before it");
  }
  self.site = site;
  if (launch_state.cluster_phase < state.cluster_arrivals) {
    block_current(Wait::kCluster);
  } else {
    make_ready(&self);  // the last to arrive gives way like everybody else
    block_current(Wait::kNothing);
  }
  ++state.cluster_waits;
}

void check_cluster_return(const Fiber& fiber) {
  const ThreadState& state = state_of(fiber);
  const CallSite site = launch_state.cluster_site;
  if (state.cluster_arrivals != state.cluster_waits) {
    cluster_misused(site, " returned between cluster_arrive and cluster_wait");
  }
  if (launch_state.cluster_arrived != 0)
    cluster_misused(site, " returned while others wait for it in cluster_arrive");
}

void* map_shared_rank(CallSite site, const void* address, uint32_t rank) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(address);
  if (rank >= cluster_size()) {
    trap(site, format("map_shared_rank: rank %u of a cluster of %u", rank, cluster_size()).c_str());
  }
  if (arena.owner(value) != static_cast<int64_t>(current->cta->rank)) {
    trap(site, "map_shared_rank: not an address in this block's shared memory");
  }
  return arena.base(rank) + (value - reinterpret_cast<uintptr_t>(current->cta->arena));
}

void mail_open(MailCounts* box, uint32_t senders) { *box = MailCounts{senders, 0, 0, 0}; }

void mail_expect(CallSite site, MailCounts* box, uint32_t rank, uint32_t bytes) {
  MailCounts& there = *static_cast<MailCounts*>(map_shared_rank(site, box, rank));
  there.announced += 1;
  there.expected += bytes;
}

void mail_came(CallSite site, MailCounts* box, uint32_t rank, uint32_t bytes) {
  static_cast<MailCounts*>(map_shared_rank(site, box, rank))->came += bytes;
}

// Counted over all rounds: no CTA begins the next one before all have passed a barrier since this one.
void mail_wait(CallSite site, const MailCounts* box, uint32_t parity) {
  const uint32_t rounds = box->senders == 0 ? 0 : box->announced / box->senders;
  if (rounds == 0 || box->announced % box->senders != 0 || (rounds - 1) % 2 != parity) {
    trap(site, "a mailbox is waited for in a round that its senders did not announce");
  }
  if (box->came != box->expected) {
    trap(site, format("a mailbox got %u bytes where %u were announced", box->came, box->expected).c_str());
  }
}

}  // namespace qsa::host
