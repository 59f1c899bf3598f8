// What a CUDA thread does together with others: barriers, warp votes, shuffles, reductions, traps.
//
// Every collective is a rendezvous: a thread posts what it wants and where it stands, the last one to arrive
// computes, and any disagreement ends the launch with a finding that names both places. The call site is part
// of what is agreed on; __COUNTER__ tells two collectives of one line apart.
#pragma once

#include <stdint.h>

#include "host/intrinsics.h"
#include "host/vector_types.h"

namespace qsa::host {

enum class BarrierOp : uint32_t { kSync, kCount, kAnd, kOr };

enum class WarpOp : uint32_t {
  kSync,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kAny,
  kAll,
  kMatchAny,
  kReduceAdd,
  kReduceMinSigned,
  kReduceMinUnsigned,
  kReduceMaxSigned,
  kReduceMaxUnsigned,
  kReduceAnd,
  kReduceOr,
  kReduceXor,
  kMma,
  kLoadMatrix,
};

// A thread's coordinates never change while that thread runs, so its code may read them as constants: the
// compiler keeps them in registers, and the checker's instrumentation leaves them alone.
extern "C" {
extern const uint3 qsa_host_thread_index __attribute__((visibility("hidden")));
extern const uint3 qsa_host_block_index __attribute__((visibility("hidden")));
extern const uint3 qsa_host_block_extent __attribute__((visibility("hidden")));
extern const uint3 qsa_host_grid_extent __attribute__((visibility("hidden")));
}

struct CallSite;
#pragma GCC visibility push(hidden)
int barrier(CallSite site, BarrierOp op, int predicate);
// `value` and `parameter` are the lane's own; mma and ldmatrix pass the address of their operands.
uint64_t warp_collective(CallSite site, WarpOp op, uint32_t mask, uint64_t value, uint32_t parameter);
[[noreturn]] void trap(CallSite site, const char* reason);
void yield_now(CallSite site);
#pragma GCC visibility pop

template <class T>
QSA_HOST_INLINE uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8, "a lane exchanges at most eight bytes");
  uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof(value));
  return word;
}

template <class T>
QSA_HOST_INLINE T from_word(uint64_t word) {
  T value;
  __builtin_memcpy(&value, &word, sizeof(value));
  return value;
}

// Where a collective stands in the source. The CUDA names below are its member functions.
struct CallSite {
  const char* file;
  uint32_t line;
  uint32_t id;

  static QSA_HOST_INLINE CallSite here(const char* file = __builtin_FILE(),
                                       uint32_t line = __builtin_LINE()) {
    return CallSite{file, line, 0};
  }

  QSA_HOST_INLINE void syncthreads() const { barrier(*this, BarrierOp::kSync, 0); }
  QSA_HOST_INLINE int syncthreads_count(int p) const { return barrier(*this, BarrierOp::kCount, p); }
  QSA_HOST_INLINE int syncthreads_and(int p) const { return barrier(*this, BarrierOp::kAnd, p); }
  QSA_HOST_INLINE int syncthreads_or(int p) const { return barrier(*this, BarrierOp::kOr, p); }

  QSA_HOST_INLINE void syncwarp(unsigned mask = 0xffffffffu) const { word(WarpOp::kSync, mask, 0, 0); }
  template <class T>
  QSA_HOST_INLINE T shuffle(unsigned mask, T value, int lane, int width = 32) const {
    return exchange(WarpOp::kShuffle, mask, value, lane, width);
  }
  template <class T>
  QSA_HOST_INLINE T shuffle_up(unsigned mask, T value, unsigned delta, int width = 32) const {
    return exchange(WarpOp::kShuffleUp, mask, value, static_cast<int>(delta), width);
  }
  template <class T>
  QSA_HOST_INLINE T shuffle_down(unsigned mask, T value, unsigned delta, int width = 32) const {
    return exchange(WarpOp::kShuffleDown, mask, value, static_cast<int>(delta), width);
  }
  template <class T>
  QSA_HOST_INLINE T shuffle_xor(unsigned mask, T value, int lanes, int width = 32) const {
    return exchange(WarpOp::kShuffleXor, mask, value, lanes, width);
  }
  QSA_HOST_INLINE unsigned ballot(unsigned mask, int predicate) const {
    return word(WarpOp::kBallot, mask, predicate != 0, 0);
  }
  QSA_HOST_INLINE int any(unsigned mask, int predicate) const {
    return static_cast<int>(word(WarpOp::kAny, mask, predicate != 0, 0));
  }
  QSA_HOST_INLINE int all(unsigned mask, int predicate) const {
    return static_cast<int>(word(WarpOp::kAll, mask, predicate != 0, 0));
  }
  template <class T>
  QSA_HOST_INLINE unsigned match_any(unsigned mask, T value) const {
    return static_cast<unsigned>(warp_collective(*this, WarpOp::kMatchAny, mask, to_word(value), 0));
  }
  QSA_HOST_INLINE unsigned reduce_add(unsigned mask, unsigned v) const {
    return word(WarpOp::kReduceAdd, mask, v, 0);
  }
  QSA_HOST_INLINE int reduce_add(unsigned mask, int v) const { return as_int(WarpOp::kReduceAdd, mask, v); }
  QSA_HOST_INLINE unsigned reduce_min(unsigned mask, unsigned v) const {
    return word(WarpOp::kReduceMinUnsigned, mask, v, 0);
  }
  QSA_HOST_INLINE int reduce_min(unsigned mask, int v) const {
    return as_int(WarpOp::kReduceMinSigned, mask, v);
  }
  QSA_HOST_INLINE unsigned reduce_max(unsigned mask, unsigned v) const {
    return word(WarpOp::kReduceMaxUnsigned, mask, v, 0);
  }
  QSA_HOST_INLINE int reduce_max(unsigned mask, int v) const {
    return as_int(WarpOp::kReduceMaxSigned, mask, v);
  }
  QSA_HOST_INLINE unsigned reduce_and(unsigned mask, unsigned v) const {
    return word(WarpOp::kReduceAnd, mask, v, 0);
  }
  QSA_HOST_INLINE unsigned reduce_or(unsigned mask, unsigned v) const {
    return word(WarpOp::kReduceOr, mask, v, 0);
  }
  QSA_HOST_INLINE unsigned reduce_xor(unsigned mask, unsigned v) const {
    return word(WarpOp::kReduceXor, mask, v, 0);
  }

  [[noreturn]] QSA_HOST_INLINE void trap(const char* reason = "__trap()") const { host::trap(*this, reason); }
  QSA_HOST_INLINE void nanosleep(unsigned) const { yield_now(*this); }

 private:
  QSA_HOST_INLINE unsigned word(WarpOp op, unsigned mask, unsigned value, uint32_t parameter) const {
    return static_cast<unsigned>(warp_collective(*this, op, mask, value, parameter));
  }
  QSA_HOST_INLINE int as_int(WarpOp op, unsigned mask, int value) const {
    return static_cast<int>(word(op, mask, static_cast<unsigned>(value), 0));
  }
  template <class T>
  QSA_HOST_INLINE T exchange(WarpOp op, unsigned mask, T value, int lane, int width) const {
    const uint32_t parameter = (static_cast<uint32_t>(width) << 8) | (static_cast<uint32_t>(lane) & 31u);
    return from_word<T>(warp_collective(*this, op, mask, to_word(value), parameter));
  }
};

}  // namespace qsa::host

#define QSA_HOST_HERE (::qsa::host::CallSite{__FILE__, __LINE__, __COUNTER__})

#define threadIdx (::qsa::host::qsa_host_thread_index)
#define blockIdx (::qsa::host::qsa_host_block_index)
#define blockDim (::qsa::host::qsa_host_block_extent)
#define gridDim (::qsa::host::qsa_host_grid_extent)
constexpr int warpSize = 32;

#define __syncthreads QSA_HOST_HERE.syncthreads
#define __syncthreads_count QSA_HOST_HERE.syncthreads_count
#define __syncthreads_and QSA_HOST_HERE.syncthreads_and
#define __syncthreads_or QSA_HOST_HERE.syncthreads_or
#define __syncwarp QSA_HOST_HERE.syncwarp
#define __shfl_sync QSA_HOST_HERE.shuffle
#define __shfl_up_sync QSA_HOST_HERE.shuffle_up
#define __shfl_down_sync QSA_HOST_HERE.shuffle_down
#define __shfl_xor_sync QSA_HOST_HERE.shuffle_xor
#define __ballot_sync QSA_HOST_HERE.ballot
#define __any_sync QSA_HOST_HERE.any
#define __all_sync QSA_HOST_HERE.all
#define __match_any_sync QSA_HOST_HERE.match_any
#define __reduce_add_sync QSA_HOST_HERE.reduce_add
#define __reduce_min_sync QSA_HOST_HERE.reduce_min
#define __reduce_max_sync QSA_HOST_HERE.reduce_max
#define __reduce_and_sync QSA_HOST_HERE.reduce_and
#define __reduce_or_sync QSA_HOST_HERE.reduce_or
#define __reduce_xor_sync QSA_HOST_HERE.reduce_xor
#define __trap QSA_HOST_HERE.trap
#define __nanosleep QSA_HOST_HERE.nanosleep

// No thread can rely on being converged with another, so a thread is active with itself only: code that takes
// the mask as it comes works, code that expects its neighbours in it shows.
QSA_HOST_INLINE unsigned __activemask() {
  return 1u << (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32u;
}
