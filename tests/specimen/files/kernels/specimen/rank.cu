// specimen_rank: how many levels lie below each.
//
// Computes   rank[i] = |{j : level[j] < level[i]}|        [order]
// Inputs     level [count] f32
// Outputs    rank [count] i32
// Refuses    null pointers, counts outside 1 .. 64        [refusals]

#include "common/portability.cuh"
#include "common/status.h"
#include "specimen/element.cuh"

namespace specimen {
namespace {

__global__ void rank_kernel(const float* level, int32_t* rank, int32_t count) {
  QSA_SHARED(float, levels, kMostElements);
  const int32_t element = static_cast<int32_t>(threadIdx.x);
  if (element < count) {
    levels[element] = level[element];
  }
  __syncthreads();
  if (element >= count) {
    return;
  }
  int32_t below = 0;
  for (int32_t other = 0; other < count; ++other) {
    below += levels[other] < levels[element] ? 1 : 0;
  }
  rank[element] = below;
}

}  // namespace
}  // namespace specimen

extern "C" int32_t specimen_rank(const float* level, int32_t* rank, int64_t count, void* stream) {
  if (level == nullptr || rank == nullptr) {
    return QSA_NULL_POINTER;
  }
  if (count < 1 || count > specimen::kMostElements) {
    return QSA_BAD_EXTENT;
  }
  constexpr auto* kernel = specimen::rank_kernel;
  return QSA_LAUNCH(kernel, dim3(1), dim3(static_cast<unsigned>(specimen::kMostElements)), 0, stream, level,
                    rank, static_cast<int32_t>(count));
}
