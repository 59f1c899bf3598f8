// specimen_smooth: one step of a decaying sum.
//
// Computes   state[i] = decay * state[i] + values[i]      [decay]
//            level[i] = state[i] / (1 + |state[i]|)       [squash]
// Inputs     values [count] f32
// Carried    state [count] f32
// Outputs    level [count] f32
// Traps      a value that is not finite                   [finite]
// Refuses    null pointers, counts outside 1 .. 64        [refusals]

#include "common/portability.cuh"
#include "common/status.h"
#include "specimen/element.cuh"

namespace specimen {
namespace {

constexpr int kThreads = 32;

__global__ void smooth_kernel(const float* values, float* state, float* level, int32_t count, float decay) {
  const int32_t element = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (element >= count) {
    return;
  }
  const float value = values[element];
  if (!isfinite(value)) {
    QSA_TRAP("a value is not finite");
  }
  const float sum = __fmaf_rn(decay, state[element], value);
  state[element] = sum;
  level[element] = squash(sum);
}

}  // namespace
}  // namespace specimen

extern "C" int32_t specimen_smooth(const float* values, float* state, float* level, int64_t count,
                                   float decay, void* stream) {
  if (values == nullptr || state == nullptr || level == nullptr) {
    return QSA_NULL_POINTER;
  }
  if (count < 1 || count > specimen::kMostElements) {
    return QSA_BAD_EXTENT;
  }
  const unsigned blocks = static_cast<unsigned>((count + specimen::kThreads - 1) / specimen::kThreads);
  constexpr auto* kernel = specimen::smooth_kernel;
  return QSA_LAUNCH(kernel, dim3(blocks), dim3(specimen::kThreads), 0, stream, values, state, level,
                    static_cast<int32_t>(count), decay);
}
