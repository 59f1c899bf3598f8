// qsa_prefill_attention: the context of a slab's selective rows, over their selected blocks and tail.
//
// Computes   for every row r at position p = rows[r] that is at or past the inert bound, p >= budget + 3:
//              context[r, h] = softmax(q[r, h] . keys / 16) . values for the 16 query heads h, over exactly
//              the budget / 4 blocks of ids[r] and the (p + 1) % 4 tokens behind the last complete block
//                                                              [prefill.selected-blocks] [prefill.tail]
//              head h reads KV head h / 8 [prefill.grouped-heads]
//            A row before the bound keeps every bit of its context: dense attention is exact there, and is
//            the caller's [prefill.inert-bound]
// Inputs     q [row_count, 16, 256] bf16, roped; rows [row_count] i32, absolute positions
//            k_pages, v_pages [page_count] pages of [page_tokens, 2, 256] bf16, page_stride elements apart;
//            block_table [table_pages] i32, one sequence's
//            ids [row_count, ids_stride] i32, counts [row_count] i32, as qsa_select_ids leaves them
// Outputs    context [row_count, 16, 256] bf16, selective rows only
// Requires   buffers of bf16 aligned to 16 bytes; page_stride in whole 16 bytes; ids_stride >= budget + 3.
// Traps      a negative position; a selective row whose count is not budget + (p + 1) % 4; a block that does
//            not begin at a multiple of 4, or does not end before p + 1; a token that the block table does
//            not place                                                                      [prefill.traps]
// Succeeds   with nothing to do for no rows.
// Numerics   as in attention_row.cuh. A NaN or an infinity reaches the context of the rows and heads that see
//            it, and no other: what was not selected is never read                     [prefill.nothing-else]
// Launch     a CTA a row and KV head; a CTA of a row before the bound leaves at once.
// Scratch    dynamic shared memory: 97 KiB.
// Not for    other head counts or dims; more than one sequence a call.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/attention_merge.cuh"
#include "qsa/attention_row.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/paged_cache.cuh"

namespace qsa {
namespace {

constexpr int kPrefillThreads = 128;
constexpr int kPrefillWarps = kPrefillThreads / kWarpLanes;
constexpr int64_t kMostPrefillBudget = 2048;  // of qsa_select_ids

using PrefillWorkspace = attention::Workspace<kPrefillWarps, 1>;

struct PrefillArguments {
  const uint16_t* q;
  const int32_t* rows;
  PagedCache cache;
  const int32_t* ids;
  const int32_t* counts;
  uint16_t* context;
  int64_t ids_stride;
  int32_t budget;
};

// A row's tokens in ascending order: four of each selected block, then the tail.
struct SelectedTokens {
  const int32_t* ids;
  int32_t position;
  int32_t of_blocks;  // tokens
  int32_t tail_begin;
  int32_t count;

  // [prefill.selected-blocks] a block is named by its first token's id.
  __device__ __forceinline__ int32_t at(int32_t index) const {
    if (index >= of_blocks) {
      return tail_begin + index - of_blocks;  // [prefill.tail]
    }
    const int32_t block = __ldg(ids + index / kRatio * kRatio);
    if (block < 0 || block % kRatio != 0 || block + kRatio > position + 1) {
      QSA_TRAP("an id that begins no complete block of the row");
    }
    return block + index % kRatio;
  }
};

// [prefill.inert-bound] up to here every visible token is selected: budget, and a tail of three.
__device__ __forceinline__ bool is_selective(int32_t position, int32_t budget) {
  return position >= budget + kRatio - 1;
}

__device__ __forceinline__ SelectedTokens tokens_of(const PrefillArguments& arguments, int64_t row,
                                                    int32_t position) {
  const int32_t tail = (position + 1) % kRatio;
  SelectedTokens tokens;
  tokens.ids = arguments.ids + row * arguments.ids_stride;
  tokens.position = position;
  tokens.of_blocks = arguments.budget;
  tokens.tail_begin = position + 1 - tail;
  tokens.count = arguments.budget + tail;
  if (__ldg(arguments.counts + row) != tokens.count) {
    QSA_TRAP("a row's count is not its budget and tail");
  }
  return tokens;
}

__global__ void __launch_bounds__(kPrefillThreads, 2) prefill_attention_kernel(PrefillArguments arguments) {
  QSA_DYNAMIC_SHARED(PrefillWorkspace, shared);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t row = blockIdx.x;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int32_t position = __ldg(arguments.rows + row);
  if (position < 0) {
    QSA_TRAP("a row's position is negative");
  }
  // The whole CTA leaves or stays.
  if (!is_selective(position, arguments.budget)) {
    return;
  }
  const SelectedTokens tokens = tokens_of(arguments, row, position);
  // [prefill.grouped-heads] query heads 8k .. 8k + 7 share KV head k.
  const int64_t heads = (row * attention::kHeads + kv_head * attention::kGroupHeads) * attention::kDims;
  const attention::WarpState state =
      attention::attend(arguments.cache, tokens, 0, arguments.q + heads, kv_head, warp, kPrefillWarps, lane,
                        shared->ring[warp]);
  attention::merge(state, shared, arguments.context + heads, 0, warp, lane);
}

int32_t refuse_buffers(const PrefillArguments& arguments) {
  const void* aligned[] = {arguments.q, arguments.cache.keys, arguments.cache.values, arguments.context};
  for (const void* buffer : aligned) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!is_aligned16(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  const void* words[] = {arguments.rows, arguments.cache.block_table, arguments.ids, arguments.counts};
  for (const void* buffer : words) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
  }
  return QSA_OK;
}

}  // namespace
}  // namespace qsa

extern "C" int32_t qsa_prefill_attention(const uint16_t* q, const int32_t* rows, const uint16_t* k_pages,
                                         const uint16_t* v_pages, const int32_t* block_table,
                                         const int32_t* ids, const int32_t* counts, uint16_t* context,
                                         int64_t row_count, int64_t page_count, int64_t page_stride,
                                         int64_t page_tokens, int64_t table_pages, int64_t query_heads,
                                         int64_t kv_heads, int64_t head_dim, int64_t ids_stride,
                                         int64_t budget, void* stream) {
  namespace attention = qsa::attention;
  if (row_count < 0 || row_count > INT32_MAX || query_heads != attention::kHeads ||
      kv_heads != attention::kKvHeads || head_dim != attention::kDims ||
      !qsa::is_paged_cache(page_count, page_stride, page_tokens, table_pages, kv_heads, head_dim)) {
    return QSA_BAD_EXTENT;
  }
  if (budget <= 0 || budget % qsa::kRatio != 0 || budget > qsa::kMostPrefillBudget) {
    return QSA_BAD_BUDGET;
  }
  if (page_stride % qsa::kVectorDims != 0 || ids_stride < budget + qsa::kRatio - 1 ||
      ids_stride > INT32_MAX) {
    return QSA_BAD_STRIDE;
  }
  if (row_count == 0) {
    return QSA_OK;
  }
  const qsa::PagedCache cache{k_pages,
                              v_pages,
                              block_table,
                              page_count,
                              page_stride,
                              table_pages,
                              static_cast<int32_t>(page_tokens),
                              attention::kKvHeads * attention::kDims};
  const qsa::PrefillArguments arguments{q,      rows,    cache,      ids,
                                        counts, context, ids_stride, static_cast<int32_t>(budget)};
  const int32_t refusal = qsa::refuse_buffers(arguments);
  if (refusal != QSA_OK) {
    return refusal;
  }
  const dim3 grid(static_cast<unsigned>(row_count), attention::kKvHeads);
  return QSA_LAUNCH(qsa::prefill_attention_kernel, grid, dim3(qsa::kPrefillThreads),
                    sizeof(qsa::PrefillWorkspace), stream, arguments);
}
