// Scores of 16 pools by one warp on the tensor cores: what both bodies of dsa_index_scores multiply and add,
// in the same order.
//
// The left operand is 16 pool keys, the right one 8 heads, four times. The dims of a dot product may come in
// any order as long as both operands agree: lane 4g + t holds the chunks of 8 dims t, t + 4, t + 8 and t + 12
// of pools g and g + 8, and of head g of each eight, so that every load is 16 bytes and no operand is
// shuffled. A lane ends with two pools of eight heads; relu, weights and two exchanges between the four lanes
// of a pool leave the score. (With heads on the left and pools on the right it would take six times as many.)
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "dsa/score_row.cuh"

namespace qsa {
namespace dsa {

constexpr float kScale = 0.08838834764831845f;  // 1 / sqrt(128)

constexpr int kQuadLanes = 4;
constexpr int kTilePools = 16;  // of a left operand
constexpr int kTileHeads = 8;   // of a right operand
constexpr int kHeadTiles = kHeads / kTileHeads;
constexpr int kChunkDims = 8;  // 16 bytes
constexpr int kVectorChunks = kDims / kChunkDims;
constexpr int kChunks = kVectorChunks / kQuadLanes;  // of a vector that a lane holds

// Vectors in shared memory. Chunks of neighbours lie in different halves of 128 bytes, so that 8 lanes read
// all banks once.
template <int kCount>
struct Vectors {
  uint4 chunk[kCount][kVectorChunks];

  static __device__ __forceinline__ int place_of(int vector, int chunk) {
    return chunk ^ ((vector & 1) * kQuadLanes);
  }
  __device__ __forceinline__ uint4* at(int vector, int number) {
    return &chunk[vector][place_of(vector, number)];
  }
};

// The keys of pools g and g + 8 that a lane holds, of one chunk.
struct KeyPair {
  uint4 low;
  uint4 high;
};

// Dot products of a lane: with pool g two heads, with pool g + 8 the same two.
using Dots = float[4];

__device__ __forceinline__ void multiply(const KeyPair& key, const uint4& head, Dots& dot) {
  const uint32_t first[4] = {key.low.x, key.high.x, key.low.y, key.high.y};
  const uint32_t first_head[2] = {head.x, head.y};
  mma_m16n8k16_bf16(dot, first, first_head, dot);
  const uint32_t second[4] = {key.low.z, key.high.z, key.low.w, key.high.w};
  const uint32_t second_head[2] = {head.z, head.w};
  mma_m16n8k16_bf16(dot, second, second_head, dot);
}

// [dsa.head-weight] [dsa.scale] once, together: what a head counts.
__device__ __forceinline__ float scaled(float weight) { return __fmul_rn(weight, kScale); }

// [dsa.nan-stays] a comparison keeps a NaN; fmaxf(x, 0) would turn it into a valid-looking zero.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Adds a tile of heads to the sums of pools g and g + 8, in the order of the heads.
__device__ __forceinline__ void add_heads(const Dots& dot, float2 weight, float (&sum)[2]) {
  DSA_UNROLL
  for (int pool = 0; pool < 2; ++pool) {
    // [dsa.relu-per-head] each head is cut at zero before it is weighed and added.
    sum[pool] = __fmaf_rn(weight.x, relu(dot[2 * pool]), sum[pool]);
    sum[pool] = __fmaf_rn(weight.y, relu(dot[2 * pool + 1]), sum[pool]);
  }
}

// The score of pool g, in the odd lanes of a quad that of pool g + 8. The whole warp calls it.
__device__ __forceinline__ float combine_quad(const float (&sum)[2], int quad_lane) {
  // Neighbours trade halves, then pairs add theirs: addition commutes, so all lanes of a pool have one sum.
  const bool is_odd = quad_lane % 2 != 0;
  const float given = is_odd ? sum[0] : sum[1];
  const float kept = is_odd ? sum[1] : sum[0];
  const float pair = __fadd_rn(kept, __shfl_xor_sync(kAllLanes, given, 1));
  return __fadd_rn(pair, __shfl_xor_sync(kAllLanes, pair, 2));
}

}  // namespace dsa
}  // namespace qsa
