// probe: a kernel that does to its child process whatever it is told to. No stage has it.
#include <stdio.h>
#include <stdlib.h>

#include "common/portability.cuh"
#include "common/status.h"

namespace specimen {
namespace {

enum Deed : int32_t {
  kCopy = 0,            // out = in + 1
  kFault = 1,           // reads memory that is not there
  kNeverEnd = 2,        // a loop without end
  kPrint = 3,           // prints a line that looks like an answer, then copies
  kWritePast = 4,       // copies, and writes the byte behind out
  kWriteBefore = 5,     // copies, and writes the byte before out
  kChangeInput = 6,     // copies, and adds one to in
  kLastThreadWins = 7,  // every thread writes out[0]
  kTrap = 8,
  kLeaveBarrier = 9,  // half the threads wait for the other half, which is gone
  kDivide = 10,       // divides by zero
  kExit = 11,         // ends the process as if all were well
  kSkipWrite = 12,    // leaves out as it is
};

__global__ void probe_kernel(uint8_t* in, uint8_t* out, int32_t count, int32_t deed) {
  const int32_t me = static_cast<int32_t>(threadIdx.x);
  if (deed == kSkipWrite) return;
  if (deed == kTrap) QSA_TRAP("the probe was told to");
  if (deed == kLeaveBarrier && me % 2 == 0) return;
  if (deed == kLeaveBarrier) __syncthreads();
  if (deed == kNeverEnd) {
    while (*const_cast<volatile uint8_t*>(in) < 255) {
    }
  }
  if (deed == kFault) out[0] = in[-(int64_t{1} << 40)];
  if (deed == kDivide) out[0] = static_cast<uint8_t>(1000 / (count / 1000));
  if (deed == kExit) _Exit(0);
  if (deed == kPrint && me == 0) printf("{\"case\": \"first\", \"lost\": \"\"}\n");
  if (me < count) out[me] = static_cast<uint8_t>(in[me] + 1);
  if (deed == kWritePast) out[count] = 1;
  if (deed == kWriteBefore) out[-1] = 1;
  if (deed == kChangeInput && me < count) in[me] = static_cast<uint8_t>(in[me] + 1);
  if (deed == kLastThreadWins) out[0] = static_cast<uint8_t>(me);
}

}  // namespace
}  // namespace specimen

extern "C" int32_t specimen_probe(uint8_t* in, uint8_t* out, int64_t count, int32_t deed, int32_t threads,
                                  void* stream) {
  if (count < 0) {
    return QSA_BAD_EXTENT;
  }
  constexpr auto* kernel = specimen::probe_kernel;
  return QSA_LAUNCH(kernel, dim3(1), dim3(static_cast<unsigned>(threads)), 0, stream, in, out,
                    static_cast<int32_t>(count), deed);
}
