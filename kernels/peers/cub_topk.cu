// The peer "device-wide top k": cub::DeviceTopK on one row after another, then the rows' masks.
//
// Computes   the keeps highest of each row's prefix, in no order, ties as they fall; a mask of them and
//            the tail.
// Inputs     scores [row_count * score_cols] f32; blocks [score_cols] i32, each block's own number; rows and
//            device_keeps [row_count] i32; of row r, prefixes[r] and keeps[r] stand in the host's memory too
// Scratch    kept_scores f32 and kept_blocks i32 [row_count * most_kept]; temporary, of the size that
//            cub_topk_temporary_bytes says
// Outputs    mask [row_count, tokens] u8
// Requires   a toolkit whose CCCL has cub/device/device_topk.cuh (3.2 and later)
// Not for    production: a measure for the kernels that are

#if !__has_include(<cub/device/device_topk.cuh>)
#error "this toolkit's CCCL has no cub/device/device_topk.cuh (it came with CCCL 3.2)"
#else

#include <cub/device/device_topk.cuh>
#include <stdint.h>

#include "common/status.h"
#include "peers/blocks_to_mask.cuh"

namespace {

cudaError_t top_of_row(void* temporary, size_t* bytes, const float* scores, float* kept_scores,
                       const int32_t* blocks, int32_t* kept_blocks, int64_t items, int64_t keep,
                       cudaStream_t stream) {
  namespace execution = cuda::execution;
  const auto wanted =
      execution::require(execution::determinism::not_guaranteed, execution::output_ordering::unsorted);
  const auto environment = cuda::std::execution::env{cuda::stream_ref{stream}, wanted};
  return cub::DeviceTopK::MaxPairs(temporary, *bytes, scores, kept_scores, blocks, kept_blocks, items, keep,
                                   environment);
}

}  // namespace

// Returns the temporary storage in bytes, negative where the device can't be asked.
extern "C" int64_t cub_topk_temporary_bytes(int64_t items, int64_t keep) {
  size_t bytes = 0;
  const cudaError_t error =
      top_of_row(nullptr, &bytes, nullptr, nullptr, nullptr, nullptr, items, keep, nullptr);
  return error == cudaSuccess ? static_cast<int64_t>(bytes) : -1;
}

extern "C" int32_t cub_topk_select(const float* scores, const int32_t* blocks, const int64_t* prefixes,
                                   const int64_t* keeps, const int32_t* device_keeps, const int32_t* rows,
                                   float* kept_scores, int32_t* kept_blocks, int64_t most_kept,
                                   void* temporary, int64_t temporary_bytes, uint8_t* mask, int64_t row_count,
                                   int64_t tokens, int64_t score_cols, void* stream) {
  const cudaStream_t cuda_stream = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaSuccess;
  for (int64_t row = 0; row < row_count && error == cudaSuccess; ++row) {
    if (keeps[row] == 0) continue;
    size_t bytes = static_cast<size_t>(temporary_bytes);
    error = top_of_row(temporary, &bytes, scores + row * score_cols, kept_scores + row * most_kept, blocks,
                       kept_blocks + row * most_kept, prefixes[row], keeps[row], cuda_stream);
  }
  if (error == cudaSuccess) {
    error = peers::blocks_to_mask(kept_blocks, most_kept, device_keeps, rows, mask, row_count, tokens,
                                  cuda_stream);
  }
  return error == cudaSuccess ? QSA_OK : QSA_LAUNCH_FAILED;
}

#endif
