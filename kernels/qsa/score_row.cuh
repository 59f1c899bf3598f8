// What every score body shares: the arguments, the checks of one row, the row's query and the scale.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"

namespace qsa {

constexpr float kScoreScale = 0.08838834764831845f;  // 1 / sqrt(128)

struct ScoreArguments {
  const uint16_t* fused_qk;
  const uint16_t* q_norm_weight;
  const uint16_t* cos;
  const uint16_t* sin;
  const uint16_t* block_keys;
  const int32_t* rows;
  const int32_t* visible_len;
  float* scores;
  int64_t row_count;
  int64_t tokens;
  int64_t first_position;
  int64_t fused_rows;
  int64_t block_capacity;
  int64_t score_cols;
  float eps;
};

// Traps unless the row's visible length fits the tables and the block keys.
// [score.visible-range-traps] outside 0 .. tokens there is no context to score.
// [score.block-capacity] a visible block without a key would be read past the buffer.
__device__ __forceinline__ void require_visible_len(const ScoreArguments& arguments, int64_t visible_len) {
  if (visible_len < 0 || visible_len > arguments.tokens) {
    QSA_TRAP("visible_len outside 0 .. tokens");
  }
  if (visible_len / kRatio > arguments.block_capacity) {
    QSA_TRAP("more blocks visible than block_capacity holds");
  }
}

// Traps unless the row stands inside the tables and its fused row is present.
// [score.row-range-traps] a wrong position is refused, never clamped.
// [score.first-position] fused row 0 belongs to first_position.
__device__ __forceinline__ void require_position(const ScoreArguments& arguments, int64_t position) {
  if (position < 0 || position >= arguments.tokens) {
    QSA_TRAP("row position outside 0 .. tokens - 1");
  }
  const int64_t fused_row = position - arguments.first_position;
  if (fused_row < 0 || fused_row >= arguments.fused_rows) {
    QSA_TRAP("row position outside the fused rows");
  }
}

// Query head `head` of the row at `position`; the whole warp calls it.
// [score.query-norm-then-rotation] norm, bf16, then the rotation at the row's own position.
__device__ __forceinline__ LaneDims query_head(const ScoreArguments& arguments, int64_t position, int head,
                                               int lane) {
  const int64_t fused_row = position - arguments.first_position;
  const uint16_t* raw = arguments.fused_qk + fused_row * kFusedStride + head * kHeadDim;
  const LaneDims weight = load_lane_dims(arguments.q_norm_weight, lane);
  const LaneDims normed = rms_norm(load_lane_dims(raw, lane), weight, arguments.eps);
  const uint16_t* cos_row = arguments.cos + position * kRotaryDim;
  const uint16_t* sin_row = arguments.sin + position * kRotaryDim;
  return rotate(normed, cos_row, sin_row, lane);
}

// [score.nan-stays-nan] a comparison keeps a NaN; fmaxf(x, 0) would turn it into a valid-looking zero.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// [score.relu-per-head] each head is cut at zero before the heads are added.
// [score.scale] the sum is divided by sqrt(128).
__device__ __forceinline__ float score_of_heads(const float (&dot)[kQueryHeads]) {
  const float front = __fadd_rn(relu(dot[0]), relu(dot[1]));
  const float back = __fadd_rn(relu(dot[2]), relu(dot[3]));
  return __fmul_rn(__fadd_rn(front, back), kScoreScale);
}

}  // namespace qsa
