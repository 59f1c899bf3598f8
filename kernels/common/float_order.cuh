// The order that selection works in: score descending, then index ascending, with -0.0 equal to +0.0.
//
// It is total as long as every score is finite, which finite_probe() finds out at one instruction a score.
#pragma once

#include <cstdint>

#include "common/portability.cuh"

namespace qsa {

constexpr float kLargestFinite = 3.402823466e+38f;
constexpr float kLowestFinite = -kLargestFinite;
constexpr float kLeastPositive = 1.401298464e-45f;
constexpr float kInfinity = __builtin_huge_valf();

// An unsigned integer that is ordered as the score is: sign and magnitude become an offset from 2^31. Both
// zeros have the same one, and every integer between two of them belongs to a score, so a range of integers
// is a range of scores. (Flipping the bits of a negative score instead leaves a gap that only -0.0 could
// fill, and a range that ends there would take in the zeros.)
__device__ __forceinline__ uint32_t ordered_bits(float score) {
  const uint32_t bits = __float_as_uint(score);
  const bool negative = (bits >> 31) != 0;
  return negative ? 0u - bits : bits + 0x80000000u;
}

// The score whose ordered_bits() these are; +0.0 for the zeros.
__device__ __forceinline__ float from_ordered_bits(uint32_t ordered) {
  const bool negative = (ordered >> 31) == 0;
  return __uint_as_float(negative ? 0u - ordered : ordered - 0x80000000u);
}

// Stays zero until it has met an infinity or a NaN, and is a NaN from then on: 0 * inf and 0 * NaN are NaN.
// One multiply-add runs on the pipe that selection leaves idle; integer tests of the exponent would not.
__device__ __forceinline__ float finite_probe(float score, float probe) {
  return __fmaf_rn(score, 0.0f, probe);
}

__device__ __forceinline__ bool met_non_finite(float probe) { return !(probe == 0.0f); }

}  // namespace qsa
