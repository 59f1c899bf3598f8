// Misused collectives in words. All of it is cold and out of line: a message built inside a collective would
// put its strings into the frame of every waiting thread, and those frames are what the cache holds.
#pragma once

#include "host/runtime.h"

namespace qsa::host {

#define QSA_HOST_COLD [[noreturn, gnu::cold, gnu::noinline]]

// A collective about to be waited in.
struct WarpCall {
  WarpOp op;
  uint32_t mask;
  CallSite site;
};

QSA_HOST_COLD void bad_mask(const WarpCall& call);
QSA_HOST_COLD void lanes_disagree(const WarpCall& call, uint32_t other_lane);
QSA_HOST_COLD void bad_width(const WarpCall& call, uint32_t width);
QSA_HOST_COLD void barrier_after_return(CallSite site, BarrierOp op);
QSA_HOST_COLD void barriers_disagree(CallSite site, BarrierOp op);
// The running thread leaves the kernel while others wait for it.
QSA_HOST_COLD void returned_before_barrier();
QSA_HOST_COLD void returned_before_lanes(uint32_t waiting_lane);
QSA_HOST_COLD void cluster_misused(CallSite site, const char* how);

}  // namespace qsa::host
