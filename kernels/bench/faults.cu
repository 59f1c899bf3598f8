// qsa_fault: one fault of each kind that compute-sanitizer looks for, to prove that a tool sees it here.
//
// Computes   nothing of use
// Inputs     data [count] u32, never written by the caller beforehand
// Outputs    sink [1] u32
// Scratch    none
// Not for    anything else: every kind but 0 is a fault on purpose.

#include "common/portability.cuh"
#include "common/status.h"

namespace qsa {
namespace {

constexpr int kThreads = 64;

enum Fault : int32_t {
  kNone = 0,
  kOutOfBounds = 1,      // memcheck
  kSharedRace = 2,       // racecheck
  kUninitialised = 3,    // initcheck
  kDivergentBarrier = 4  // synccheck
};

__global__ void __launch_bounds__(kThreads)
    fault_kernel(uint32_t* data, int64_t count, uint32_t* sink, int32_t fault) {
  QSA_SHARED(uint32_t, shared, kThreads);
  const unsigned thread = threadIdx.x;
  shared[thread] = thread;
  __syncthreads();
  if (fault == kOutOfBounds && thread == 0) {
    data[count] = 1;
  }
  if (fault == kSharedRace) {
    // No barrier between this store and the neighbour's load below.
    shared[thread] = thread + 1;
  }
  uint32_t value = shared[(thread + 32) % kThreads];
  if (fault == kUninitialised) {
    value += data[thread % count];
  }
  if (fault == kDivergentBarrier) {
    if (thread < 16) {
      __syncthreads();
    } else {
      value += 1;
    }
  }
  if (thread == 0) {
    *sink = value;
  }
}

}  // namespace
}  // namespace qsa

extern "C" int32_t qsa_fault(uint32_t* data, uint32_t* sink, int64_t count, int32_t fault, void* stream) {
  if (data == nullptr || sink == nullptr) {
    return QSA_NULL_POINTER;
  }
  if (count < 1) {
    return QSA_BAD_EXTENT;
  }
  return QSA_LAUNCH(qsa::fault_kernel, dim3(1), dim3(qsa::kThreads), 0, stream, data, count, sink, fault);
}
