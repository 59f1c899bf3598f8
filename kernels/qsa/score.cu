// qsa_score: how much each row's query heads want each block of four tokens.
//
// Computes   for every row r at position p = rows[r] and every block b < visible_len[r] / 4:
//              q_h = query head h after RMSNorm with weight (1 + w), to bf16, and the rotation at p, to bf16
//                    [score.query-norm-then-rotation] [norm.one-plus-weight] [norm.eps]
//                    [rotation.three-roundings]
//              scores[r, b] = sum over h of relu(q_h . block_keys[b]) / sqrt(128)
//                    [score.relu-per-head] [score.scale] [score.nan-stays-nan]
// Inputs     fused_qk [fused_rows, 640] bf16, query heads in columns 0 .. 511; its row 0 belongs to
//            first_position [score.first-position], so decode needs no buffer of the whole context
//            q_norm_weight [128] bf16
//            cos, sin [tokens, 64] bf16, by absolute position
//            block_keys [block_capacity, 128] bf16, as qsa_pool leaves them
//            rows [row_count] i32, absolute positions
//            visible_len [row_count] i32, how many tokens the row sees
// Outputs    scores [row_count, score_cols] f32; of row r only the first visible_len[r] / 4 columns are
//            written [score.untouched-tail]. With visible_len 0 nothing is written and the position is not
//            looked at [score.zero-visible].
// Requires   base pointers of bf16 buffers aligned to 16 bytes; fused_stride 640; rotary_dim 64;
//            score_cols >= max(1, tokens / 4) [score.column-stride].
// Traps      visible_len outside 0 .. tokens [score.visible-range-traps]; more blocks visible than
//            block_capacity [score.block-capacity]; a position outside 0 .. tokens - 1, or whose fused row is
//            not there [score.row-range-traps].
// Succeeds   with nothing to do for no rows [score.no-rows].
// Numerics   the query as in head_vector.cuh; dot products in f32 in the order the body states, so a score
//            does not depend on the launch shape. A NaN in a key or a query reaches every score that sees it,
//            and no other.
// Launch     tokens, block_capacity and score_cols are capacities; live lengths are read on the device, so
//            one captured launch serves every length.
// Scratch    none.
// Not for    more than one sequence a call.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/score_row.cuh"
#include "qsa/score_scalar.cuh"

// The body is chosen here and nowhere else: a member of qsa::score_body, by name. The tensor-core bodies are
// compiled when one is named: `mma`, `wgmma`, or `automatic`.
#ifndef QSA_SCORE_BODY
#define QSA_SCORE_BODY scalar
#else
#include "qsa/score_mma.cuh"
#include "qsa/score_wgmma.cuh"

namespace qsa {
namespace score_body {

// -DQSA_SCORE_BODY=automatic: by what the launch fixes, the number of rows and the device, and never by a
// live length, so a captured launch stays right.
struct automatic {
  static int32_t launch(const ScoreArguments& arguments, void* stream) {
    if (wgmma::serves(arguments)) {
      return wgmma::launch(arguments, stream);
    }
    return mma::serves() ? mma::launch(arguments, stream) : scalar::launch(arguments, stream);
  }
};

}  // namespace score_body
}  // namespace qsa
#endif

namespace {

using ScoreBody = qsa::score_body::QSA_SCORE_BODY;

int32_t refuse_extents(const qsa::ScoreArguments& arguments) {
  const int64_t extents[] = {arguments.row_count,  arguments.tokens,         arguments.first_position,
                             arguments.fused_rows, arguments.block_capacity, arguments.score_cols};
  for (const int64_t extent : extents) {
    if (extent < 0) {
      return QSA_BAD_EXTENT;
    }
  }
  // Positions are int32, and so is the grid's row dimension.
  if (arguments.tokens > INT32_MAX || arguments.row_count > INT32_MAX) {
    return QSA_BAD_EXTENT;
  }
  return QSA_OK;
}

int32_t refuse_pointers(const qsa::ScoreArguments& arguments) {
  const void* aligned[] = {arguments.fused_qk, arguments.q_norm_weight, arguments.cos, arguments.sin,
                           arguments.block_keys};
  for (const void* buffer : aligned) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!qsa::is_aligned16(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  if (arguments.rows == nullptr || arguments.visible_len == nullptr || arguments.scores == nullptr) {
    return QSA_NULL_POINTER;
  }
  return QSA_OK;
}

}  // namespace

extern "C" int32_t qsa_score(const uint16_t* fused_qk, const uint16_t* q_norm_weight, const uint16_t* cos,
                             const uint16_t* sin, const uint16_t* block_keys, const int32_t* rows,
                             const int32_t* visible_len, float* scores, int64_t row_count, int64_t tokens,
                             int64_t first_position, int64_t fused_rows, int64_t block_capacity,
                             int64_t score_cols, int64_t fused_stride, int64_t rotary_dim, float eps,
                             void* stream) {
  const qsa::ScoreArguments arguments{
      fused_qk,       q_norm_weight, cos,       sin,    block_keys,     rows,
      visible_len,    scores,        row_count, tokens, first_position, fused_rows,
      block_capacity, score_cols,    eps};
  const int32_t extents = refuse_extents(arguments);
  if (extents != QSA_OK) {
    return extents;
  }
  // [score.column-stride] a shorter row would run into the next one.
  const int64_t grid_columns = tokens < qsa::kRatio ? 1 : tokens / qsa::kRatio;
  if (score_cols < grid_columns || fused_stride != qsa::kFusedStride) {
    return QSA_BAD_STRIDE;
  }
  if (rotary_dim != qsa::kRotaryDim) {
    return QSA_BAD_ROTARY;
  }
  // Written so that a NaN is refused too.
  if (!(eps >= 0.0f)) {
    return QSA_BAD_EPS;
  }
  // [score.no-rows] before the pointers: an empty buffer may have none.
  if (row_count == 0) {
    return QSA_OK;
  }
  const int32_t pointers = refuse_pointers(arguments);
  if (pointers != QSA_OK) {
    return pointers;
  }
  return ScoreBody::launch(arguments, stream);
}
