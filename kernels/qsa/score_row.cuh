// What every score body shares: the arguments, the checks of one row, where its query is read, and how the
// dot products of its heads become a score. A rule that stands here can't differ from body to body.
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
__device__ __forceinline__ void require_position(const ScoreArguments& arguments, int64_t position) {
  if (position < 0 || position >= arguments.tokens) {
    QSA_TRAP("row position outside 0 .. tokens - 1");
  }
  const int64_t fused_row = position - arguments.first_position;
  if (fused_row < 0 || fused_row >= arguments.fused_rows) {
    QSA_TRAP("row position outside the fused rows");
  }
}

// Where the query of a row is read: its four heads, one after another, and the row's angles.
struct QueryPlace {
  const uint16_t* heads;
  const uint16_t* cosine;
  const uint16_t* sine;
};

// Only for a position that require_position() has passed.
// [score.first-position] fused row 0 belongs to first_position.
// [score.query-norm-then-rotation] the angles are those of the row's own position.
__device__ __forceinline__ QueryPlace query_place(const ScoreArguments& arguments, int64_t position) {
  const int64_t fused_row = position - arguments.first_position;
  return QueryPlace{arguments.fused_qk + fused_row * kFusedStride, arguments.cos + position * kRotaryDim,
                    arguments.sin + position * kRotaryDim};
}

// A dot product cut at zero, in one instruction: on the tensor cores this is half of what is left to do.
// [score.nan-stays-nan] a NaN stays; fmaxf(x, 0) would turn it into a valid-looking zero.
__device__ __forceinline__ float cut_at_zero(float x) {
#if QSA_HOST
  return x < 0.0f ? 0.0f : x;
#else
  float cut;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(cut) : "f"(x));
  return cut;
#endif
}

// What two heads give to a score.
// [score.relu-per-head] each head is cut at zero before the heads are added.
__device__ __forceinline__ float half_score(float dot, float other_dot) {
  return __fadd_rn(cut_at_zero(dot), cut_at_zero(other_dot));
}

// [score.scale] the sum of the heads is divided by sqrt(128).
__device__ __forceinline__ float whole_score(float front, float back) {
  return __fmul_rn(__fadd_rn(front, back), kScoreScale);
}

}  // namespace qsa
