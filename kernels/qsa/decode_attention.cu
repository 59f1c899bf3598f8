// qsa_decode_attention: the context of one token a sequence over a paged cache, as qsa_gather leaves one.
//
// Computes   for every row r: context[r, h] = softmax(q[r, h] . keys / 16) . values for the 16 query heads h,
// over
//              tokens 0 .. lengths[r] - 1 of row r of the block table                    [decode.every-token]
//              head h reads KV head h / 8 [decode.grouped-heads]
//            A row of length 0 is an empty slot: its context is zero                    [decode.empty-slot]
// Inputs     q [row_count, 16, 256] bf16, roped
//            k_pages, v_pages [page_count] pages of [page_tokens, 2, 256] bf16, page_stride elements apart;
//            block_table [row_count, table_pages] i32; the gather's scratch, its identity table
//            lengths [row_count] i32, on the device: one captured launch serves every length
// Outputs    context [row_count, 16, 256] bf16, every element
// Requires   buffers of bf16 aligned to 16 bytes; page_stride in whole 16 bytes.
// Traps      a negative length; a token that the block table does not place            [decode.traps]
// Succeeds   with nothing to do for no rows.
// Numerics   as in attention_row.cuh: over the same tokens in the same order the bits are those of
//            qsa_prefill_attention. Slots past the length are never read               [decode.nothing-else]
// Launch     a CTA a row and KV head.
// Scratch    static shared memory: 33 KiB.
// Not for    other head counts or dims.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/attention_row.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/paged_cache.cuh"

namespace qsa {
namespace {

constexpr int kDecodeThreads = 128;
constexpr int kDecodeWarps = kDecodeThreads / kWarpLanes;

struct DecodeArguments {
  const uint16_t* q;
  PagedCache cache;
  const int32_t* lengths;
  uint16_t* context;
};

// [decode.every-token] the list of a cache that holds nothing but what is attended to.
struct EveryToken {
  int32_t count;

  __device__ __forceinline__ int32_t at(int32_t index) const { return index; }
};

__device__ __forceinline__ void write_zeros(uint16_t* context) {
  constexpr int kVectors = attention::kGroupHeads * attention::kDims / kVectorDims;
  for (int at = static_cast<int>(threadIdx.x); at < kVectors; at += kDecodeThreads) {
    reinterpret_cast<uint4*>(context)[at] = make_uint4(0, 0, 0, 0);
  }
}

__global__ void __launch_bounds__(kDecodeThreads, 2) decode_attention_kernel(DecodeArguments arguments) {
  QSA_SHARED(float, shared, kDecodeWarps*(attention::kShareFloats + 2 * attention::kGroupHeads));
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t row = blockIdx.x;
  const int kv_head = static_cast<int>(blockIdx.y);
  const EveryToken tokens{__ldg(arguments.lengths + row)};
  if (tokens.count < 0) {
    QSA_TRAP("a negative length");
  }
  // [decode.grouped-heads] query heads 8k .. 8k + 7 share KV head k.
  const int64_t heads = (row * attention::kHeads + kv_head * attention::kGroupHeads) * attention::kDims;
  // The whole CTA leaves or stays.
  if (tokens.count == 0) {
    write_zeros(arguments.context + heads);
    return;
  }
  const attention::WarpState state =
      attention::attend(arguments.cache, tokens, row, arguments.q + heads, kv_head, warp, kDecodeWarps, lane);
  attention::merge<kDecodeWarps>(state, shared, arguments.context + heads, warp, lane);
}

int32_t refuse_buffers(const DecodeArguments& arguments) {
  const void* aligned[] = {arguments.q, arguments.cache.keys, arguments.cache.values, arguments.context};
  for (const void* buffer : aligned) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!is_aligned16(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  return arguments.cache.block_table == nullptr || arguments.lengths == nullptr ? QSA_NULL_POINTER : QSA_OK;
}

}  // namespace
}  // namespace qsa

extern "C" int32_t qsa_decode_attention(const uint16_t* q, const uint16_t* k_pages, const uint16_t* v_pages,
                                        const int32_t* block_table, const int32_t* lengths, uint16_t* context,
                                        int64_t row_count, int64_t page_count, int64_t page_stride,
                                        int64_t page_tokens, int64_t table_pages, int64_t query_heads,
                                        int64_t kv_heads, int64_t head_dim, void* stream) {
  namespace attention = qsa::attention;
  if (row_count < 0 || row_count > INT32_MAX || query_heads != attention::kHeads ||
      kv_heads != attention::kKvHeads || head_dim != attention::kDims ||
      !qsa::is_paged_cache(page_count, page_stride, page_tokens, table_pages, kv_heads, head_dim)) {
    return QSA_BAD_EXTENT;
  }
  if (page_stride % qsa::kVectorDims != 0) {
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
  const qsa::DecodeArguments arguments{q, cache, lengths, context};
  const int32_t refusal = qsa::refuse_buffers(arguments);
  if (refusal != QSA_OK) {
    return refusal;
  }
  const dim3 grid(static_cast<unsigned>(row_count), attention::kKvHeads);
  return QSA_LAUNCH(qsa::decode_attention_kernel, grid, dim3(qsa::kDecodeThreads), 0, stream, arguments);
}
