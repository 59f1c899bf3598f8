// What both kernels of the specimen know of an element.
#pragma once

#include "common/portability.cuh"

namespace specimen {

constexpr int64_t kMostElements = 64;

// Into (-1, 1), keeping the order.
__device__ __forceinline__ float squash(float value) {
  return __fdiv_rn(value, __fadd_rn(1.0f, fabsf(value)));
}

}  // namespace specimen
