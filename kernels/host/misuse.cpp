#include "host/misuse.h"

#include "host/findings.h"

namespace qsa::host {

namespace {

const char* name_of(BarrierOp op) {
  static const char* const names[] = {"__syncthreads", "__syncthreads_count", "__syncthreads_and",
                                      "__syncthreads_or"};
  return names[static_cast<uint32_t>(op)];
}

const char* name_of(WarpOp op) {
  static const char* const names[] = {"__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
                                      "__shfl_down_sync",  "__shfl_xor_sync",   "__ballot_sync",
                                      "__any_sync",        "__all_sync",        "__match_any_sync",
                                      "__reduce_add_sync", "__reduce_min_sync", "__reduce_min_sync",
                                      "__reduce_max_sync", "__reduce_max_sync", "__reduce_and_sync",
                                      "__reduce_or_sync",  "__reduce_xor_sync", "mma",
                                      "ldmatrix"};
  return names[static_cast<uint32_t>(op)];
}

// "__shfl_sync with mask 0x000000ff at qsa/select.cu:17"
std::string text_of(const WarpCall& call) {
  return name_of(call.op) + format(" with mask 0x%08x at ", call.mask) + host::name_of(call.site);
}

std::string text_of(BarrierOp op, CallSite site) { return name_of(op) + (" at " + host::name_of(site)); }

WarpCall call_of(const Warp& warp, uint32_t lane) {
  return WarpCall{warp.op[lane], warp.mask[lane], warp.first[lane].site};
}

[[noreturn]] void diverged(const std::string& message, CallSite site) {
  report(finding_here("divergence", message, site));
  abandon_launch(QSA_HOST_DIVERGED);
}

}  // namespace

void bad_mask(const WarpCall& call) {
  const Fiber& self = *current;
  const Warp& warp = *self.warp;
  std::string what;
  if ((call.mask >> self.lane & 1u) == 0) {
    what = format(": the mask does not name the calling lane %u", self.lane);
  } else if ((call.mask & ~warp.present) != 0) {
    what = format(": the mask names lanes the block does not have; it has 0x%08x", warp.present);
  } else {
    what = format(": the mask names lanes that have returned, 0x%08x", call.mask & warp.returned);
  }
  diverged(text_of(call) + what, call.site);
}

void lanes_disagree(const WarpCall& call, uint32_t other_lane) {
  const Warp& warp = *current->warp;
  diverged(text_of(call) + format(" meets lane %u in ", other_lane) + text_of(call_of(warp, other_lane)),
           call.site);
}

void bad_width(const WarpCall& call, uint32_t width) {
  diverged(text_of(call) + format(": a width of %u", width), call.site);
}

void barrier_after_return(CallSite site, BarrierOp op) {
  const Cta& cta = *current->cta;
  const Fiber* gone = cta.fibers;
  while (!gone->returned) ++gone;
  diverged(text_of(op, site) + " waits for " + host::name_of(*gone) + ", which has returned", site);
}

void barriers_disagree(CallSite site, BarrierOp op) {
  const Cta& cta = *current->cta;
  diverged(text_of(op, site) + " meets threads of the block in " + text_of(cta.op, cta.site), site);
}

void returned_before_barrier() {
  const Cta& cta = *current->cta;
  diverged(host::name_of(*current) + " returned while others wait for it in " + text_of(cta.op, cta.site),
           cta.site);
}

void returned_before_lanes(uint32_t waiting_lane) {
  const WarpCall call = call_of(*current->warp, waiting_lane);
  diverged(host::name_of(*current) + format(" returned while lane %u waits for it in ", waiting_lane) +
               text_of(call),
           call.site);
}

void cluster_misused(CallSite site, const char* how) { diverged(host::name_of(*current) + how, site); }

void trap(CallSite site, const char* reason) {
  report(finding_here("trap", reason, site));
  abandon_launch(QSA_HOST_TRAPPED);
}

void out_of_fuel(uint64_t address) {
  Finding finding = finding_here("fuel", "the launch did not end within its fuel");
  finding.address = address;
  report(finding);
  abandon_launch(QSA_HOST_OUT_OF_FUEL);
}

// Threads that wait in the same place are named once, by the first of them and their number.
void report_deadlock() {
  struct Group {
    const Fiber* first;
    uint32_t threads;
  };
  std::vector<Group> groups;
  for (uint32_t i = 0; i < launch_state.threads; ++i) {
    const Fiber& fiber = launch_state.fibers[i];
    if (fiber.returned) continue;
    bool known = false;
    for (Group& group : groups) {
      known = group.first->cta == fiber.cta && group.first->wait == fiber.wait &&
              same_place(group.first->site, fiber.site);
      if (known) {
        ++group.threads;
        break;
      }
    }
    if (!known) groups.push_back(Group{&fiber, 1});
  }
  std::string message = "no thread can run:";
  for (size_t i = 0; i < groups.size() && i < 8; ++i) {
    const Fiber& fiber = *groups[i].first;
    message += (i == 0 ? " " : "; ") + format("%u from ", groups[i].threads) + host::name_of(fiber) + " in ";
    if (fiber.wait == Wait::kBarrier) {
      message += text_of(fiber.cta->op, fiber.site);
    } else if (fiber.wait == Wait::kWarp) {
      message += text_of(call_of(*fiber.warp, fiber.lane));
    } else {
      message += "cluster_wait at " + host::name_of(fiber.site);
    }
  }
  const Fiber& first = *groups.front().first;
  report(finding_about(first, "deadlock", message, first.site));
  launch_state.status = QSA_HOST_DIVERGED;
}

}  // namespace qsa::host
