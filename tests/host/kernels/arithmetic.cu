// Per-thread functions on arrays of words: what they return is compared with numpy.
#include "common/portability.cuh"

__global__ void round_kernel(const uint32_t* in, uint16_t* out, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(in[i])));
  }
}
extern "C" int32_t round_to_bf16(const uint32_t* in, uint16_t* out, int64_t count, void* stream) {
  return QSA_LAUNCH(round_kernel, 1, 256, 0, stream, in, out, count);
}

__global__ void widen_kernel(const uint16_t* in, uint32_t* out, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    out[i] = __float_as_uint(__bfloat162float(__ushort_as_bfloat16(in[i])));
  }
}
extern "C" int32_t widen_bf16(const uint16_t* in, uint32_t* out, int64_t count, void* stream) {
  return QSA_LAUNCH(widen_kernel, 1, 256, 0, stream, in, out, count);
}

// One column a function, for the words a and b of a row.
__global__ void bits_kernel(const uint32_t* in, uint32_t* out, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint32_t a = in[2 * i];
    const uint32_t b = in[2 * i + 1];
    uint32_t* row = out + 10 * i;
    row[0] = static_cast<uint32_t>(__popc(a));
    row[1] = static_cast<uint32_t>(__clz(static_cast<int>(a)));
    row[2] = static_cast<uint32_t>(__ffs(static_cast<int>(a)));
    row[3] = __brev(a);
    row[4] = __byte_perm(a, b, 0x7a31);
    row[5] = __funnelshift_l(a, b, b);
    row[6] = __funnelshift_r(a, b, b);
    row[7] = __umulhi(a, b);
    row[8] = static_cast<uint32_t>(min(static_cast<int>(a), static_cast<int>(b)));
    row[9] = max(a, b);
  }
}
extern "C" int32_t bits(const uint32_t* in, uint32_t* out, int64_t count, void* stream) {
  return QSA_LAUNCH(bits_kernel, 1, 256, 0, stream, in, out, count);
}

__global__ void floats_kernel(const float* in, float* out, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const float a = in[3 * i];
    const float b = in[3 * i + 1];
    const float c = in[3 * i + 2];
    float* row = out + 9 * i;
    row[0] = __fmaf_rn(a, b, c);
    row[1] = a * b + c;  // two roundings: nothing may fuse them
    row[2] = __fdiv_rn(a, b);
    row[3] = __fsqrt_rn(fabsf(a));
    row[4] = rsqrtf(fabsf(a));
    row[5] = fmaxf(a, b);
    row[6] = fminf(a, b);
    row[7] = static_cast<float>(__float2int_rz(a));
    row[8] = isnan(a) ? 1.0f : isinf(a) ? 2.0f : isfinite(a) ? 0.0f : 3.0f;
  }
}
extern "C" int32_t floats(const float* in, float* out, int64_t count, void* stream) {
  return QSA_LAUNCH(floats_kernel, 1, 256, 0, stream, in, out, count);
}

// Atomics: every thread updates the same words; the results do not depend on the order.
__global__ void atomics_kernel(const uint32_t*, uint32_t* out, int64_t) {
  const uint32_t i = threadIdx.x;
  int32_t* sign = reinterpret_cast<int32_t*>(out);
  auto* wide = reinterpret_cast<unsigned long long*>(out + 10);
  atomicAdd(&out[0], i);
  atomicSub(&out[1], i);
  atomicOr(&out[2], 1u << (i % 32));
  atomicAnd(&out[3], ~(1u << (i % 32)));
  atomicMax(&out[4], i);
  atomicMin(&sign[5], -static_cast<int32_t>(i));
  atomicXor(&out[6], i);
  if (i == 3) atomicExch(&out[7], 77u);
  atomicCAS(&out[8], i, i + 1);
  atomicAdd(reinterpret_cast<float*>(&out[9]), 0.5f);
  atomicAdd(&wide[0], 1ull << 31);
  atomicCAS(&wide[1], static_cast<unsigned long long>(i), static_cast<unsigned long long>(i + 1));
}
extern "C" int32_t atomics(const uint32_t* in, uint32_t* out, int64_t count, void* stream) {
  return QSA_LAUNCH(atomics_kernel, 1, 256, 0, stream, in, out, count);
}
