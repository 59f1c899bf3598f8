// qsa_decode_attention: the context of one token a sequence over a paged cache, as qsa_gather leaves one.
//
// Computes   for every row r: context[r, h] = softmax(q[r, h] . keys / 16) . values for the 16 query heads h,
//              over tokens 0 .. lengths[r] - 1 of row r of the block table               [decode.every-token]
//              head h reads KV head h / 8 [decode.grouped-heads]
//            A row of length 0 is an empty slot: its context is zero                    [decode.empty-slot]
// Inputs     q [row_count, 16, 256] bf16, roped
//            k_pages, v_pages [page_count] pages of [page_tokens, 2, 256] bf16, page_stride elements apart;
//            block_table [row_count, table_pages] i32; the gather's scratch, its identity table
//            lengths [row_count] i32, on the device: one captured launch serves every length
// Outputs    context [row_count, 16, 256] bf16, every element
// Requires   buffers of bf16 aligned to 16 bytes; page_stride in whole 16 bytes; fewer than 2^28 rows.
// Traps      a negative length; a token that the block table does not place            [decode.traps]
// Succeeds   with nothing to do for no rows.
// Numerics   as in attention_row.cuh, the tiles dealt to the warps of all its CTAs: a row's bits do not
//            depend on the batch.
//            Slots past the length are never read                                      [decode.nothing-else]
// Launch     a cluster of eight CTAs a row and KV head: one row is too little work for one of them, and its
//            time is what a decode step waits for. Elsewhere than on compute capability 9 to 11 a CTA.
// Scratch    dynamic shared memory: 105 KiB in a cluster, else 97 KiB.
// Not for    other head counts or dims.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/attention_merge.cuh"
#include "qsa/attention_row.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/paged_cache.cuh"

namespace qsa {
namespace {

constexpr int kDecodeWarps = 4;
constexpr int kDecodeThreads = kDecodeWarps * kWarpLanes;
constexpr int kDecodeCtas = 8;  // of a cluster: what every device that has clusters serves

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

// CTA `rank` writes its part of the group's context.
template <int kCtas>
__device__ __forceinline__ void write_zeros(uint16_t* context, int rank) {
  constexpr int kVectors = attention::kContextFloats / kVectorDims / kCtas;
  for (int at = static_cast<int>(threadIdx.x); at < kVectors; at += kDecodeThreads) {
    reinterpret_cast<uint4*>(context)[rank * kVectors + at] = make_uint4(0, 0, 0, 0);
  }
}

template <int kCtas>
__global__ void __launch_bounds__(kDecodeThreads) decode_attention_kernel(DecodeArguments arguments) {
  using Workspace = attention::Workspace<kDecodeWarps, kCtas>;
  QSA_DYNAMIC_SHARED(Workspace, shared);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int rank = static_cast<int>(blockIdx.x) % kCtas;
  const int64_t row = blockIdx.x / kCtas;
  const int kv_head = static_cast<int>(blockIdx.y);
  const EveryToken tokens{__ldg(arguments.lengths + row)};
  if (tokens.count < 0) {
    QSA_TRAP("a negative length");
  }
  // [decode.grouped-heads] query heads 8k .. 8k + 7 share KV head k.
  const int64_t heads = (row * attention::kHeads + kv_head * attention::kGroupHeads) * attention::kDims;
  // The whole cluster leaves or stays.
  if (tokens.count == 0) {
    write_zeros<kCtas>(arguments.context + heads, rank);
    return;
  }
  if constexpr (kCtas > 1) {
    cluster_arrive();
  }
  const attention::WarpState state =
      attention::attend(arguments.cache, tokens, row, arguments.q + heads, kv_head,
                        rank * kDecodeWarps + warp, kCtas * kDecodeWarps, lane, shared->ring[warp]);
  if constexpr (kCtas > 1) {
    cluster_wait();  // every CTA has begun: its memory may be written
  }
  attention::merge(state, shared, arguments.context + heads, rank, warp, lane);
}

// Compute capability 12 has clusters, but not the shared memory.
bool has_decode_clusters(int capability) { return capability >= 90 && capability < 120; }

template <int kCtas>
int32_t launch_decode(const DecodeArguments& arguments, int64_t row_count, void* stream) {
  const dim3 grid(static_cast<unsigned>(row_count * kCtas), attention::kKvHeads);
  return QSA_LAUNCH_CLUSTER(decode_attention_kernel<kCtas>, grid, dim3(kDecodeThreads), kCtas,
                            sizeof(attention::Workspace<kDecodeWarps, kCtas>), stream, arguments);
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
  if (row_count < 0 || row_count > INT32_MAX / qsa::kDecodeCtas || query_heads != attention::kHeads ||
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
  if (qsa::has_decode_clusters(qsa::compute_capability())) {
    return qsa::launch_decode<qsa::kDecodeCtas>(arguments, row_count, stream);
  }
  return qsa::launch_decode<1>(arguments, row_count, stream);
}
