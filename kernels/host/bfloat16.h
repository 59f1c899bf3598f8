// bfloat16 with cuda_bf16.h's names and bits: rounds to nearest even, every NaN becomes 0x7fff.
// Equal to cuda_bf16.h on all 2^32 floats.
#pragma once

#include <stdint.h>

#include "host/intrinsics.h"
#include "host/vector_types.h"

struct alignas(2) __nv_bfloat16 {
  uint16_t bits;
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

QSA_HOST_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16{bits}; }
QSA_HOST_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }

QSA_HOST_INLINE float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

QSA_HOST_INLINE __nv_bfloat16 __float2bfloat16_rn(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  // Adding just under half an ulp of the result, or exactly half when its last bit is odd, rounds to even; a
  // carry out of the mantissa steps the exponent, up to infinity.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return __nv_bfloat16{static_cast<uint16_t>(is_nan ? 0x7fffu : rounded)};
}

QSA_HOST_INLINE __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }

QSA_HOST_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) {
  return __nv_bfloat162{low, high};
}
QSA_HOST_INLINE __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return __nv_bfloat162{__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
QSA_HOST_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 pair) { return pair.x; }
QSA_HOST_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 pair) { return pair.y; }
QSA_HOST_INLINE float __low2float(__nv_bfloat162 pair) { return __bfloat162float(pair.x); }
QSA_HOST_INLINE float __high2float(__nv_bfloat162 pair) { return __bfloat162float(pair.y); }
QSA_HOST_INLINE float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return float2{__low2float(pair), __high2float(pair)};
}
