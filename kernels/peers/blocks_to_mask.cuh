// From a list of kept blocks to the selection mask: what a peer that gives a list still owes.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace peers {

constexpr int kBlockTokens = 4;
constexpr int kThreads = 256;

// One CTA a row; the mask is zero before. `kept` [rows, stride] i32; of row r the first `keeps[r]` count.
__global__ void blocks_to_mask_kernel(const int32_t* kept, int64_t stride, const int32_t* keeps,
                                      const int32_t* rows, uint8_t* mask, int64_t tokens) {
  const int64_t row = blockIdx.x;
  uint8_t* const row_mask = mask + row * tokens;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < keeps[row]; i += kThreads) {
    const int64_t first = static_cast<int64_t>(kept[row * stride + i]) * kBlockTokens;
    for (int token = 0; token < kBlockTokens; ++token) row_mask[first + token] = 1;
  }
  const int32_t visible = rows[row] + 1;
  const int32_t tail = visible % kBlockTokens;
  if (static_cast<int32_t>(threadIdx.x) < tail) row_mask[visible - tail + threadIdx.x] = 1;
}

inline cudaError_t blocks_to_mask(const int32_t* kept, int64_t stride, const int32_t* keeps,
                                  const int32_t* rows, uint8_t* mask, int64_t row_count, int64_t tokens,
                                  cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(mask, 0, static_cast<size_t>(row_count * tokens), stream);
  if (error != cudaSuccess) return error;
  blocks_to_mask_kernel<<<static_cast<unsigned>(row_count), kThreads, 0, stream>>>(kept, stride, keeps, rows,
                                                                                   mask, tokens);
  return cudaGetLastError();
}

}  // namespace peers
