// The runtime's own state: one launch, its resident CTAs, their warps and threads. Kernels never see this.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

#include "common/status.h"
#include "host/buffers.h"
#include "host/cluster.h"
#include "host/collectives.h"
#include "host/control.h"
#include "host/fiber.h"
#include "host/launch.h"
#include "host/shared.h"

namespace qsa::host {

constexpr uint32_t kWarpSize = 32;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxWarps = kMaxThreads / kWarpSize;
constexpr uint64_t kDefaultFuel = 20'000'000'000;  // about a minute of a tight loop
constexpr bool kChecked = QSA_HOST_CHECKED != 0;

// An arrived thread waits for nothing: it goes on when the barrier is complete, or nobody else can.
enum class Wait : uint8_t { kNothing, kBarrier, kWarp, kCluster, kArrived };

struct Cta;
struct Warp;

struct AsyncCopy {
  void* shared;
  const void* global;
  uint32_t group;
  uint32_t since;  // the checker's: what was ordered before the issue
  CallSite site;
};

// A thread. One cache line, because every switch reads it; what only some kernels use is in ThreadState.
struct alignas(64) Fiber {
  void* stack_pointer;
  Warp* warp;
  Cta* cta;
  CallSite site;  // of the last collective it called
  uint3 thread;
  uint32_t stack;  // its number among the resident threads, and its stack's
  uint16_t index;  // in its CTA
  uint8_t lane;
  Wait wait;
  bool returned;
};
static_assert(sizeof(Fiber) == 64, "a thread is one cache line");

struct ThreadState {
  // Cluster barriers this thread has arrived at, and has waited for.
  uint32_t cluster_arrivals = 0;
  uint32_t cluster_waits = 0;
  std::vector<AsyncCopy> copies;  // issued and not yet waited for
  uint32_t copy_group = 0;
};

struct Warp {
  Fiber* first;
  uint32_t present;   // lanes that exist
  uint32_t returned;  // lanes that have left the kernel
  uint32_t waiting;   // lanes inside a collective
  WarpOp op[kWarpSize];
  uint32_t mask[kWarpSize];
  uint32_t parameter[kWarpSize];
  uint64_t value[kWarpSize];
  uint64_t result[kWarpSize];
};

struct Cta {
  uint3 block;
  uint32_t rank;     // in its cluster
  uint32_t threads;  // that it started with
  uint32_t live;     // that have not returned
  bool started;      // one of them has run
  Fiber* fibers;
  std::vector<Warp> warps;
  unsigned char* arena;
  // __syncthreads
  uint32_t waiting;
  uint32_t holding;  // of those, how many brought a true predicate
  BarrierOp op;
  CallSite site;
  int result;
};

// Everything about the launch in progress.
struct Launch {
  CallSite site;
  LaunchShape shape;
  void (*body)(const void*);
  const void* arguments;
  uint64_t argument_bytes;
  uint64_t number;  // since the library was loaded: shared arrays know by it that a new launch has begun
  uint64_t number_since_reset;
  int32_t status;
  // The resident CTAs: one, or those of a cluster.
  std::vector<Cta> ctas;
  std::vector<Fiber> fibers;
  std::vector<ThreadState> states;  // by Fiber::stack
  bool states_used;                 // since they were last cleared
  uint32_t threads;                 // in all of them
  uint32_t live;
  uint32_t cluster_phase;    // cluster barriers completed
  uint32_t cluster_arrived;  // threads that arrived at the next one
  CallSite cluster_site;
  void* launcher;  // the stack pointer of launch_erased
};

struct Options {
  int32_t schedule = QSA_HOST_FIFO;
  int32_t compute_capability = 90;
  int32_t multiprocessors = 132;
  uint64_t seed = 0;
  uint64_t fuel = kDefaultFuel;
};

extern Options options;
extern Launch launch_state;
extern Fiber* current;           // null outside a launch
extern uintptr_t current_stack;  // where its stack begins
extern Stacks stacks;
extern int64_t fuel_left;

// splitmix64's finaliser: equal inputs give equal numbers, close ones nothing alike.
inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

inline bool same_place(CallSite a, CallSite b) {
  return a.id == b.id && a.line == b.line && a.file == b.file;
}

inline ThreadState& state_of(const Fiber& fiber) {
  launch_state.states_used = true;
  return launch_state.states[fiber.stack];
}

// --- scheduler.cpp ---
// Lets others run until this thread is made ready again; its site says where it waits.
void block_current(Wait wait);
void make_ready(Fiber* fiber);
// Ends the launch with a status; the threads are abandoned where they stand.
[[noreturn]] void abandon_launch(int32_t status);
[[noreturn, gnu::cold, gnu::noinline]] void out_of_fuel(uint64_t address);
uint64_t next_random();
// Relative to the start of this library, as addr2line wants it.
uint64_t library_offset(const void* code);

// One unit for every collective; the compiler's hook burns one for every basic block.
inline void burn_fuel() {
  if (--fuel_left < 0) out_of_fuel(0);
}

// --- collectives.cpp ---
// A thread left the kernel: nobody may be waiting for it.
void check_return(const Fiber& fiber);

// --- misuse.cpp ---
void report_deadlock();

// --- cluster.cpp ---
void check_cluster_return(const Fiber& fiber);

// --- matrix.cpp ---
void compute_mma(Warp& warp);
void compute_load_matrix(Warp& warp);

// --- limits.cpp ---
// True when the device could run this; otherwise a finding says why not.
bool within_limits(CallSite site, const LaunchShape& shape);
uint64_t max_shared_bytes();

// --- shared_arena.cpp ---
void arena_reset();
bool arena_prepare();        // once a launch
void arena_start(Cta& cta);  // junk in everything, before a CTA starts

}  // namespace qsa::host
