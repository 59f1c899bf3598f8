// qsa_gather: the selected tokens' keys and values, out of a paged cache into a contiguous one.
//
// Computes   for every row r and every i < counts[r]: keys and values of token ids[r, i], found through row r
//              of the block table, bit by bit into slot i of row r of the scratch      [gather.copies-tokens]
//            and what lets paged attention read the scratch as a cache                 [gather.identity]
//              identity[r, j] = r * (scratch_tokens / page_tokens) + j
//              lengths[r] = counts[r]
// Inputs     k_pages, v_pages [page_count] pages of [page_tokens, kv_heads, head_dim] bf16,
//              page_stride elements apart                                             [gather.page-stride]
//            block_table [row_count, table_pages] i32, page ids up to 2^31 - 1    [gather.offsets-64-bit]
//            ids [row_count, ids_stride] i32, ascending; only the first counts[r] are read
//            counts [row_count] i32, on the device: 0 is an empty row                      [gather.counts]
// Outputs    k_scratch, v_scratch [row_count, scratch_tokens, kv_heads, head_dim] bf16; slots at or past
//              counts[r] keep what they held, which may be NaN                [gather.past-the-count]
//            identity [row_count, scratch_tokens / page_tokens] i32, lengths [row_count] i32
// Requires   k and v buffers and page_stride in whole 16 bytes; head_dim a multiple of 8; page_tokens 8
//            or more; scratch_tokens a multiple of page_tokens.
// Traps      a count outside 0 .. min(scratch_tokens, ids_stride); ids that do not ascend; a token behind the
//            block table; an entry that names no page                                 [gather.traps]
// Succeeds   with nothing to do for no rows.
// Numerics   a copy; no arithmetic.
// Launch     a warp a token, a CTA of them; the grid follows the capacities, a CTA past the count leaves. One
//            captured launch serves every count [gather.capacity-and-length]
// Scratch    none.
// Not for    rows that share a slot: each row has its own part of the scratch.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/head_vector.cuh"
#include "qsa/paged_cache.cuh"

#ifndef QSA_GATHER_THREADS
#define QSA_GATHER_THREADS 256
#endif

namespace qsa {
namespace {

constexpr int kGatherThreads = QSA_GATHER_THREADS;
constexpr int kTokensPerCta = kGatherThreads / kWarpLanes;
static_assert(kGatherThreads % kWarpLanes == 0 && kGatherThreads >= kWarpLanes && kGatherThreads <= 1024,
              "QSA_GATHER_THREADS is a whole number of warps, 32 to 1024");
// Loads of a lane on their way together: four of the keys and four of the values cover a token of 2 heads of
// 256 dims at once.
constexpr int kVectorsPerLane = 4;

struct GatherArguments {
  PagedCache cache;
  const int32_t* ids;
  const int32_t* counts;
  uint16_t* k_scratch;
  uint16_t* v_scratch;
  int32_t* identity;
  int32_t* lengths;
  int64_t ids_stride;
  int64_t scratch_tokens;
};

__device__ __forceinline__ int32_t count_of(const GatherArguments& arguments, int64_t row) {
  const int32_t count = __ldg(arguments.counts + row);
  if (count < 0 || count > arguments.scratch_tokens || count > arguments.ids_stride) {
    QSA_TRAP("a count outside what ids and scratch hold");
  }
  return count;
}

// [gather.traps] the order that paged attention and a reader of the scratch rely on.
__device__ __forceinline__ int32_t id_of(const int32_t* row_ids, int64_t slot) {
  const int32_t id = __ldg(row_ids + slot);
  if (slot > 0 && __ldg(row_ids + slot - 1) >= id) {
    QSA_TRAP("token ids do not ascend");
  }
  return id;
}

// [gather.identity] page j of row r's own part of the scratch.
__device__ __forceinline__ void write_identity(const GatherArguments& arguments, int64_t row, int32_t count) {
  const int64_t pages = arguments.scratch_tokens / arguments.cache.page_tokens;
  for (int64_t page = threadIdx.x; page < pages; page += kGatherThreads) {
    arguments.identity[row * pages + page] = static_cast<int32_t>(row * pages + page);
  }
  if (threadIdx.x == 0) {
    arguments.lengths[row] = count;
  }
}

__device__ __forceinline__ void copy_token(const GatherArguments& arguments, int64_t from, int64_t to,
                                           int lane) {
  const uint4* keys = reinterpret_cast<const uint4*>(arguments.cache.keys + from);
  const uint4* values = reinterpret_cast<const uint4*>(arguments.cache.values + from);
  uint4* key_slot = reinterpret_cast<uint4*>(arguments.k_scratch + to);
  uint4* value_slot = reinterpret_cast<uint4*>(arguments.v_scratch + to);
  const int vectors = arguments.cache.token_stride / kVectorDims;
  for (int first = 0; first < vectors; first += kVectorsPerLane * kWarpLanes) {
    uint4 key[kVectorsPerLane];
    uint4 value[kVectorsPerLane];
    for (int i = 0; i < kVectorsPerLane; ++i) {
      const int at = first + i * kWarpLanes + lane;
      if (at < vectors) {
        key[i] = __ldg(keys + at);
        value[i] = __ldg(values + at);
      }
    }
    for (int i = 0; i < kVectorsPerLane; ++i) {
      const int at = first + i * kWarpLanes + lane;
      if (at < vectors) {
        key_slot[at] = key[i];
        value_slot[at] = value[i];
      }
    }
  }
}

__global__ void __launch_bounds__(kGatherThreads) gather_kernel(GatherArguments arguments) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t row = blockIdx.y;
  const int32_t count = count_of(arguments, row);
  if (blockIdx.x == 0) {
    write_identity(arguments, row, count);
  }
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kTokensPerCta + warp;
  // [gather.past-the-count] neither ids nor slots past the count are touched.
  if (slot >= count) {
    return;
  }
  const int32_t id = id_of(arguments.ids + row * arguments.ids_stride, slot);
  const int64_t from = token_offset(arguments.cache, row, id);
  const int64_t to = (row * arguments.scratch_tokens + slot) * arguments.cache.token_stride;
  copy_token(arguments, from, to, lane);
}

int32_t launch_gather(const GatherArguments& arguments, int64_t row_count, void* stream) {
  const int64_t slots =
      arguments.scratch_tokens < arguments.ids_stride ? arguments.scratch_tokens : arguments.ids_stride;
  const int64_t ctas = (slots + kTokensPerCta - 1) / kTokensPerCta;
  const dim3 grid(static_cast<unsigned>(ctas < 1 ? 1 : ctas), static_cast<unsigned>(row_count));
  const dim3 block(kGatherThreads);
  return QSA_LAUNCH(gather_kernel, grid, block, 0, stream, arguments);
}

int32_t refuse_buffers(const GatherArguments& arguments) {
  const void* aligned[] = {arguments.cache.keys, arguments.cache.values, arguments.k_scratch,
                           arguments.v_scratch};
  for (const void* buffer : aligned) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!is_aligned16(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  const void* words[] = {arguments.cache.block_table, arguments.ids, arguments.counts, arguments.identity,
                         arguments.lengths};
  for (const void* buffer : words) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
  }
  return QSA_OK;
}

}  // namespace
}  // namespace qsa

extern "C" int32_t qsa_gather(const uint16_t* k_pages, const uint16_t* v_pages, const int32_t* block_table,
                              const int32_t* ids, const int32_t* counts, uint16_t* k_scratch,
                              uint16_t* v_scratch, int32_t* identity, int32_t* lengths, int64_t row_count,
                              int64_t page_count, int64_t page_stride, int64_t page_tokens,
                              int64_t table_pages, int64_t kv_heads, int64_t head_dim, int64_t ids_stride,
                              int64_t scratch_tokens, void* stream) {
  constexpr int64_t kMostRows = 65535;  // gridDim.y
  if (row_count < 0 || row_count > kMostRows || ids_stride < 1 || ids_stride > INT32_MAX ||
      scratch_tokens < 1 || scratch_tokens > INT32_MAX ||
      !qsa::is_paged_cache(page_count, page_stride, page_tokens, table_pages, kv_heads, head_dim)) {
    return QSA_BAD_EXTENT;
  }
  // The identity table numbers whole pages of the scratch, in int32.
  if (scratch_tokens % page_tokens != 0 || row_count * (scratch_tokens / page_tokens) > INT32_MAX) {
    return QSA_BAD_EXTENT;
  }
  if (page_stride % qsa::kVectorDims != 0 || head_dim % qsa::kVectorDims != 0) {
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
                              static_cast<int32_t>(kv_heads * head_dim)};
  const qsa::GatherArguments arguments{cache,    ids,     counts,     k_scratch,     v_scratch,
                                       identity, lengths, ids_stride, scratch_tokens};
  const int32_t refusal = qsa::refuse_buffers(arguments);
  return refusal != QSA_OK ? refusal : qsa::launch_gather(arguments, row_count, stream);
}
