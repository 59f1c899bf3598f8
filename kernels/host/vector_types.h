// CUDA's small vector types, with CUDA's alignments: a misaligned float4 faults here as it does on a GPU.
#pragma once

#include <stdint.h>

// Kernels are compiled with -O1, which leaves small functions out of line unless told.
#define QSA_HOST_INLINE inline __attribute__((always_inline))

#define QSA_HOST_VECTOR2(name, scalar, alignment) \
  struct alignas(alignment) name {                \
    scalar x, y;                                  \
  };                                              \
  QSA_HOST_INLINE constexpr name make_##name(scalar x, scalar y) { return name{x, y}; }

#define QSA_HOST_VECTOR3(name, scalar) \
  struct name {                        \
    scalar x, y, z;                    \
  };                                   \
  QSA_HOST_INLINE constexpr name make_##name(scalar x, scalar y, scalar z) { return name{x, y, z}; }

#define QSA_HOST_VECTOR4(name, scalar, alignment)                                      \
  struct alignas(alignment) name {                                                     \
    scalar x, y, z, w;                                                                 \
  };                                                                                   \
  QSA_HOST_INLINE constexpr name make_##name(scalar x, scalar y, scalar z, scalar w) { \
    return name{x, y, z, w};                                                           \
  }

QSA_HOST_VECTOR2(char2, signed char, 2)
QSA_HOST_VECTOR2(uchar2, unsigned char, 2)
QSA_HOST_VECTOR2(short2, short, 4)
QSA_HOST_VECTOR2(ushort2, unsigned short, 4)
QSA_HOST_VECTOR2(int2, int, 8)
QSA_HOST_VECTOR2(uint2, unsigned, 8)
QSA_HOST_VECTOR2(float2, float, 8)
QSA_HOST_VECTOR2(longlong2, long long, 16)
QSA_HOST_VECTOR2(ulonglong2, unsigned long long, 16)
QSA_HOST_VECTOR2(double2, double, 16)
QSA_HOST_VECTOR3(int3, int)
QSA_HOST_VECTOR3(uint3, unsigned)
QSA_HOST_VECTOR3(float3, float)
QSA_HOST_VECTOR4(char4, signed char, 4)
QSA_HOST_VECTOR4(uchar4, unsigned char, 4)
QSA_HOST_VECTOR4(short4, short, 8)
QSA_HOST_VECTOR4(ushort4, unsigned short, 8)
QSA_HOST_VECTOR4(int4, int, 16)
QSA_HOST_VECTOR4(uint4, unsigned, 16)
QSA_HOST_VECTOR4(float4, float, 16)

#undef QSA_HOST_VECTOR2
#undef QSA_HOST_VECTOR3
#undef QSA_HOST_VECTOR4

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};
