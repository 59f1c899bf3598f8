// dsa_index_scores: how much each query row wants each pool.
//
// Computes   for every query row at position p and every pool j of its sequence:
//              score = sum over heads h of weights_h * relu(q_h . pool_key_j / sqrt(128))
//                [dsa.relu-per-head] [dsa.head-weight] [dsa.scale] [dsa.nan-stays]
//              where the pool's last token is p or before it, and the least f32 elsewhere
//                [dsa.visible-by-last-token] [dsa.masked]
//            and how many pools the row sees: as pools ascend, they are the first ones of the list.
// Inputs     q [batch, query_rows, 32, 128] bf16
//            weights [batch, query_rows, 32] f32, heads^-0.5 included
//            pool_keys [batch, pool_capacity, 128] bf16, lists and `valid` as dsa_kpool_compress leaves them
//            q_pos [query_rows] i32: the token that each row stands at, in every sequence; null with
//              geometry, where the one row stands at the last live token
//            geometry [5] i32 on the device, or null: `tokens` is the live length, not its ceiling
// Outputs    scores [batch, query_rows, score_cols] f32; of a row the sequence's live pools are written, what
//              follows is left untouched [dsa.untouched-tail]
//            visible_pools [batch, query_rows] i32 [dsa.zero-pools]
// Requires   bases of bf16 and f32 inputs aligned to 16 bytes; score_cols >= max(1, tokens / kpool), the
//            stride of rows whatever the live length [dsa.row-stride]; with geometry one sequence and one row
// Traps      a position outside 0 .. live tokens - 1; a geometry that contradicts itself or passes `tokens`;
//            a sequence that lists more pools than pool_capacity holds
// Succeeds   with nothing to do for no sequences, no rows or no tokens.
// Numerics   products of bf16 are exact; the tensor cores sum them in f32. Head weights times 1/sqrt(128),
//            the product with the relu and the sum over heads are f32. The order depends on no launch shape.
// Launch     up to four rows score_decode.cuh, more score_prefill.cuh. Grid and shape come from the ceiling,
//            the loop's end from the live length.
// Scratch    static shared memory: 8 KiB for few rows, 32 KiB for many.
// Not for    compute capability below 8, or other than 32 heads of 128.
//
// us on an H200, warm, pools in the cache: one row of 8,192 tokens 2.3, of 65,536 2.8, of 262,144 5.1; 2,048
// rows by 16,384 pools 884, 311 TFLOP/s.

#include "common/portability.cuh"
#include "common/status.h"
#include "dsa/pool_lists.cuh"
#include "dsa/score_decode.cuh"
#include "dsa/score_prefill.cuh"
#include "dsa/score_row.cuh"

namespace qsa {
namespace dsa {
namespace {

constexpr int kMostSharedBytes = 33 * 1024;  // what an engine may count on
static_assert(2 * sizeof(score_prefill::Slab) + score_prefill::kRows * sizeof(int32_t) <= kMostSharedBytes,
              "two slabs of keys and a word a warp fit");

// Eight rows share a slab of keys, few rows share nothing.
constexpr int32_t kFewRows = 4;

int32_t launch(const ScoreArguments& arguments, int64_t batch, void* stream) {
  return arguments.query_rows <= kFewRows ? score_decode::launch(arguments, batch, stream)
                                          : score_prefill::launch(arguments, batch, stream);
}

}  // namespace
}  // namespace dsa
}  // namespace qsa

extern "C" int32_t dsa_index_scores(const uint16_t* q, const float* weights, const uint16_t* pool_keys,
                                    const int32_t* q_pos, const uint8_t* valid, const int32_t* geometry,
                                    const int32_t* first_keys, const int32_t* slots, float* scores,
                                    int32_t* visible_pools, int64_t batch, int64_t query_rows, int64_t tokens,
                                    int64_t token_capacity, int64_t pool_capacity, int64_t score_cols,
                                    int64_t kpool, void* stream) {
  const int32_t refusal = qsa::dsa::refuse_sequences(batch, tokens, token_capacity, pool_capacity, kpool);
  if (refusal != QSA_OK) {
    return refusal;
  }
  if (query_rows < 0 || score_cols < 0 || batch * query_rows > INT32_MAX || query_rows > INT32_MAX) {
    return QSA_BAD_EXTENT;
  }
  // [dsa.one-row-replay] the geometry's last token is one row's position.
  if (geometry != nullptr && (batch > 1 || query_rows > 1)) {
    return QSA_BAD_EXTENT;
  }
  const int64_t least_stride = tokens < kpool ? 1 : tokens / kpool;
  if (score_cols < least_stride) {
    return QSA_BAD_STRIDE;
  }
  if (batch == 0 || query_rows == 0 || tokens == 0) {
    return QSA_OK;
  }
  const void* const aligned[] = {q, weights, pool_keys};
  for (const void* buffer : aligned) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!qsa::dsa::is_aligned(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  if (scores == nullptr || visible_pools == nullptr || (q_pos == nullptr && geometry == nullptr) ||
      (first_keys == nullptr) != (valid == nullptr) || (slots == nullptr) != (valid == nullptr)) {
    return QSA_NULL_POINTER;
  }
  const qsa::dsa::ScoreArguments arguments{
      q,
      weights,
      pool_keys,
      q_pos,
      geometry,
      scores,
      visible_pools,
      {valid, first_keys, slots, nullptr, token_capacity, pool_capacity, static_cast<int32_t>(kpool)},
      score_cols,
      static_cast<int32_t>(query_rows),
      static_cast<int32_t>(tokens)};
  return qsa::dsa::launch(arguments, batch, stream);
}
