// What the runtime tells the checker. In the plain mode all of it is nothing.
#pragma once

#include <stdint.h>

#include "host/buffers.h"
#include "host/runtime.h"

namespace qsa::host::checker {

#if QSA_HOST_CHECKED

// Bookkeeping for a piece of memory; all of it starts as never touched.
Shadow allocate(uint64_t bytes, const char* name);
void release(Shadow& shadow, uint64_t bytes);

void reset();
void start_launch();
void end_launch();
// The next CTA, or cluster, from the grid's block `first_block` on. False when the checker cannot count it.
bool start_group(uint64_t first_block);
void start_cta(Cta& cta);
// The running thread is the last of its CTA to return, and the cluster has others.
void end_cta(const Cta& cta);

// Synchronisation: what came before it in one thread is ordered before what comes after it in another.
void sync_cta(Cta& cta);
void sync_warp(Warp& warp, uint32_t mask);
void arrive_cluster(Fiber& fiber);

// Accesses the runtime makes for the running thread: 16 bytes, 16-byte aligned.
void load_row(CallSite site, const void* row);
// A lane's four bytes of a row that load_row has passed.
void receive(Fiber& lane, const void* word);
// The issue of an asynchronous copy; what it returns is for its arrival.
uint32_t copy_source(CallSite site, const void* global);
void copy_destination(CallSite site, void* shared, uint32_t since);

#else

inline Shadow allocate(uint64_t, const char*) { return Shadow{}; }
inline void release(Shadow&, uint64_t) {}
inline void reset() {}
inline void start_launch() {}
inline void end_launch() {}
inline bool start_group(uint64_t) { return true; }
inline void start_cta(Cta&) {}
inline void end_cta(const Cta&) {}
inline void sync_cta(Cta&) {}
inline void sync_warp(Warp&, uint32_t) {}
inline void arrive_cluster(Fiber&) {}
inline void load_row(CallSite, const void*) {}
inline void receive(Fiber&, const void*) {}
inline uint32_t copy_source(CallSite, const void*) { return 0; }
inline void copy_destination(CallSite, void*, uint32_t) {}

#endif

}  // namespace qsa::host::checker
