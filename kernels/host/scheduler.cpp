// Runs a launch: CTA after CTA (a cluster's together), one fiber a thread, until all have returned.
#include <algorithm>
#include <new>

#include "host/checker.h"
#include "host/crash.h"
#include "host/findings.h"
#include "host/runtime.h"

// The kernel's view of these is constant (collectives.h); here they change at every switch.
extern "C" {
__attribute__((visibility("hidden"))) uint3 qsa_host_thread_index_storage __asm__("qsa_host_thread_index");
__attribute__((visibility("hidden"))) uint3 qsa_host_block_index_storage __asm__("qsa_host_block_index");
__attribute__((visibility("hidden"))) uint3 qsa_host_block_extent_storage __asm__("qsa_host_block_extent");
__attribute__((visibility("hidden"))) uint3 qsa_host_grid_extent_storage __asm__("qsa_host_grid_extent");
}

namespace qsa::host {

Options options;
Launch launch_state;
Fiber* current = nullptr;
uintptr_t current_stack = 0;
Stacks stacks;
int64_t fuel_left = kDefaultFuel;

namespace {

// Threads that can run, in the order they became able to. FIFO takes the oldest, LIFO the newest, the seeded
// schedule any. Threads released together enter in ascending order, so FIFO runs them ascending, LIFO
// descending.
class ReadyQueue {
 public:
  void clear() { head_ = tail_ = 0; }
  void push(uint32_t thread) { ring_[tail_++ % kCapacity] = static_cast<uint16_t>(thread); }
  bool empty() const { return head_ == tail_; }
  uint32_t pop() {
    if (options.schedule == QSA_HOST_FIFO) return ring_[head_++ % kCapacity];
    if (options.schedule == QSA_HOST_SEEDED) {
      const uint32_t pick = head_ + static_cast<uint32_t>(next_random() % (tail_ - head_));
      std::swap(ring_[pick % kCapacity], ring_[(tail_ - 1) % kCapacity]);
    }
    return ring_[--tail_ % kCapacity];
  }

 private:
  static constexpr uint32_t kCapacity = kMaxClusterSize * kMaxThreads;
  uint16_t ring_[kCapacity];
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

ReadyQueue ready;
uint64_t random_state;

void enter(Fiber* fiber) {
  current = fiber;
  current_stack = reinterpret_cast<uintptr_t>(stacks.begin(fiber->stack));
  qsa_host_thread_index_storage = fiber->thread;
  qsa_host_block_index_storage = fiber->cta->block;
}

// Lets those go on that stopped where they need not. False when there are none.
bool let_arrived_go_on() {
  Launch& launch = launch_state;
  if (launch.cluster_arrived == 0) return false;
  for (uint32_t i = 0; i < launch.threads; ++i) {
    if (launch.fibers[i].wait != Wait::kArrived) continue;
    launch.fibers[i].wait = Wait::kNothing;  // nobody makes it ready again
    ready.push(launch.fibers[i].stack);
  }
  return !ready.empty();
}

// Runs the next thread that can; with none left, goes back to the launcher. `save` keeps the caller's place.
inline void run_next(void** save) {
  if (ready.empty() && !let_arrived_go_on()) {
    current = nullptr;
    qsa_host_switch_stack(save, launch_state.launcher);
    return;
  }
  Fiber* next = &launch_state.fibers[ready.pop()];
  if (&next->stack_pointer == save) {  // picked itself: nothing to switch
    current = next;
    return;
  }
  enter(next);
  qsa_host_switch_stack(save, next->stack_pointer);
}

// Where every thread starts.
void thread_main() {
  current->cta->started = true;
  launch_state.body(launch_state.arguments);
  Fiber& self = *current;
  check_return(self);
  if (launch_state.shape.cluster > 1) check_cluster_return(self);
  self.returned = true;
  self.warp->returned |= 1u << self.lane;
  if (--self.cta->live == 0 && launch_state.shape.cluster > 1) checker::end_cta(*self.cta);
  --launch_state.live;
  void* never_resumed;
  run_next(&never_resumed);
  __builtin_unreachable();
}

void start_cta(Cta& cta, uint32_t rank, uint3 block, Fiber* fibers) {
  const dim3 extent = launch_state.shape.block;
  const uint32_t threads = extent.x * extent.y * extent.z;
  cta.block = block;
  cta.rank = rank;
  cta.threads = cta.live = threads;
  cta.fibers = fibers;
  cta.started = false;
  cta.waiting = cta.holding = 0;
  cta.warps.resize((threads + kWarpSize - 1) / kWarpSize);
  arena_start(cta);
  uint3 thread{0, 0, 0};
  for (uint32_t i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    Warp& warp = cta.warps[i / kWarpSize];
    fiber.lane = static_cast<uint8_t>(i % kWarpSize);
    if (fiber.lane == 0) {
      warp.first = &fiber;
      const uint32_t lanes = std::min(threads - i, kWarpSize);
      warp.present = lanes == kWarpSize ? ~0u : (1u << lanes) - 1u;
      warp.returned = warp.waiting = 0;
    }
    fiber.warp = &warp;
    fiber.cta = &cta;
    fiber.thread = thread;
    fiber.index = static_cast<uint16_t>(i);
    fiber.stack = rank * threads + i;
    fiber.wait = Wait::kNothing;
    fiber.returned = false;
    fiber.stack_pointer = stacks.prepare(fiber.stack, &thread_main);
    ready.push(fiber.stack);
    if (++thread.x == extent.x) {
      thread.x = 0;
      if (++thread.y == extent.y) {
        thread.y = 0;
        ++thread.z;
      }
    }
  }
  checker::start_cta(cta);
}

// The CTAs of group `group` (a cluster, or one) run to their end.
void run_group(uint64_t group) {
  Launch& launch = launch_state;
  const dim3 grid = launch.shape.grid;
  ready.clear();
  launch.cluster_phase = launch.cluster_arrived = 0;
  launch.live = launch.threads;
  if (!checker::start_group(group * launch.shape.cluster)) {
    launch.status = QSA_HOST_LAUNCH_LIMIT;
    return;
  }
  if (launch.states_used) {
    launch.states.assign(launch.states.size(), ThreadState{});
    launch.states_used = false;
  }
  const uint32_t threads = launch.threads / launch.shape.cluster;
  for (uint32_t rank = 0; rank < launch.shape.cluster; ++rank) {
    const uint64_t linear = group * launch.shape.cluster + rank;
    const uint3 block{static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                      static_cast<unsigned>(linear / grid.x / grid.y)};
    start_cta(launch.ctas[rank], rank, block, &launch.fibers[size_t{rank} * threads]);
  }
  run_next(&launch.launcher);
  current = nullptr;
  if (launch.status == QSA_OK && launch.live != 0) report_deadlock();
}

// The order in which CTAs run: ascending, descending, or drawn from the seed.
void run_groups(uint64_t groups) {
  std::vector<uint64_t> order;
  if (options.schedule == QSA_HOST_SEEDED) {
    order.resize(groups);
    for (uint64_t i = 0; i < groups; ++i) order[i] = i;
    for (uint64_t i = groups; i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
  }
  for (uint64_t i = 0; i < groups && launch_state.status == QSA_OK; ++i) {
    run_group(!order.empty() ? order[i] : options.schedule == QSA_HOST_LIFO ? groups - 1 - i : i);
  }
}

}  // namespace

uint64_t next_random() { return mix(random_state += 0x9e3779b97f4a7c15u); }

void make_ready(Fiber* fiber) { ready.push(fiber->stack); }

void block_current(Wait wait) {
  Fiber& self = *current;
  self.wait = wait;
  run_next(&self.stack_pointer);
  self.wait = Wait::kNothing;
}

void yield_now(CallSite site) {
  burn_fuel();
  current->site = site;
  make_ready(current);
  block_current(Wait::kNothing);
}

void abandon_launch(int32_t status) {
  launch_state.status = status;
  current = nullptr;
  void* never_resumed;
  qsa_host_switch_stack(&never_resumed, launch_state.launcher);
  __builtin_unreachable();
}

int32_t launch_erased(CallSite site, const LaunchShape& shape, void (*body)(const void*),
                      const void* arguments, uint64_t argument_bytes) {
  static bool running = false;
  if (running) {
    report(finding_here("launch-limit", "a launch from inside a launch, or from a second OS thread", site));
    return QSA_HOST_LAUNCH_LIMIT;
  }
  if (!within_limits(site, shape)) return QSA_HOST_LAUNCH_LIMIT;

  Launch& launch = launch_state;
  launch.site = site;
  launch.shape = shape;
  launch.body = body;
  launch.arguments = arguments;
  launch.argument_bytes = argument_bytes;
  launch.number += 1;
  launch.number_since_reset += 1;
  launch.status = QSA_OK;
  launch.threads = shape.block.x * shape.block.y * shape.block.z * shape.cluster;
  launch.ctas.resize(std::max<size_t>(launch.ctas.size(), shape.cluster));
  launch.fibers.resize(std::max<size_t>(launch.fibers.size(), launch.threads));
  launch.states.resize(launch.fibers.size());
  if (!stacks.reserve(launch.threads) || !arena_prepare()) {
    report(finding_here("launch-limit", "this machine has no memory for the launch's threads", site));
    return QSA_HOST_LAUNCH_LIMIT;
  }
  qsa_host_block_extent_storage = shape.block;
  qsa_host_grid_extent_storage = shape.grid;
  random_state = mix(options.seed) ^ launch.number_since_reset;

  running = true;
  checker::start_launch();
  const CrashHandler handler;
  run_groups(uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z / shape.cluster);
  checker::end_launch();
  running = false;
  return launch.status;
}

int32_t compute_capability() { return options.compute_capability; }
int32_t multiprocessor_count() { return options.multiprocessors; }

}  // namespace qsa::host
