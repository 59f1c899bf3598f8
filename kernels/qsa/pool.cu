// qsa_pool: one key a block of four tokens.
//
// Computes   for every block b of first_block .. first_block + block_count - 1:
//              the mean of the raw keys of tokens 4b .. 4b+3, to bf16   [pool.mean-f32-then-bf16]
//              RMSNorm with weight (1 + w), to bf16                     [norm.one-plus-weight] [norm.eps]
//              the rotation at token 4b, to bf16                        [pool.first-token-rotation]
//                                                                       [rotation.three-roundings]
// Inputs     fused_qk [tokens, 640] bf16, the raw key in columns 512 .. 639 [pool.key-column]
//            k_norm_weight [128] bf16
//            cos, sin [tokens, 64] bf16, by absolute position
// Outputs    block_keys [>= first_block + block_count, 128] bf16, row b for block b; every other row is left
//            untouched [pool.block-range], so blocks that complete later are pooled on their own.
// Requires   base pointers aligned to 16 bytes; fused_stride 640; rotary_dim 64;
//            first_block + block_count <= tokens / 4: a block whose four tokens are not all there has no key.
// Succeeds   with nothing to do when block_count is 0, as with fewer than four tokens [pool.nothing-to-do].
// Numerics   as in head_vector.cuh. A NaN in a raw key makes its block's key NaN, and no other's.
// Launch     a warp a block, QSA_POOL_THREADS / 32 blocks a CTA; no shared memory, no barrier.
// Scratch    none.
// Not for    a chunk of keys with tables of the whole context: fused_qk, cos, sin and block_keys share one
//            numbering. A caller that holds only tokens 4c and later passes each pointer from its row 4c (or
//            c) on, and counts blocks from there.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/block_mean.cuh"
#include "qsa/head_vector.cuh"

#ifndef QSA_POOL_THREADS
#define QSA_POOL_THREADS 256
#endif

namespace qsa {
namespace {

constexpr int kPoolThreads = QSA_POOL_THREADS;
constexpr int kBlocksPerCta = kPoolThreads / kWarpLanes;
static_assert(kPoolThreads % kWarpLanes == 0 && kPoolThreads >= kWarpLanes && kPoolThreads <= 1024,
              "QSA_POOL_THREADS is a whole number of warps, 32 to 1024");

struct PoolArguments {
  const uint16_t* fused_qk;
  const uint16_t* k_norm_weight;
  const uint16_t* cos;
  const uint16_t* sin;
  uint16_t* block_keys;
  int64_t first_block;
  int64_t block_count;
  float eps;
};

__device__ __forceinline__ LaneDims mean_of_block(const uint16_t* first_key, int lane) {
  LaneDims key[kRatio];
  for (int token = 0; token < kRatio; ++token) {
    key[token] = load_lane_dims(first_key + token * kFusedStride, lane);
  }
  return mean_of_keys(key);
}

__global__ void __launch_bounds__(kPoolThreads) pool_kernel(PoolArguments arguments) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * kBlocksPerCta + warp;
  // A whole warp leaves or stays, so the shuffles below always have all 32 lanes.
  if (offset >= arguments.block_count) {
    return;
  }
  const int64_t block = arguments.first_block + offset;
  // [pool.first-token-rotation] the block stands at the position of its first token.
  const int64_t first_token = block * kRatio;
  const uint16_t* first_key = arguments.fused_qk + first_token * kFusedStride + kKeyColumn;
  const LaneDims mean = mean_of_block(first_key, lane);
  const LaneDims weight = load_lane_dims(arguments.k_norm_weight, lane);
  const LaneDims normed = rms_norm(mean, weight, arguments.eps);
  const uint16_t* cos_row = arguments.cos + first_token * kRotaryDim;
  const uint16_t* sin_row = arguments.sin + first_token * kRotaryDim;
  const LaneDims key = rotate(normed, cos_row, sin_row, lane);
  store_lane_dims(arguments.block_keys + block * kHeadDim, lane, key);
}

int32_t launch_pool(const PoolArguments& arguments, void* stream) {
  const int64_t ctas = (arguments.block_count + kBlocksPerCta - 1) / kBlocksPerCta;
  const dim3 grid(static_cast<unsigned>(ctas));
  const dim3 block(kPoolThreads);
  return QSA_LAUNCH(pool_kernel, grid, block, 0, stream, arguments);
}

}  // namespace
}  // namespace qsa

extern "C" int32_t qsa_pool(const uint16_t* fused_qk, const uint16_t* k_norm_weight, const uint16_t* cos,
                            const uint16_t* sin, uint16_t* block_keys, int64_t tokens, int64_t first_block,
                            int64_t block_count, int64_t fused_stride, int64_t rotary_dim, float eps,
                            void* stream) {
  // Token positions are int32 throughout the indexer; this also keeps the grid within its limit.
  if (tokens < 0 || tokens > INT32_MAX || first_block < 0 || block_count < 0) {
    return QSA_BAD_EXTENT;
  }
  const int64_t complete_blocks = tokens / qsa::kRatio;
  if (first_block > complete_blocks || block_count > complete_blocks - first_block) {
    return QSA_BAD_EXTENT;
  }
  if (fused_stride != qsa::kFusedStride) {
    return QSA_BAD_STRIDE;
  }
  if (rotary_dim != qsa::kRotaryDim) {
    return QSA_BAD_ROTARY;
  }
  // Written so that a NaN is refused too.
  if (!(eps >= 0.0f)) {
    return QSA_BAD_EPS;
  }
  // [pool.nothing-to-do] before the pointers: an empty buffer may have none.
  if (block_count == 0) {
    return QSA_OK;
  }
  const void* buffers[] = {fused_qk, k_norm_weight, cos, sin, block_keys};
  for (const void* buffer : buffers) {
    if (buffer == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!qsa::is_aligned16(buffer)) {
      return QSA_UNSUPPORTED;
    }
  }
  const qsa::PoolArguments arguments{fused_qk,   k_norm_weight, cos,         sin,
                                     block_keys, first_block,   block_count, eps};
  return qsa::launch_pool(arguments, stream);
}
