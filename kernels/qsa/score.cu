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
// Entries    qsa_score         the fastest body the device has for so many rows: warpgroup multiplication on
//                              compute capability 9.0, else mma.sync, scalar before 8.0
//            qsa_score_mma     mma.sync, as on a device without warpgroup multiplication; refused before
//                              compute capability 8.0
//            qsa_score_scalar  f32 FMA on the CUDA cores, anywhere
//            They take the same arguments and keep the same contract.
// Numerics   the query as in head_vector.cuh, with the same bits in every body; dot products in f32 in the
//            order the body states, so a score of one entry on one device depends on no length, and on the
//            number of rows only where that chooses the body. A NaN in a key or a query reaches every score
//            that sees it, and no other.
//            A key that no row sees may hold anything. It may be read, inside block_capacity, and no score
//            depends on it [score.unseen-keys].
// Launch     tokens, block_capacity and score_cols are capacities; live lengths are read on the device, so
//            one captured launch serves every length.
// Scratch    none.
// Not for    more than one sequence a call.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/score_mma.cuh"
#include "qsa/score_row.cuh"
#include "qsa/score_scalar.cuh"
#include "qsa/score_wgmma.cuh"

namespace qsa {
namespace score_body {

// By what the launch fixes, the number of rows and the device, and never by a live length, so a captured
// launch stays right.
struct Automatic {
  static int32_t launch(const ScoreArguments& arguments, void* stream) {
    if (Wgmma::serves(arguments)) {
      return Wgmma::launch(arguments, stream);
    }
    return Mma::serves() ? Mma::launch(arguments, stream) : Scalar::launch(arguments, stream);
  }
};

}  // namespace score_body
}  // namespace qsa

namespace {

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

// What every entry refuses, and the launch of its body.
template <class Body>
int32_t launch_checked(const qsa::ScoreArguments& arguments, int64_t fused_stride, int64_t rotary_dim,
                       void* stream) {
  const int32_t extents = refuse_extents(arguments);
  if (extents != QSA_OK) {
    return extents;
  }
  // [score.column-stride] a shorter row would run into the next one.
  const int64_t grid_columns = arguments.tokens < qsa::kRatio ? 1 : arguments.tokens / qsa::kRatio;
  if (arguments.score_cols < grid_columns || fused_stride != qsa::kFusedStride) {
    return QSA_BAD_STRIDE;
  }
  if (rotary_dim != qsa::kRotaryDim) {
    return QSA_BAD_ROTARY;
  }
  // Written so that a NaN is refused too.
  if (!(arguments.eps >= 0.0f)) {
    return QSA_BAD_EPS;
  }
  // [score.no-rows] before the pointers: an empty buffer may have none.
  if (arguments.row_count == 0) {
    return QSA_OK;
  }
  const int32_t pointers = refuse_pointers(arguments);
  if (pointers != QSA_OK) {
    return pointers;
  }
  return Body::launch(arguments, stream);
}

}  // namespace

extern "C" int32_t qsa_score(const uint16_t* fused_qk, const uint16_t* q_norm_weight, const uint16_t* cos,
                             const uint16_t* sin, const uint16_t* block_keys, const int32_t* rows,
                             const int32_t* visible_len, float* scores, int64_t row_count, int64_t tokens,
                             int64_t first_position, int64_t fused_rows, int64_t block_capacity,
                             int64_t score_cols, int64_t fused_stride, int64_t rotary_dim, float eps,
                             void* stream) {
  return launch_checked<qsa::score_body::Automatic>(
      {fused_qk, q_norm_weight, cos, sin, block_keys, rows, visible_len, scores, row_count, tokens,
       first_position, fused_rows, block_capacity, score_cols, eps},
      fused_stride, rotary_dim, stream);
}

extern "C" int32_t qsa_score_mma(const uint16_t* fused_qk, const uint16_t* q_norm_weight, const uint16_t* cos,
                                 const uint16_t* sin, const uint16_t* block_keys, const int32_t* rows,
                                 const int32_t* visible_len, float* scores, int64_t row_count, int64_t tokens,
                                 int64_t first_position, int64_t fused_rows, int64_t block_capacity,
                                 int64_t score_cols, int64_t fused_stride, int64_t rotary_dim, float eps,
                                 void* stream) {
  return launch_checked<qsa::score_body::Mma>(
      {fused_qk, q_norm_weight, cos, sin, block_keys, rows, visible_len, scores, row_count, tokens,
       first_position, fused_rows, block_capacity, score_cols, eps},
      fused_stride, rotary_dim, stream);
}

extern "C" int32_t qsa_score_scalar(const uint16_t* fused_qk, const uint16_t* q_norm_weight,
                                    const uint16_t* cos, const uint16_t* sin, const uint16_t* block_keys,
                                    const int32_t* rows, const int32_t* visible_len, float* scores,
                                    int64_t row_count, int64_t tokens, int64_t first_position,
                                    int64_t fused_rows, int64_t block_capacity, int64_t score_cols,
                                    int64_t fused_stride, int64_t rotary_dim, float eps, void* stream) {
  return launch_checked<qsa::score_body::Scalar>(
      {fused_qk, q_norm_weight, cos, sin, block_keys, rows, visible_len, scores, row_count, tokens,
       first_position, fused_rows, block_capacity, score_cols, eps},
      fused_stride, rotary_dim, stream);
}
