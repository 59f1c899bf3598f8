// dsa_expand_selection: the token ids of each query row's kept pools and its tail.
//
// Computes   for every query row at position p of its sequence, in this order:
//              the tokens of the kept pools, ascending                              [dsa.pools-to-tokens]
//              with select_tail the visible tail: of the n valid keys at p and before it the n % kpool
//                tokens from first_key + n - n % kpool on, as far as they are keys that p sees
//                [dsa.tail] [dsa.tail-from-the-first-key], each token once [dsa.no-token-twice]
//              -1 up to the row's width, topk + kpool - 1 or without select_tail topk        [dsa.fill]
//            and -1 everywhere for a row whose own token is no key                           [dsa.masked-row]
//            Without invalid keys behind the first one the tail is the incomplete pool, and the ids ascend.
// Inputs     kept_pools [batch, query_rows, topk / kpool] i32, ascending, kept_counts [batch, query_rows]
//              i32, as dsa_topk_pools leaves them
//            q_pos [query_rows] i32, null with geometry: the one row stands at the last live token
//            valid, first_keys, slots, pool_starts as in pool_lists.cuh, null together
//            geometry [5] i32 on the device, or null
// Outputs    token_ids [batch, query_rows, width] i32, every element written
// Requires   topk a multiple of kpool; with geometry one sequence and one row
// Traps      a position outside 0 .. live tokens - 1; a count outside 0 .. topk / kpool; a kept pool that
//            the row does not see; a geometry that contradicts itself or passes `tokens` [dsa.range-traps]
// Succeeds   with nothing to do for no sequences or no rows. No live token leaves a row of -1.
// Launch     CTAs of 128 threads that take 128 ids of a row each, of many rows 2,048.
// Scratch    none.

#include "common/portability.cuh"
#include "common/status.h"
#include "dsa/pool_lists.cuh"

namespace qsa {
namespace dsa {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct ExpandArguments {
  const int32_t* kept_pools;
  const int32_t* kept_counts;
  const int32_t* q_pos;
  const int32_t* geometry;
  int32_t* token_ids;
  PoolLists lists;
  int32_t query_rows;
  int32_t tokens;
  int32_t most_kept;
  int32_t tail_width;  // kpool - 1, or 0 without a tail
};

// The place in the row of a thread's i-th id, of the CTA's ids from `base` on.
__device__ __forceinline__ uint32_t place_of(uint32_t base, int i) {
  return base + static_cast<uint32_t>(i) * kThreads + threadIdx.x;
}

// The pools that the thread's ids belong to, as far as there may be any.
template <int kIds>
__device__ __forceinline__ void load_pools(const int32_t* kept, int32_t most_kept, uint32_t base, int shift,
                                           int32_t (&pool)[kIds]) {
  DSA_UNROLL
  for (int i = 0; i < kIds; ++i) {
    const uint32_t place = place_of(base, i) >> shift;
    pool[i] = place < static_cast<uint32_t>(most_kept) ? __ldg(kept + place) : -1;
  }
}

// Whether an ascending list holds an index.
__device__ __forceinline__ bool holds(const int32_t* ascending, int32_t count, int32_t index) {
  int32_t low = 0;
  int32_t high = count;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (ascending[middle] < index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && ascending[low] == index;
}

// Whether a visible token belongs to a kept pool. Only keys missing behind the first one bring a tail into a
// complete pool.
__device__ __forceinline__ bool is_kept(const PoolLists& lists, int64_t sequence, int32_t token, int32_t live,
                                        const int32_t* kept, int32_t count) {
  if (!lists.listed()) {
    return false;
  }
  const int32_t first = lists.first_key(sequence);
  const int32_t number = (token - first) / lists.kpool;
  if (number >= (live - first) / lists.kpool) {
    return false;
  }
  const int32_t pool = lists.slot(sequence, number)[1];
  return lists.slot(sequence, number + 1)[1] > pool && holds(kept, count, pool);
}

// The tail in the order of tokens, then -1: `tail_width` ids, by the first warp.
__device__ __forceinline__ void write_tail(const ExpandArguments& arguments, int64_t sequence,
                                           int32_t position, int32_t live, const int32_t* kept, int32_t count,
                                           int32_t* ids) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x);
  const PoolLists& lists = arguments.lists;
  const int32_t keys = lists.keys_seen(sequence, position);
  const int32_t tail = keys % lists.kpool;
  const int32_t token = lists.first_key(sequence) + keys - tail + lane;
  const bool chosen = lane < tail && token <= position && lists.is_key(sequence, token) &&
                      !is_kept(lists, sequence, token, live, kept, count);
  const unsigned all = __ballot_sync(kAllLanes, chosen);
  const unsigned before = all & ((1u << lane) - 1u);
  if (chosen) {
    ids[__popc(before)] = token;
  }
  if (lane >= __popc(all) && lane < arguments.tail_width) {
    ids[lane] = -1;
  }
}

template <int kIds, bool kIsListed>
__global__ void __launch_bounds__(kThreads) expand_kernel(ExpandArguments arguments) {
  constexpr uint32_t kCtaIds = kThreads * kIds;
  arguments.lists = known<kIsListed>(arguments.lists);
  const PoolLists& lists = arguments.lists;
  const int32_t kpool = lists.kpool;
  const int shift = pool_shift_of(kpool);
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t* const kept = arguments.kept_pools + static_cast<int64_t>(row) * arguments.most_kept;
  const uint32_t width = static_cast<uint32_t>(arguments.most_kept * kpool + arguments.tail_width);
  const uint32_t stride = gridDim.y * kCtaIds;
  uint32_t base = blockIdx.y * kCtaIds;
  // All of these are on their way at once, and while the position is looked up.
  const LiveWords words = load_words(arguments.geometry);
  const int32_t count = __ldg(arguments.kept_counts + row);
  int32_t pool[kIds];
  load_pools(kept, arguments.most_kept, base, shift, pool);
  const int32_t sequence = row / arguments.query_rows;
  const int32_t asked =
      arguments.geometry != nullptr ? 0 : __ldg(arguments.q_pos + row % arguments.query_rows);
  const int32_t live = live_tokens(words, arguments.geometry, arguments.tokens);
  const int32_t position = arguments.geometry != nullptr ? live - 1 : asked;
  if (arguments.geometry == nullptr && (position < 0 || position >= live)) {
    QSA_TRAP("a query row stands outside 0 .. live tokens - 1");
  }
  int32_t* const ids = arguments.token_ids + static_cast<int64_t>(row) * width;
  // [dsa.masked-row] nothing live is no key either.
  const bool is_masked = position < 0 || !lists.is_key(sequence, position);
  if (!is_masked && (count < 0 || count > arguments.most_kept)) {
    QSA_TRAP("a row keeps fewer pools than none or more than topk / kpool");
  }
  const int32_t seen = is_masked ? 0 : lists.pools_seen(sequence, position);
  const uint32_t pool_ids = is_masked ? 0u : static_cast<uint32_t>(count * kpool);
  const uint32_t tail_end = is_masked ? 0u : pool_ids + static_cast<uint32_t>(arguments.tail_width);
  // A full row has nothing to fill, and as many ids of pools as its CTAs take in one turn.
  const uint32_t end = tail_end < width ? width : pool_ids;
  DSA_ROLLED
  for (; base < end; base += stride) {
    DSA_UNROLL
    for (int i = 0; i < kIds; ++i) {
      const uint32_t place = place_of(base, i);
      if (place < pool_ids) {
        if (pool[i] < 0 || pool[i] >= seen) {
          QSA_TRAP("a row keeps a pool that it does not see");
        }
        ids[place] = lists.start_of(sequence, pool[i]) + static_cast<int32_t>(place % (1u << shift));
      } else if (place >= tail_end && place < width) {
        // [dsa.fill]
        ids[place] = -1;
      }
    }
    load_pools(kept, arguments.most_kept, base + stride, shift, pool);
  }
  // The last CTA has the fewest ids, and may have none but these.
  if (!is_masked && arguments.tail_width > 0 && blockIdx.y + 1 == gridDim.y && thread < kLanes) {
    write_tail(arguments, sequence, position, live, kept, count, ids + pool_ids);
  }
  trap_if_wrong(words, arguments.geometry, arguments.tokens, kpool);
}

// CTAs of a row.
template <int kIds>
int32_t launch_ids(const ExpandArguments& arguments, int64_t rows, int64_t ids, void* stream) {
  constexpr int64_t kCtaIds = kThreads * kIds;
  constexpr int64_t kMostParts = 65535;  // gridDim.y
  const int64_t parts = (ids + kCtaIds - 1) / kCtaIds;
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>(parts < kMostParts ? parts : kMostParts));
  auto* const kernel =
      arguments.lists.valid != nullptr ? expand_kernel<kIds, true> : expand_kernel<kIds, false>;
  return QSA_LAUNCH(kernel, grid, dim3(kThreads), 0, stream, arguments);
}

// A few rows are spread over CTAs that write an id a thread, many rows keep to as many CTAs as the ids of
// their pools fill. us on an H200, of 2,051 ids a row: one row 1.3 with an id a thread, 1.5 with two, 1.7
// with four; 2,048 rows 28 with one, 10.8 with eight, 9.8 with 16. The emulation's cases are small, and reach
// both.
constexpr int64_t kFewRows = QSA_HOST ? 2 : 32;

int32_t launch(const ExpandArguments& arguments, int64_t rows, void* stream) {
  const int64_t pool_ids = static_cast<int64_t>(arguments.most_kept) * arguments.lists.kpool;
  return rows <= kFewRows ? launch_ids<1>(arguments, rows, pool_ids + arguments.tail_width, stream)
                          : launch_ids<16>(arguments, rows, pool_ids, stream);
}

}  // namespace
}  // namespace dsa
}  // namespace qsa

extern "C" int32_t dsa_expand_selection(const int32_t* kept_pools, const int32_t* kept_counts,
                                        const int32_t* q_pos, const uint8_t* valid, const int32_t* geometry,
                                        const int32_t* first_keys, const int32_t* slots,
                                        const int32_t* pool_starts, int32_t* token_ids, int64_t batch,
                                        int64_t query_rows, int64_t tokens, int64_t token_capacity,
                                        int64_t pool_capacity, int64_t topk, int64_t kpool,
                                        int64_t select_tail, void* stream) {
  const int32_t refusal = qsa::dsa::refuse_sequences(batch, tokens, token_capacity, pool_capacity, kpool);
  if (refusal != QSA_OK) {
    return refusal;
  }
  if (query_rows < 0 || query_rows > INT32_MAX || batch * query_rows > INT32_MAX ||
      (geometry != nullptr && (batch > 1 || query_rows > 1))) {
    return QSA_BAD_EXTENT;
  }
  // The width of a row is an int32 too.
  if (topk < kpool || topk % kpool != 0 || topk > INT32_MAX - kpool || select_tail < 0 || select_tail > 1) {
    return QSA_BAD_BUDGET;
  }
  if (batch == 0 || query_rows == 0) {
    return QSA_OK;
  }
  if (kept_pools == nullptr || kept_counts == nullptr || token_ids == nullptr ||
      (q_pos == nullptr && geometry == nullptr)) {
    return QSA_NULL_POINTER;
  }
  const void* const lists[] = {first_keys, slots, pool_starts};
  for (const void* list : lists) {
    if ((list == nullptr) != (valid == nullptr)) {
      return QSA_NULL_POINTER;
    }
  }
  const qsa::dsa::ExpandArguments arguments{
      kept_pools,
      kept_counts,
      q_pos,
      geometry,
      token_ids,
      {valid, first_keys, slots, pool_starts, token_capacity, pool_capacity, static_cast<int32_t>(kpool)},
      static_cast<int32_t>(query_rows),
      static_cast<int32_t>(tokens),
      static_cast<int32_t>(topk / kpool),
      select_tail != 0 ? static_cast<int32_t>(kpool) - 1 : 0};
  return qsa::dsa::launch(arguments, batch * query_rows, stream);
}
