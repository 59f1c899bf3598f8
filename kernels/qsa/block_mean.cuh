// The mean of a block's raw keys, shared by what pools whole contexts and what pools as tokens arrive.
#pragma once

#include "qsa/head_vector.cuh"

namespace qsa {

// [pool.mean-f32-then-bf16] the four keys are summed in f32 and their mean is rounded once, before the norm.
__device__ __forceinline__ LaneDims mean_of_keys(const LaneDims (&key)[kRatio]) {
  LaneDims mean;
  for (int i = 0; i < kDimsPerLane; ++i) {
    const float front = __fadd_rn(key[0].dim[i], key[1].dim[i]);
    const float back = __fadd_rn(key[2].dim[i], key[3].dim[i]);
    mean.dim[i] = round_to_bf16(__fmul_rn(__fadd_rn(front, back), 1.0f / kRatio));
  }
  return mean;
}

}  // namespace qsa
