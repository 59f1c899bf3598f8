// Geometry and arithmetic of one head vector of the QSA indexer, shared by pool and score so that a block key
// and a query can never be normalised or rotated by two different rules.
//
// A warp owns a vector of 128 dims; lane l holds dims 4l .. 4l+3, one 8-byte load of bf16.
//
// Numerics: every operation is an IEEE round-to-nearest f32 operation in a fixed order (no contraction, no
// approximation), so two runs, and the CPU and the GPU, agree bit for bit. A value that the contract
// calls bf16 is kept as the f32 of that bf16.
#pragma once

#include <cstdint>

#include "common/portability.cuh"

namespace qsa {

constexpr int kQueryHeads = 4;
constexpr int kHeadDim = 128;
constexpr int kKeyColumn = kQueryHeads * kHeadDim;   // the key head follows the query heads in a fused row
constexpr int kFusedStride = kKeyColumn + kHeadDim;  // 640
constexpr int kRotaryDim = 64;
constexpr int kRotaryHalf = kRotaryDim / 2;  // dim i pairs with dim i + 32
constexpr int kRatio = 4;                    // tokens a block

constexpr int kWarpLanes = 32;
constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kDimsPerLane = kHeadDim / kWarpLanes;
constexpr int kRotaryLanes = kRotaryDim / kDimsPerLane;
constexpr int kPartnerLane = kRotaryHalf / kDimsPerLane;  // lanes l and l ^ 8 hold the halves of a pair

// What one lane holds of a head vector.
struct LaneDims {
  float dim[kDimsPerLane];
};

__device__ __forceinline__ float bf16_low_half(uint32_t pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float bf16_high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float round_to_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

__device__ __forceinline__ LaneDims unpack(uint2 packed) {
  return LaneDims{
      {bf16_low_half(packed.x), bf16_high_half(packed.x), bf16_low_half(packed.y), bf16_high_half(packed.y)}};
}

__device__ __forceinline__ LaneDims load_lane_dims(const uint16_t* vector, int lane) {
  // Named, not passed on: the emulation's compiler tells the checker of no load inside an argument.
  const uint2 packed = *reinterpret_cast<const uint2*>(vector + lane * kDimsPerLane);
  return unpack(packed);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const uint32_t low_bits = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  const uint32_t high_bits = __bfloat16_as_ushort(__float2bfloat16_rn(high));
  return low_bits | (high_bits << 16);
}

__device__ __forceinline__ void store_lane_dims(uint16_t* vector, int lane, const LaneDims& x) {
  const uint2 packed = make_uint2(pack_bf16(x.dim[0], x.dim[1]), pack_bf16(x.dim[2], x.dim[3]));
  *reinterpret_cast<uint2*>(vector + lane * kDimsPerLane) = packed;
}

// Sum over the warp, the same bits in every lane: f32 addition commutes, so both sides of an exchange agree.
__device__ __forceinline__ float warp_sum(float value) {
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(kFullWarp, value, distance);
    value = __fadd_rn(value, other);
  }
  return value;
}

// 1 / sqrt(mean(x^2) + eps) of a vector whose squares add up to `square_sum`.
// A root and a division, not one of the rsqrt functions: both are IEEE operations, the same bits anywhere.
// [norm.eps] eps is added to the mean square, inside the root.
__device__ __forceinline__ float inverse_root(float square_sum, float eps) {
  const float mean_square = __fmul_rn(square_sum, 1.0f / kHeadDim);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean_square, eps)));
}

// x -> bf16(x * rsqrt(mean(x^2) + eps) * (1 + w)).
// The square of a bf16 is exact in f32, so only the sum's order matters: four dims of a lane in pairs, then a
// butterfly over the lanes, seven additions deep.
// [norm.one-plus-weight] the stored weight is the distance from one.
__device__ __forceinline__ LaneDims rms_norm(const LaneDims& x, const LaneDims& weight, float eps) {
  float square[kDimsPerLane];
  for (int i = 0; i < kDimsPerLane; ++i) {
    square[i] = __fmul_rn(x.dim[i], x.dim[i]);
  }
  const float lane_sum = __fadd_rn(__fadd_rn(square[0], square[1]), __fadd_rn(square[2], square[3]));
  const float inverse = inverse_root(warp_sum(lane_sum), eps);
  LaneDims normed;
  for (int i = 0; i < kDimsPerLane; ++i) {
    const float scaled = __fmul_rn(x.dim[i], inverse);
    normed.dim[i] = round_to_bf16(__fmul_rn(scaled, __fadd_rn(1.0f, weight.dim[i])));
  }
  return normed;
}

// Rotates the first 64 dims by the position whose table rows are given; dims 64 .. 127 pass through.
// cos_row and sin_row are bf16 [64].
// [rotation.half-split] dim i pairs with dim i + 32; the first half takes the negated partner.
// [rotation.three-roundings] both products and their sum are each rounded to bf16.
__device__ __forceinline__ LaneDims rotate(const LaneDims& x, const uint16_t* cos_row,
                                           const uint16_t* sin_row, int lane) {
  LaneDims partner;
  // The exchange is outside the branch: every lane named by the mask has to take part.
  for (int i = 0; i < kDimsPerLane; ++i) {
    partner.dim[i] = __shfl_xor_sync(kFullWarp, x.dim[i], kPartnerLane);
  }
  if (lane >= kRotaryLanes) {
    return x;
  }
  const LaneDims cosine = load_lane_dims(cos_row, lane);
  const LaneDims sine = load_lane_dims(sin_row, lane);
  const bool first_half = lane < kPartnerLane;
  LaneDims rotated;
  for (int i = 0; i < kDimsPerLane; ++i) {
    const float half_turn = first_half ? -partner.dim[i] : partner.dim[i];
    const float along = round_to_bf16(__fmul_rn(x.dim[i], cosine.dim[i]));
    const float across = round_to_bf16(__fmul_rn(half_turn, sine.dim[i]));
    rotated.dim[i] = round_to_bf16(__fadd_rn(along, across));
  }
  return rotated;
}

// Every head vector and table row is read in 8 or 16 byte words.
inline bool is_aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace qsa
