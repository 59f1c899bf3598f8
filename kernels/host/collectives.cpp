// Rendezvous: barriers of a CTA and collectives of a warp. Whoever breaks a rule ends up in misuse.cpp.
#include "host/checker.h"
#include "host/misuse.h"
#include "host/runtime.h"

namespace qsa::host {

namespace {

uint32_t first_lane(uint32_t mask) { return static_cast<uint32_t>(__builtin_ctz(mask)); }

template <class Visit>
void for_lanes(uint32_t mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) visit(first_lane(mask));
}

// The lane whose value a shuffle gives to `lane`, as PTX's shfl defines it.
uint32_t shuffle_source(WarpOp op, uint32_t lane, uint32_t width, uint32_t amount) {
  const uint32_t first = lane & ~(width - 1);
  const uint32_t last = first + width - 1;
  switch (op) {
    case WarpOp::kShuffle:
      return first + (amount & (width - 1));
    case WarpOp::kShuffleUp:
      return lane < first + amount ? lane : lane - amount;
    case WarpOp::kShuffleDown:
      return lane + amount > last ? lane : lane + amount;
    default:
      return (lane ^ amount) > last ? lane : lane ^ amount;
  }
}

void shuffle(Warp& warp, WarpOp op, uint32_t mask) {
  for_lanes(mask, [&](uint32_t lane) {
    const uint32_t width = warp.parameter[lane] >> 8;
    if (width == 0 || width > kWarpSize || (width & (width - 1)) != 0) {
      bad_width(WarpCall{op, mask, warp.first[lane].site}, width);
    }
    const uint32_t source = shuffle_source(op, lane, width, warp.parameter[lane] & 31u);
    // CUDA leaves the value of a lane outside the mask undefined: junk, so that relying on it shows.
    warp.result[lane] = (mask >> source) & 1u ? warp.value[source] : mix(options.seed ^ source);
  });
}

template <class Combine>
void reduce(Warp& warp, uint32_t mask, Combine combine) {
  uint32_t total = static_cast<uint32_t>(warp.value[first_lane(mask)]);
  for_lanes(mask & (mask - 1), [&](uint32_t lane) {
    total = static_cast<uint32_t>(combine(total, static_cast<uint32_t>(warp.value[lane])));
  });
  for_lanes(mask, [&](uint32_t lane) { warp.result[lane] = total; });
}

void ballot(Warp& warp, uint32_t mask) {
  uint32_t votes = 0;
  for_lanes(mask, [&](uint32_t lane) { votes |= static_cast<uint32_t>(warp.value[lane]) << lane; });
  for_lanes(mask, [&](uint32_t lane) { warp.result[lane] = votes; });
}

void match_any(Warp& warp, uint32_t mask) {
  for_lanes(mask, [&](uint32_t lane) {
    uint32_t equal = 0;
    for_lanes(mask, [&](uint32_t other) {
      equal |= static_cast<uint32_t>(warp.value[other] == warp.value[lane]) << other;
    });
    warp.result[lane] = equal;
  });
}

// Every lane of the mask has posted: fills in their results.
__attribute__((noinline)) void compute(Warp& warp, WarpOp op, uint32_t mask) {
  using U = uint32_t;
  using S = int32_t;
  switch (op) {
    case WarpOp::kSync:
      return checker::sync_warp(warp, mask);
    case WarpOp::kShuffle:
    case WarpOp::kShuffleUp:
    case WarpOp::kShuffleDown:
    case WarpOp::kShuffleXor:
      return shuffle(warp, op, mask);
    case WarpOp::kBallot:
      return ballot(warp, mask);
    case WarpOp::kMatchAny:
      return match_any(warp, mask);
    case WarpOp::kReduceAdd:
      return reduce(warp, mask, [](U a, U b) { return a + b; });
    case WarpOp::kReduceMinSigned:
      return reduce(warp, mask, [](U a, U b) { return static_cast<S>(a) < static_cast<S>(b) ? a : b; });
    case WarpOp::kReduceMinUnsigned:
      return reduce(warp, mask, [](U a, U b) { return a < b ? a : b; });
    case WarpOp::kReduceMaxSigned:
      return reduce(warp, mask, [](U a, U b) { return static_cast<S>(a) > static_cast<S>(b) ? a : b; });
    case WarpOp::kReduceMaxUnsigned:
      return reduce(warp, mask, [](U a, U b) { return a > b ? a : b; });
    case WarpOp::kAll:
    case WarpOp::kReduceAnd:
      return reduce(warp, mask, [](U a, U b) { return a & b; });
    case WarpOp::kAny:
    case WarpOp::kReduceOr:
      return reduce(warp, mask, [](U a, U b) { return a | b; });
    case WarpOp::kReduceXor:
      return reduce(warp, mask, [](U a, U b) { return a ^ b; });
    case WarpOp::kMma:
      return compute_mma(warp);
    case WarpOp::kLoadMatrix:
      return compute_load_matrix(warp);
  }
}

}  // namespace

uint64_t warp_collective(CallSite site, WarpOp op, uint32_t mask, uint64_t value, uint32_t parameter) {
  burn_fuel();
  Fiber& self = *current;
  Warp& warp = *self.warp;
  const uint32_t lane = self.lane;
  const uint32_t bit = 1u << lane;
  if ((mask & bit) == 0 || (mask & ~(warp.present & ~warp.returned)) != 0) bad_mask(WarpCall{op, mask, site});
  const uint32_t waiting = warp.waiting & mask;
  if (waiting != 0) {
    // One stands for all who wait: each of them was compared with those before.
    const uint32_t other = first_lane(waiting);
    if (warp.op[other] != op || warp.mask[other] != mask || !same_place(warp.first[other].site, site)) {
      lanes_disagree(WarpCall{op, mask, site}, other);
    }
  }
  self.site = site;
  warp.op[lane] = op;
  warp.mask[lane] = mask;
  warp.parameter[lane] = parameter;
  warp.value[lane] = value;
  if ((waiting | bit) != mask) {
    warp.waiting |= bit;
    block_current(Wait::kWarp);
  } else {
    compute(warp, op, mask);
    warp.waiting &= ~mask;
    // Released in lane order, this lane too: which one arrived last must not decide who runs next.
    for_lanes(mask, [&](uint32_t other) { make_ready(warp.first + other); });
    block_current(Wait::kNothing);
  }
  return warp.result[lane];
}

int barrier(CallSite site, BarrierOp op, int predicate) {
  burn_fuel();
  Fiber& self = *current;
  Cta& cta = *self.cta;
  if (cta.live != cta.threads) barrier_after_return(site, op);
  if (cta.waiting == 0) {
    cta.op = op;
    cta.site = site;
  } else if (cta.op != op || !same_place(cta.site, site)) {
    barriers_disagree(site, op);
  }
  self.site = site;
  cta.holding += predicate != 0;
  if (++cta.waiting != cta.threads) {
    block_current(Wait::kBarrier);
  } else {
    const uint32_t holding = cta.holding;
    cta.result = op == BarrierOp::kAnd  ? holding == cta.threads
                 : op == BarrierOp::kOr ? holding != 0
                                        : static_cast<int>(holding);
    cta.waiting = cta.holding = 0;
    checker::sync_cta(cta);
    for (uint32_t i = 0; i < cta.threads; ++i) make_ready(cta.fibers + i);
    block_current(Wait::kNothing);
  }
  return cta.result;
}

void check_return(const Fiber& fiber) {
  if (fiber.cta->waiting != 0) returned_before_barrier();
  const Warp& warp = *fiber.warp;
  for_lanes(warp.waiting, [&](uint32_t lane) {
    if ((warp.mask[lane] >> fiber.lane) & 1u) returned_before_lanes(lane);
  });
}

}  // namespace qsa::host
