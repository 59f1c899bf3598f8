// Launches that a device serves, and launches it refuses: every number comes from the caller.
#include "common/portability.cuh"

__global__ void nothing_kernel(int32_t* out) {
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) out[0] = 1;
}

extern "C" int32_t launch(int32_t* out, int64_t grid, int64_t block, int64_t cluster, int64_t bytes,
                          void* stream) {
  return QSA_LAUNCH_CLUSTER(nothing_kernel, static_cast<unsigned>(grid), static_cast<unsigned>(block),
                            static_cast<unsigned>(cluster), static_cast<size_t>(bytes), stream, out);
}

extern "C" int32_t launch_y(int32_t* out, int64_t y, int64_t, int64_t, int64_t, void* stream) {
  return QSA_LAUNCH(nothing_kernel, dim3(1, static_cast<unsigned>(y)), 1, 0, stream, out);
}

__global__ void static_kernel(int32_t* out) {
  QSA_SHARED(int32_t, large, 40 * 256);
  large[threadIdx.x] = 1;
  out[0] = large[0];
}

extern "C" int32_t launch_static(int32_t* out, int64_t bytes, int64_t, int64_t, int64_t, void* stream) {
  return QSA_LAUNCH(static_kernel, 1, 1, static_cast<size_t>(bytes), stream, out);
}

__global__ void too_static_kernel(int32_t* out) {
  QSA_SHARED(int32_t, large, 48 * 256 + 4);  // @too-static
  large[threadIdx.x] = 1;
  out[0] = large[0];
}

extern "C" int32_t launch_too_static(int32_t* out, int64_t, int64_t, int64_t, int64_t, void* stream) {
  return QSA_LAUNCH(too_static_kernel, 1, 1, 0, stream, out);
}

extern "C" int32_t device(int32_t* out, int64_t, int64_t, int64_t, int64_t, void*) {
  out[0] = qsa::compute_capability();
  out[1] = qsa::multiprocessor_count();
  return QSA_OK;
}
