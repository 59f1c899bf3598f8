// The handle on a kernel library built for the CPU. Every such library carries its own runtime and exports
// these.
//
// How to use it, in a process that loaded the library (a fresh child for every run that may go wrong):
//   1. qsa_host_reset(&options): forgets buffers and findings, sets the schedule and the fuel.
//   2. qsa_host_register(base, bytes, flags, name): once for every buffer, with its exact size.
//   3. The kernel's C entry, as often as wanted. Its launches have ended when it returns.
//   4. qsa_host_findings(text, capacity): a JSON array of what was seen since the reset.
// The status an entry returned says how its launch ended (common/status.h); findings say what was wrong. A
// race, an uninitialised read, a write to an input or an access out of bounds leaves the status alone: look
// at both.
//
// A finding is an object: "kind", "message" (a sentence), "block" and "thread" as [x, y, z]; where known
// "buffer" and "offset" (bytes from its start), "file" and "line" (of a collective, trap or launch) or
// "address" (of the code of a memory access, hexadecimal, relative to the library; addr2line turns it into a
// line in the checked mode). Kinds: race, bounds, uninitialised and read-only exist in the checked mode only;
// trap, divergence, deadlock, fuel, launch-limit and crash in both. At most 16 are kept, each place once.
//
// A fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL) inside a launch ends the process with exit code 86. Before that,
// stderr gets the findings so far, one a line after `QSA_HOST_FINDING `, then one line `QSA_HOST_CRASH ` with
// the finding of kind crash.
//
// What an out-of-bounds write of a checked run overwrote in global memory is put back when the launch ends.
//
// Limits: x86-64 Linux; one launch at a time in a process; CTAs run one after another (those of a cluster
// together) and threads give way in collectives only, so a spin on another thread runs out of fuel. Fences
// order nothing. The checked mode counts 262,143 CTAs a reset, 262,143 barriers a CTA and 65,534 __syncwarps
// between two barriers, and refuses to go on beyond.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QSA_HOST_FIFO 0    // CTAs and threads in ascending order
#define QSA_HOST_LIFO 1    // both in descending order
#define QSA_HOST_SEEDED 2  // both in an order drawn from the seed

#define QSA_HOST_READ_ONLY 1u    // the kernel may not write it
#define QSA_HOST_INITIALISED 2u  // its contents are meant to be read

#define QSA_HOST_CRASH_EXIT_CODE 86

typedef struct {
  int32_t schedule;
  int32_t compute_capability;  // major * 10 + minor; 0: 90
  uint64_t seed;               // of the schedule and of the junk in fresh shared memory
  uint64_t fuel;               // basic blocks and collectives a reset allows; 0: the default, 2e10
  int32_t multiprocessors;     // 0: 132
  int32_t reserved;
} qsa_host_options;

void qsa_host_reset(const qsa_host_options* options);
// A later registration that overlaps an earlier one replaces it.
void qsa_host_register(const void* base, uint64_t bytes, uint32_t flags, const char* name);
// Returns the length of the JSON text without its terminator; writes it only if it fits with one.
uint64_t qsa_host_findings(char* json, uint64_t capacity);
// Since the reset. Equal for equal runs, so a clean run's figure sets the limit for a run that may not end.
uint64_t qsa_host_fuel_used(void);
// 0 plain, 1 checked.
int32_t qsa_host_mode(void);

#ifdef __cplusplus
}
#endif
