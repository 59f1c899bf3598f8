// One memory access of a kernel, and the stamps by which the checker remembers accesses. Checked mode only.
#pragma once

#include <stdint.h>

#include "host/buffers.h"
#include "host/runtime.h"

namespace qsa::host::checker {

// An atomic update reads what it replaces; an atomic write (an exchange) may find anything.
enum class Access : uint8_t { kRead, kWrite, kAtomicUpdate, kAtomicWrite };

// Where in the code: an address in the library, or a collective's place. Two words, so that it travels in
// registers: in memory it doubled the time of an access.
struct Origin {
  const void* code;
  const CallSite* site;
};

// Who touched a byte, when, and how, in 64 bits. Zero: nobody.
//   serial  18 bits  the CTA, counted since the reset: tells launches apart without clearing anything between
//   them thread  10 bits  in its CTA epoch   18 bits  barriers the thread had passed (and cluster barriers it
//   had arrived at) clock   16 bits  __syncwarps it had passed since atomic   1 bit several  1 bit   other
//   threads did the same, atomically and unordered with this one
using Stamp = uint64_t;
constexpr Stamp kSeveral = 1;
constexpr Stamp kAtomic = 2;
constexpr uint32_t kClockShift = 2;
constexpr uint32_t kClockBits = 16;
constexpr uint32_t kEpochShift = kClockShift + kClockBits;
constexpr uint32_t kEpochBits = 18;
constexpr uint32_t kThreadShift = kEpochShift + kEpochBits;
constexpr uint32_t kThreadBits = 10;
constexpr uint32_t kSerialShift = kThreadShift + kThreadBits;
constexpr uint32_t kSerialBits = 18;
static_assert(kSerialShift + kSerialBits == 64 && kMaxThreads == 1u << kThreadBits, "a stamp is 64 bits");

constexpr uint32_t field(Stamp stamp, uint32_t shift, uint32_t bits) {
  return static_cast<uint32_t>(stamp >> shift) & ((1u << bits) - 1u);
}
constexpr uint32_t serial_of(Stamp stamp) { return field(stamp, kSerialShift, kSerialBits); }
constexpr uint32_t thread_of(Stamp stamp) { return field(stamp, kThreadShift, kThreadBits); }
constexpr uint32_t epoch_of(Stamp stamp) { return field(stamp, kEpochShift, kEpochBits); }
constexpr uint32_t clock_of(Stamp stamp) { return field(stamp, kClockShift, kClockBits); }

__attribute__((noinline)) void access(uintptr_t address, uint64_t bytes, Access kind, Origin origin);

// --- checker_reports.cpp: findings in words. Each costs nothing when it was reported before. ---
struct Target {
  const char* name;  // of the buffer or array
  int64_t offset;
};
void report_race(Target target, uint64_t bytes, Access kind, Origin origin, Stamp other, bool other_wrote);
// A block returns, and nothing orders that with what `other` did in its shared memory.
void report_return(Target target, Stamp other, bool other_wrote);
void report_uninitialised(Target target, uint64_t bytes, Origin origin);
void report_read_only(Target target, uint64_t bytes, Origin origin);
void report_index(int64_t index, CallSite site);
void report_shift(int64_t count, CallSite site);
void report_misaligned(uintptr_t address, uint64_t bytes, Access kind, Origin origin);
// Outside of everything the kernel may touch; `what` says more where more is known.
void report_bounds(uintptr_t address, uint64_t bytes, Access kind, Origin origin, const char* what);
void forget_reports();

// The block a CTA's serial number stands for, in this launch.
uint3 block_of(uint32_t serial);

}  // namespace qsa::host::checker
