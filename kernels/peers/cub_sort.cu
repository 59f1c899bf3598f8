// The peer "segmented radix sort": every row sorted by score, highest first, then the first of each marked.
//
// Computes   cub::DeviceSegmentedRadixSort::SortPairsDescending over the rows' prefixes (stable: equal
//            keys keep their order), then a mask of the first keeps[r] blocks and the tail of each row.
// Inputs     scores [row_count * score_cols] f32; blocks [row_count * score_cols] i32, each block's own
//            number; begins, ends [row_count] i64, each row's prefix; keeps, rows [row_count] i32
// Scratch    sorted_scores f32 and sorted_blocks i32 [row_count * score_cols]; temporary, of the size that
//            cub_sort_temporary_bytes says
// Outputs    mask [row_count, tokens] u8
// Not for    production: a measure for the kernels that are

#include <cub/device/device_segmented_radix_sort.cuh>
#include <stdint.h>

#include "common/status.h"
#include "peers/blocks_to_mask.cuh"

namespace {

cudaError_t sort_rows(void* temporary, size_t* bytes, const float* scores, float* sorted_scores,
                      const int32_t* blocks, int32_t* sorted_blocks, int64_t items, int64_t row_count,
                      const int64_t* begins, const int64_t* ends, cudaStream_t stream) {
  return cub::DeviceSegmentedRadixSort::SortPairsDescending(temporary, *bytes, scores, sorted_scores, blocks,
                                                            sorted_blocks, items, row_count, begins, ends, 0,
                                                            32, stream);
}

}  // namespace

// Returns the temporary storage in bytes, negative where the device can't be asked.
extern "C" int64_t cub_sort_temporary_bytes(int64_t row_count, int64_t score_cols) {
  size_t bytes = 0;
  const cudaError_t error = sort_rows(nullptr, &bytes, nullptr, nullptr, nullptr, nullptr,
                                      row_count * score_cols, row_count, nullptr, nullptr, nullptr);
  return error == cudaSuccess ? static_cast<int64_t>(bytes) : -1;
}

extern "C" int32_t cub_sort_select(const float* scores, const int32_t* blocks, const int64_t* begins,
                                   const int64_t* ends, const int32_t* keeps, const int32_t* rows,
                                   float* sorted_scores, int32_t* sorted_blocks, void* temporary,
                                   int64_t temporary_bytes, uint8_t* mask, int64_t row_count, int64_t tokens,
                                   int64_t score_cols, void* stream) {
  const cudaStream_t cuda_stream = static_cast<cudaStream_t>(stream);
  size_t bytes = static_cast<size_t>(temporary_bytes);
  cudaError_t error = sort_rows(temporary, &bytes, scores, sorted_scores, blocks, sorted_blocks,
                                row_count * score_cols, row_count, begins, ends, cuda_stream);
  if (error == cudaSuccess) {
    error =
        peers::blocks_to_mask(sorted_blocks, score_cols, keeps, rows, mask, row_count, tokens, cuda_stream);
  }
  return error == cudaSuccess ? QSA_OK : QSA_LAUNCH_FAILED;
}
