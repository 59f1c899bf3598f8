// CUDA's per-thread functions: bits, floats, conversions, cached loads. None of them touches another thread.
//
// Arithmetic is IEEE as written: the target compiles with -ffp-contract=off, and denormals are kept. Two
// differences from a GPU stay: rsqrtf and __frsqrt_rn are 1/sqrt in float (not the GPU's bits), and expf,
// logf, sinf, cosf are glibc's. Wherever bits matter a kernel uses the _rn forms.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "host/vector_types.h"

// Declared here, not through <cmath>: that header alone costs 0.25 s a compilation.
extern "C" {
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float powf(float, float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float tanhf(float) noexcept;
float fmodf(float, float) noexcept;
#if !defined(QSA_HOST_RUNTIME)
// The compiler copies large structures by these too; renamed, they come to the checker.
void* memcpy(void*, const void*, size_t) noexcept __asm__("qsa_host_memcpy");
void* memmove(void*, const void*, size_t) noexcept __asm__("qsa_host_memmove");
void* memset(void*, int, size_t) noexcept __asm__("qsa_host_memset");
#else
void* memcpy(void*, const void*, size_t) noexcept;
void* memmove(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
#endif
}

// --- bits ---
template <class To, class From>
QSA_HOST_INLINE To qsa_host_bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(result));
  return result;
}
QSA_HOST_INLINE unsigned __float_as_uint(float value) { return qsa_host_bit_cast<unsigned>(value); }
QSA_HOST_INLINE int __float_as_int(float value) { return qsa_host_bit_cast<int>(value); }
QSA_HOST_INLINE float __uint_as_float(unsigned bits) { return qsa_host_bit_cast<float>(bits); }
QSA_HOST_INLINE float __int_as_float(int bits) { return qsa_host_bit_cast<float>(bits); }
QSA_HOST_INLINE long long __double_as_longlong(double value) { return qsa_host_bit_cast<long long>(value); }
QSA_HOST_INLINE double __longlong_as_double(long long bits) { return qsa_host_bit_cast<double>(bits); }

QSA_HOST_INLINE int __popc(unsigned value) { return __builtin_popcount(value); }
QSA_HOST_INLINE int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
QSA_HOST_INLINE int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
QSA_HOST_INLINE int __clzll(long long value) {
  return value == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(value));
}
QSA_HOST_INLINE int __ffs(int value) { return __builtin_ffs(value); }
QSA_HOST_INLINE int __ffsll(long long value) { return __builtin_ffsll(value); }

inline unsigned __brev(unsigned value) {
  value = ((value >> 1) & 0x55555555u) | ((value & 0x55555555u) << 1);
  value = ((value >> 2) & 0x33333333u) | ((value & 0x33333333u) << 2);
  value = ((value >> 4) & 0x0f0f0f0fu) | ((value & 0x0f0f0f0fu) << 4);
  return __builtin_bswap32(value);
}
inline unsigned long long __brevll(unsigned long long value) {
  return (static_cast<unsigned long long>(__brev(static_cast<unsigned>(value))) << 32) |
         __brev(static_cast<unsigned>(value >> 32));
}
// Each selector nibble picks one of the eight bytes of b:a; its top bit replicates that byte's sign instead.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = (static_cast<uint64_t>(b) << 32) | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = (selector >> (4 * i)) & 0xfu;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (nibble & 7u))) & 0xffu;
    if (nibble & 8u) byte = (byte & 0x80u) ? 0xffu : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
QSA_HOST_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const uint64_t both = (static_cast<uint64_t>(high) << 32) | low;
  return static_cast<unsigned>((both << (shift & 31u)) >> 32);
}
QSA_HOST_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const uint64_t both = (static_cast<uint64_t>(high) << 32) | low;
  return static_cast<unsigned>(both >> (shift & 31u));
}
QSA_HOST_INLINE unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
QSA_HOST_INLINE int __mulhi(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) * b) >> 32); }

// --- floats ---
QSA_HOST_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
QSA_HOST_INLINE float __fmul_rn(float a, float b) { return a * b; }
QSA_HOST_INLINE float __fadd_rn(float a, float b) { return a + b; }
QSA_HOST_INLINE float __fsub_rn(float a, float b) { return a - b; }
QSA_HOST_INLINE float __fdiv_rn(float a, float b) { return a / b; }
QSA_HOST_INLINE float __frcp_rn(float a) { return 1.0f / a; }
QSA_HOST_INLINE float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
QSA_HOST_INLINE float __frsqrt_rn(float a) { return 1.0f / __builtin_sqrtf(a); }
QSA_HOST_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
QSA_HOST_INLINE float __fdividef(float a, float b) { return a / b; }
QSA_HOST_INLINE float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }
QSA_HOST_INLINE bool isnan(float a) { return __builtin_isnan(a); }
QSA_HOST_INLINE bool isnan(double a) { return __builtin_isnan(a); }
QSA_HOST_INLINE bool isinf(float a) { return __builtin_isinf_sign(a) != 0; }
QSA_HOST_INLINE bool isinf(double a) { return __builtin_isinf_sign(a) != 0; }
QSA_HOST_INLINE bool isfinite(float a) { return __builtin_isfinite(a); }
QSA_HOST_INLINE bool isfinite(double a) { return __builtin_isfinite(a); }
QSA_HOST_INLINE bool signbit(float a) { return __builtin_signbit(a) != 0; }
// Names that C has too keep C linkage, so that <math.h> may follow.
extern "C" {
QSA_HOST_INLINE float fmaf(float a, float b, float c) noexcept { return __builtin_fmaf(a, b, c); }
QSA_HOST_INLINE float sqrtf(float a) noexcept { return __builtin_sqrtf(a); }
QSA_HOST_INLINE float fabsf(float a) noexcept { return __builtin_fabsf(a); }
QSA_HOST_INLINE float copysignf(float a, float b) noexcept { return __builtin_copysignf(a, b); }
QSA_HOST_INLINE float floorf(float a) noexcept { return __builtin_floorf(a); }
QSA_HOST_INLINE float ceilf(float a) noexcept { return __builtin_ceilf(a); }
QSA_HOST_INLINE float truncf(float a) noexcept { return __builtin_truncf(a); }
QSA_HOST_INLINE float rintf(float a) noexcept { return __builtin_rintf(a); }
// As on a GPU: a NaN loses against a number, and -0 is below +0.
QSA_HOST_INLINE float fmaxf(float a, float b) noexcept {
  if (__builtin_isnan(a)) return b;
  if (__builtin_isnan(b)) return a;
  return a > b || (a == b && !__builtin_signbit(a)) ? a : b;
}
QSA_HOST_INLINE float fminf(float a, float b) noexcept {
  if (__builtin_isnan(a)) return b;
  if (__builtin_isnan(b)) return a;
  return a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
QSA_HOST_INLINE int abs(int a) noexcept { return a < 0 ? -a : a; }
}
// glibc keeps __expf, __logf and the like for itself, so CUDA's fast forms are macros.
#define __expf expf
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __powf powf
#define __sinf sinf
#define __cosf cosf

// --- conversions: saturating, NaN to 0, as on a GPU ---
template <class Integer>
QSA_HOST_INLINE Integer qsa_host_saturate(float value, float low, float past_high, Integer least,
                                          Integer most) {
  if (__builtin_isnan(value)) return 0;
  if (value < low) return least;
  if (value >= past_high) return most;
  return static_cast<Integer>(value);
}
inline int __float2int_rz(float a) {
  return qsa_host_saturate<int>(a, -2147483648.0f, 2147483648.0f, INT32_MIN, INT32_MAX);
}
inline unsigned __float2uint_rz(float a) {
  return qsa_host_saturate<unsigned>(a, 0.0f, 4294967296.0f, 0u, UINT32_MAX);
}
inline int __float2int_rn(float a) { return __float2int_rz(__builtin_rintf(a)); }
inline int __float2int_rd(float a) { return __float2int_rz(__builtin_floorf(a)); }
inline int __float2int_ru(float a) { return __float2int_rz(__builtin_ceilf(a)); }
inline unsigned __float2uint_rn(float a) { return __float2uint_rz(__builtin_rintf(a)); }
QSA_HOST_INLINE float __int2float_rn(int a) { return static_cast<float>(a); }
QSA_HOST_INLINE float __uint2float_rn(unsigned a) { return static_cast<float>(a); }

// --- min and max: CUDA's overloads, mixed signs included (the unsigned type wins) ---
#define QSA_HOST_MIN_MAX(result, left, right)                                        \
  QSA_HOST_INLINE constexpr result min(left a, right b) {                            \
    return static_cast<result>(a) < static_cast<result>(b) ? static_cast<result>(a)  \
                                                           : static_cast<result>(b); \
  }                                                                                  \
  QSA_HOST_INLINE constexpr result max(left a, right b) {                            \
    return static_cast<result>(a) > static_cast<result>(b) ? static_cast<result>(a)  \
                                                           : static_cast<result>(b); \
  }
QSA_HOST_MIN_MAX(int, int, int)
QSA_HOST_MIN_MAX(unsigned, unsigned, unsigned)
QSA_HOST_MIN_MAX(unsigned, int, unsigned)
QSA_HOST_MIN_MAX(unsigned, unsigned, int)
QSA_HOST_MIN_MAX(long, long, long)
QSA_HOST_MIN_MAX(unsigned long, unsigned long, unsigned long)
QSA_HOST_MIN_MAX(unsigned long, long, unsigned long)
QSA_HOST_MIN_MAX(unsigned long, unsigned long, long)
QSA_HOST_MIN_MAX(long long, long long, long long)
QSA_HOST_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
QSA_HOST_MIN_MAX(unsigned long long, long long, unsigned long long)
QSA_HOST_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef QSA_HOST_MIN_MAX
QSA_HOST_INLINE float min(float a, float b) { return fminf(a, b); }
QSA_HOST_INLINE float max(float a, float b) { return fmaxf(a, b); }

// --- loads and stores with a cache hint: plain here ---
template <class T>
QSA_HOST_INLINE T __ldg(const T* address) {
  return *address;
}
template <class T>
QSA_HOST_INLINE T __ldcs(const T* address) {
  return *address;
}
template <class T>
QSA_HOST_INLINE T __ldcg(const T* address) {
  return *address;
}
template <class T>
QSA_HOST_INLINE void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
QSA_HOST_INLINE void __stcg(T* address, T value) {
  *address = value;
}

// Fences order nothing for the checker, and the one OS thread needs none: the weak memory model is out of
// scope.
QSA_HOST_INLINE void __threadfence() { asm volatile("" ::: "memory"); }
QSA_HOST_INLINE void __threadfence_block() { asm volatile("" ::: "memory"); }
QSA_HOST_INLINE void __threadfence_system() { asm volatile("" ::: "memory"); }
QSA_HOST_INLINE long long clock64() { return 0; }
