// dsa_kpool_compress: one key a pool of `kpool` tokens, weighed by a learned gate.
//
// Computes   for every pool, channel by channel, over its tokens t = 0 .. kpool - 1:
//              logit_t = gate_t + ape_t in f32                                  [dsa.ape]
//              p_t = softmax over t in f32, to bf16                             [dsa.softmax-over-the-pool]
//              key = sum of bf16(p_t * key_t), summed in f32, to bf16           [dsa.rounding]
//            and, where `valid` is given, the lists of pool_lists.cuh.
// Inputs     keys, gate [batch, token_capacity, 128] bf16
//            ape [kpool, 128] f32: a loader converts bf16 weights, weights that bf16 cannot hold stay
//            valid [batch, token_capacity] u8, or null: every token is a key
//            geometry [5] i32 on the device, or null: `tokens` is the live length, not its ceiling
// Outputs    pool_keys [batch, pool_capacity, 128] bf16
//            first_keys, slots, pool_starts as in pool_lists.cuh; null exactly where `valid` is
//            Only pools whose last token is among the last `fresh_tokens` live ones are written, and the
//            entries of their slots: pools of earlier steps are cached        [dsa.fresh-pools]
// Requires   bases of bf16 and f32 buffers aligned to 16 bytes; pool_capacity >= tokens / kpool; kpool 4 or
//            16; with geometry one sequence; where fresh_tokens is below the live tokens, the lists of the
//            step before, whose live tokens were that much fewer. A repeated or rewound step gives the same
//            again.
// Traps      a geometry that contradicts itself or passes `tokens`.
// Succeeds   with nothing to do for no sequences, no tokens or no fresh ones; fewer tokens than a pool are
//            legal and have none                                              [dsa.whole-pools]
// Numerics   IEEE f32 operations in a fixed order and an exponential made of them, so two runs, and the CPU
//            and the GPU, agree bit for bit. A NaN in a key or the gate stays a NaN in its pool's channel,
//            and reaches no other (the reference makes a NaN probability a zero)  [dsa.nan-stays]
// Launch     of few pools a thread a token of a channel, of some a thread a channel, of many a thread four of
//            its channels; newest pools first.
//            With `valid` a CTA a sequence goes before, over the fresh tokens.
// Scratch    none.

#include "common/portability.cuh"
#include "common/status.h"
#include "dsa/pool_lists.cuh"

#ifndef DSA_COMPRESS_THREADS
#define DSA_COMPRESS_THREADS 128
#endif

namespace qsa {
namespace dsa {
namespace {

constexpr int kThreads = DSA_COMPRESS_THREADS;
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kDims = 128;
constexpr int kMostSharedBytes = 256;  // what an engine may count on: two words a warp
static_assert(kThreads % kLanes == 0 && kThreads >= kLanes && kThreads <= 1024,
              "DSA_COMPRESS_THREADS is a whole number of warps, 32 to 1024");
static_assert(2 * kWarps * sizeof(int32_t) <= kMostSharedBytes, "the lists' scan fits");

struct CompressArguments {
  const uint16_t* keys;
  const uint16_t* gate;
  const float* ape;
  const int32_t* geometry;
  uint16_t* pool_keys;
  int32_t* first_keys;
  int32_t* slots;
  int32_t* pool_starts;
  PoolLists lists;
  int32_t tokens;
  int32_t fresh_tokens;
};

// The first live token that is fresh.
__device__ __forceinline__ int32_t fresh_from(const CompressArguments& arguments, int32_t live) {
  return live > arguments.fresh_tokens ? live - arguments.fresh_tokens : 0;
}

// --- lists ---

__device__ __forceinline__ int32_t first_valid(const PoolLists& lists, int64_t sequence, int32_t from,
                                               int32_t live, int32_t* warp_first) {
  int32_t first = live;
  for (int32_t token = from + static_cast<int32_t>(threadIdx.x); token < live; token += kThreads) {
    if (lists.is_key(sequence, token)) {
      first = token;
      break;
    }
  }
  first = __reduce_min_sync(kAllLanes, first);
  if (threadIdx.x % kLanes == 0) {
    warp_first[threadIdx.x / kLanes] = first;
  }
  __syncthreads();  // every warp's first key is there before it is read
  for (int warp = 0; warp < kWarps; ++warp) {
    first = min(first, warp_first[warp]);
  }
  return first;
}

// The keys and pools before a slot as one number: at most 16 keys a slot of 1,024 in a pass.
constexpr int kPoolShift = 16;

// The sum over the threads before the caller; `total` is that over all. Every thread calls it.
__device__ __forceinline__ uint32_t sum_before(uint32_t own, uint32_t* warp_total, uint32_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  uint32_t up_to_here = own;
  DSA_UNROLL
  for (int step = 1; step < kLanes; step *= 2) {
    const uint32_t lower = __shfl_up_sync(kAllLanes, up_to_here, step);
    up_to_here += lane >= step ? lower : 0u;
  }
  if (lane == kLanes - 1) {
    warp_total[warp] = up_to_here;
  }
  __syncthreads();  // every warp's total is there before it is read
  uint32_t before = up_to_here - own;
  total = 0;
  for (int other = 0; other < kWarps; ++other) {
    before += other < warp ? warp_total[other] : 0u;
    total += warp_total[other];
  }
  __syncthreads();  // and read before the next pass writes it
  return before;
}

__device__ __forceinline__ void write_slot(int32_t* slot, int32_t keys, int32_t pools) {
  slot[0] = keys;
  slot[1] = pools;
}

__global__ void __launch_bounds__(kThreads) list_kernel(CompressArguments arguments) {
  QSA_SHARED(int32_t, warp_first, kWarps);
  QSA_SHARED(uint32_t, warp_total, kWarps);
  const int64_t sequence = blockIdx.x;
  const PoolLists& lists = arguments.lists;
  const int32_t kpool = lists.kpool;
  const LiveWords words = load_words(arguments.geometry);
  trap_if_wrong(words, arguments.geometry, arguments.tokens, kpool);
  const int32_t live = live_tokens(words, arguments.geometry, arguments.tokens);
  const int32_t from = fresh_from(arguments, live);
  // [dsa.first-valid-key] known from an earlier step, or sought among the fresh tokens.
  const int32_t known = from > 0 ? arguments.first_keys[sequence] : live;
  const int32_t found = first_valid(lists, sequence, from, live, warp_first);
  const int32_t first = known < from ? known : found;
  if (threadIdx.x == 0) {
    arguments.first_keys[sequence] = first;
  }
  int32_t* const slots = arguments.slots + sequence * (lists.pool_capacity + 1) * kSlotWords;
  int32_t* const starts = arguments.pool_starts + sequence * lists.pool_capacity;
  const int32_t whole = (live - first) / kpool;
  const int32_t begin = from > first ? (from - first) / kpool : 0;
  int32_t keys = begin > 0 ? slots[begin * kSlotWords] : 0;
  int32_t pools = begin > 0 ? slots[begin * kSlotWords + 1] : 0;
  __syncthreads();  // every thread has read what the last one may write
  for (int32_t base = begin; base < whole; base += kThreads) {
    const int32_t number = base + static_cast<int32_t>(threadIdx.x);
    const int32_t start = first + number * kpool;
    uint32_t own = 0;
    if (number < whole) {
      for (int32_t token = start; token < start + kpool; ++token) {
        own += lists.is_key(sequence, token) ? 1u : 0u;
      }
    }
    // [dsa.invalid-key-no-pool]
    const bool is_pool = own == static_cast<uint32_t>(kpool);
    own += is_pool ? 1u << kPoolShift : 0u;
    uint32_t total = 0;
    const uint32_t before = sum_before(own, warp_total, total);
    const int32_t pools_before = pools + static_cast<int32_t>(before >> kPoolShift);
    if (number < whole) {
      const int32_t keys_before = keys + static_cast<int32_t>(before & ((1u << kPoolShift) - 1u));
      write_slot(slots + number * kSlotWords, keys_before, pools_before);
    }
    // [dsa.compacted-list]
    if (is_pool) {
      starts[pools_before] = start;
    }
    keys += static_cast<int32_t>(total & ((1u << kPoolShift) - 1u));
    pools += static_cast<int32_t>(total >> kPoolShift);
  }
  if (threadIdx.x == 0) {
    write_slot(slots + whole * kSlotWords, keys, pools);
  }
}

// --- pool keys ---

__device__ __forceinline__ float round_to_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const uint32_t low_bits = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  const uint32_t high_bits = __bfloat16_as_ushort(__float2bfloat16_rn(high));
  return low_bits | (high_bits << 16);
}

// e^x for x <= 0, within an ulp; 0 below -86, where no bf16 probability beside a one is left. Multiply-adds
// alone: x = n ln 2 + r, a polynomial in r (Cephes' coefficients), and n added to the exponent. A NaN stays.
__device__ __forceinline__ float exponential(float x) {
  if (x < -86.0f) {
    return 0.0f;
  }
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: the integer lands in the lowest bits
  const float shifted = __fmaf_rn(x, 1.44269504f, kRoundToInteger);
  const float n = __fsub_rn(shifted, kRoundToInteger);
  const float r = __fmaf_rn(n, -1.42860677e-6f, __fmaf_rn(n, -0.693145752f, x));
  float tail = 1.9875691500e-4f;
  tail = __fmaf_rn(tail, r, 1.3981999507e-3f);
  tail = __fmaf_rn(tail, r, 8.3334519073e-3f);
  tail = __fmaf_rn(tail, r, 4.1665795894e-2f);
  tail = __fmaf_rn(tail, r, 1.6666665459e-1f);
  tail = __fmaf_rn(tail, r, 5.0000001201e-1f);
  const float y = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), tail, r), 1.0f);
  const uint32_t exponent = __float_as_uint(shifted) - __float_as_uint(kRoundToInteger);
  return x != x ? x : __uint_as_float(__float_as_uint(y) + (exponent << 23));
}

// Neighbours are added first, then their sums: half the roundings in a row of a serial sum.
template <int kCount>
__device__ __forceinline__ float tree_sum(float (&term)[kCount]) {
  DSA_UNROLL
  for (int width = kCount / 2; width > 0; width /= 2) {
    DSA_UNROLL
    for (int i = 0; i < width; ++i) {
      term[i] = __fadd_rn(term[2 * i], term[2 * i + 1]);
    }
  }
  return term[0];
}

// The same over the tokens that kTokenLanes neighbouring lanes hold, in the same order. Every lane has the
// sum.
template <int kCount, int kTokenLanes>
__device__ __forceinline__ float sum_over_tokens(float (&term)[kCount]) {
  float sum = tree_sum<kCount>(term);
  DSA_UNROLL
  for (int step = 1; step < kTokenLanes; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, step));
  }
  return sum;
}

// One channel of a pool, whose tokens kTokenLanes lanes share.
template <int kTokens, int kTokenLanes>
__device__ __forceinline__ float weighed_key(const float (&logit)[kTokens], const float (&key)[kTokens]) {
  float most = logit[0];
  DSA_UNROLL
  for (int token = 1; token < kTokens; ++token) {
    most = fmaxf(most, logit[token]);
  }
  DSA_UNROLL
  for (int step = 1; step < kTokenLanes; step *= 2) {
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
  }
  float power[kTokens];
  float scratch[kTokens];
  DSA_UNROLL
  for (int token = 0; token < kTokens; ++token) {
    power[token] = exponential(__fsub_rn(logit[token], most));
    scratch[token] = power[token];
  }
  const float sum = sum_over_tokens<kTokens, kTokenLanes>(scratch);
  DSA_UNROLL
  for (int token = 0; token < kTokens; ++token) {
    // [dsa.rounding] the probability, then its product, then the sum.
    const float probability = round_to_bf16(__fdiv_rn(power[token], sum));
    scratch[token] = round_to_bf16(__fmul_rn(probability, key[token]));
  }
  return sum_over_tokens<kTokens, kTokenLanes>(scratch);
}

// The bf16 of a thread's channels, as one word where there is more than one.
template <int kCount>
struct Channels;
template <>
struct Channels<1> {
  uint16_t word;
  __device__ __forceinline__ float at(int) const { return low_half(word); }
};
template <>
struct Channels<4> {
  uint2 word;
  __device__ __forceinline__ float at(int dim) const {
    const uint32_t pair = dim < 2 ? word.x : word.y;
    return dim % 2 == 0 ? low_half(pair) : high_half(pair);
  }
};

__device__ __forceinline__ void load(const uint16_t* from, Channels<1>& channels) {
  channels.word = __ldg(from);
}
__device__ __forceinline__ void load(const uint16_t* from, Channels<4>& channels) {
  channels.word = __ldg(reinterpret_cast<const uint2*>(from));
}
__device__ __forceinline__ void store(uint16_t* to, const float (&value)[1]) {
  *to = __bfloat16_as_ushort(__float2bfloat16_rn(value[0]));
}
__device__ __forceinline__ void store(uint16_t* to, const float (&value)[4]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack(value[0], value[1]), pack(value[2], value[3]));
}

template <int kPool, int kThreadDims, int kTokens, bool kIsListed>
__global__ void __launch_bounds__(kThreads) compress_kernel(CompressArguments arguments) {
  constexpr int kTokenLanes = kPool / kTokens;
  constexpr int kPoolThreads = kDims / kThreadDims * kTokenLanes;
  const int64_t sequence = blockIdx.y;
  arguments.lists = known<kIsListed>(arguments.lists);
  const PoolLists& lists = arguments.lists;
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int32_t place = static_cast<int32_t>(thread % kPoolThreads);
  const int32_t channel = place / kTokenLanes * kThreadDims;
  const int32_t own = place % kTokenLanes * kTokens;  // the first of the thread's tokens
  const LiveWords words = load_words(arguments.geometry);
  // On its way beside the geometry. [dsa.ape] in f32, as it is given.
  float ape[kTokens][kThreadDims];
  DSA_UNROLL
  for (int token = 0; token < kTokens; ++token) {
    DSA_UNROLL
    for (int dim = 0; dim < kThreadDims; ++dim) {
      ape[token][dim] = __ldg(arguments.ape + (own + token) * kDims + channel + dim);
    }
  }
  const int32_t live = live_tokens(words, arguments.geometry, arguments.tokens);
  // Counted from the newest pool back: a launch at the ceiling finds the fresh ones whatever the live length.
  const int32_t age = static_cast<int32_t>(thread / kPoolThreads);
  const int32_t pool = lists.pools_seen(sequence, live - 1) - 1 - age;
  const int32_t start = pool < 0 ? 0 : lists.start_of(sequence, pool);
  // [dsa.fresh-pools]
  const bool is_fresh = start + kPool - 1 >= fresh_from(arguments, live);
  if (pool < 0 || !is_fresh) {
    trap_if_wrong(words, arguments.geometry, arguments.tokens, kPool);
    return;
  }
  const int64_t first = (sequence * lists.token_capacity + start + own) * kDims + channel;
  Channels<kThreadDims> gate[kTokens];
  Channels<kThreadDims> key[kTokens];
  DSA_UNROLL
  for (int token = 0; token < kTokens; ++token) {
    load(arguments.gate + first + token * kDims, gate[token]);
    load(arguments.keys + first + token * kDims, key[token]);
  }
  // While they are on their way.
  trap_if_wrong(words, arguments.geometry, arguments.tokens, kPool);
  float pooled[kThreadDims];
  DSA_UNROLL
  for (int dim = 0; dim < kThreadDims; ++dim) {
    float logit[kTokens];
    float value[kTokens];
    DSA_UNROLL
    for (int token = 0; token < kTokens; ++token) {
      logit[token] = __fadd_rn(gate[token].at(dim), ape[token][dim]);
      value[token] = key[token].at(dim);
    }
    pooled[dim] = weighed_key<kTokens, kTokenLanes>(logit, value);
  }
  if (own > 0) {
    return;
  }
  store(arguments.pool_keys + (sequence * lists.pool_capacity + pool) * kDims + channel, pooled);
}

// The arithmetic of a pool is what a launch of few waits for: a thread has one token of a channel then, of
// some pools the channel's tokens, and of many four channels, read in one word. us on an H200, in that
// order: 1.2, 1.4 and 2.9 for one pool; 1.5, 1.4 and 2.9 for 64; 2.1, 1.7 and 2.9 for 256. The emulation's
// cases are small, and reach all three.
constexpr int64_t kFewPools = QSA_HOST ? 2 : 16;
constexpr int64_t kSomePools = QSA_HOST ? 4 : 256;

template <int kPool, int kThreadDims, int kTokens>
int32_t launch_channels(const CompressArguments& arguments, int64_t pools, int64_t batch, void* stream) {
  const int64_t threads = pools * (kDims / kThreadDims) * (kPool / kTokens);
  const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads), static_cast<unsigned>(batch));
  auto* const kernel = arguments.lists.valid != nullptr ? compress_kernel<kPool, kThreadDims, kTokens, true>
                                                        : compress_kernel<kPool, kThreadDims, kTokens, false>;
  return QSA_LAUNCH(kernel, grid, dim3(kThreads), 0, stream, arguments);
}

template <int kPool>
int32_t launch_compress(const CompressArguments& arguments, int64_t batch, void* stream) {
  const int64_t fresh = arguments.fresh_tokens < arguments.tokens ? arguments.fresh_tokens : arguments.tokens;
  const int64_t most_pools = (fresh + kPool - 1) / kPool;
  if (most_pools * batch <= kFewPools) {
    return launch_channels<kPool, 1, 1>(arguments, most_pools, batch, stream);
  }
  if (most_pools * batch <= kSomePools) {
    return launch_channels<kPool, 1, kPool>(arguments, most_pools, batch, stream);
  }
  return launch_channels<kPool, 4, kPool>(arguments, most_pools, batch, stream);
}

int32_t launch(const CompressArguments& arguments, int64_t batch, void* stream) {
  if (arguments.lists.valid != nullptr) {
    const dim3 grid(static_cast<unsigned>(batch));
    const int32_t listed = QSA_LAUNCH(list_kernel, grid, dim3(kThreads), 0, stream, arguments);
    if (listed != QSA_OK) {
      return listed;
    }
  }
  return arguments.lists.kpool == 4 ? launch_compress<4>(arguments, batch, stream)
                                    : launch_compress<16>(arguments, batch, stream);
}

}  // namespace
}  // namespace dsa
}  // namespace qsa

extern "C" int32_t dsa_kpool_compress(const uint16_t* keys, const uint16_t* gate, const float* ape,
                                      const uint8_t* valid, const int32_t* geometry, uint16_t* pool_keys,
                                      int32_t* first_keys, int32_t* slots, int32_t* pool_starts,
                                      int64_t batch, int64_t tokens, int64_t fresh_tokens,
                                      int64_t token_capacity, int64_t pool_capacity, int64_t kpool,
                                      void* stream) {
  const int32_t refusal = qsa::dsa::refuse_sequences(batch, tokens, token_capacity, pool_capacity, kpool);
  if (refusal != QSA_OK) {
    return refusal;
  }
  // [dsa.one-sequence-replay] one geometry is one sequence's.
  if (fresh_tokens < 0 || fresh_tokens > INT32_MAX || (geometry != nullptr && batch > 1)) {
    return QSA_BAD_EXTENT;
  }
  if (batch == 0 || tokens == 0 || fresh_tokens == 0) {
    return QSA_OK;
  }
  const void* const aligned[] = {keys, gate, ape, pool_keys};
  for (const void* buffer : aligned) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!qsa::dsa::is_aligned(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  const void* const lists[] = {first_keys, slots, pool_starts};
  for (const void* list : lists) {
    if ((list == nullptr) != (valid == nullptr)) {
      return QSA_NULL_POINTER;
    }
  }
  const qsa::dsa::CompressArguments arguments{
      keys,
      gate,
      ape,
      geometry,
      pool_keys,
      first_keys,
      slots,
      pool_starts,
      {valid, first_keys, slots, pool_starts, token_capacity, pool_capacity, static_cast<int32_t>(kpool)},
      static_cast<int32_t>(tokens),
      static_cast<int32_t>(fresh_tokens)};
  return qsa::dsa::launch(arguments, batch, stream);
}
