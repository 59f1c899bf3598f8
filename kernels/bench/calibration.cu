// What a measurement is held to: an empty launch, and plain reads, writes and copies of device memory.
//
// Computes   bench_empty: nothing
//            bench_read:  sink[0] = the exclusive or of source[0 .. words), if that is `rare`; a read that
//            the
//                         compiler can't drop, and no write that counts
//            bench_write: target[0 .. words) = value
//            bench_copy:  target[0 .. words) = source[0 .. words)
// Inputs     source [words] u32, 16-byte aligned
// Outputs    target [words] u32, 16-byte aligned; sink [1] u32
// Requires   words a multiple of 4
// Refuses    null pointers, words that are negative, no multiple of 4
// Launch     16 CTAs of 256 threads a multiprocessor at most; every thread has 4 independent vectors in
// flight Scratch    none Not for    anything but measuring: bench_read's value is written in one case of 2^32

#include "common/portability.cuh"
#include "common/status.h"

namespace qsa {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 16;
constexpr int kInFlight = 4;
constexpr int64_t kWordsPerVector = 4;
constexpr uint32_t kRare = 0x9E3779B9u;

__global__ void empty_kernel() {}

__device__ __forceinline__ int64_t first_vector() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t vector_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__device__ __forceinline__ uint32_t fold(const uint4& vector) {
  return vector.x ^ vector.y ^ vector.z ^ vector.w;
}

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* __restrict__ source, uint32_t* __restrict__ sink, int64_t vectors) {
  const int64_t step = vector_step();
  uint32_t folded = 0;
  int64_t at = first_vector();
  for (; at + (kInFlight - 1) * step < vectors; at += kInFlight * step) {
    uint4 held[kInFlight];
    for (int i = 0; i < kInFlight; ++i) held[i] = source[at + i * step];
    for (int i = 0; i < kInFlight; ++i) folded ^= fold(held[i]);
  }
  for (; at < vectors; at += step) folded ^= fold(source[at]);
  if (folded == kRare) sink[0] = folded;
}

__global__ void __launch_bounds__(kThreads)
    write_kernel(uint4* __restrict__ target, int64_t vectors, uint32_t value) {
  for (int64_t at = first_vector(); at < vectors; at += vector_step()) {
    target[at] = make_uint4(value, value, value, value);
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const uint4* __restrict__ source, uint4* __restrict__ target, int64_t vectors) {
  const int64_t step = vector_step();
  int64_t at = first_vector();
  for (; at + (kInFlight - 1) * step < vectors; at += kInFlight * step) {
    uint4 held[kInFlight];
    for (int i = 0; i < kInFlight; ++i) held[i] = source[at + i * step];
    for (int i = 0; i < kInFlight; ++i) target[at + i * step] = held[i];
  }
  for (; at < vectors; at += step) target[at] = source[at];
}

dim3 grid_for(int64_t vectors) {
  const int64_t wanted = (vectors + kThreads - 1) / kThreads;
  const int64_t most = static_cast<int64_t>(multiprocessor_count()) * kBlocksPerMultiprocessor;
  const int64_t blocks = wanted < most ? wanted : most;
  return dim3(static_cast<unsigned>(blocks > 0 ? blocks : 1));
}

bool is_bad_extent(int64_t words) { return words < 0 || words % kWordsPerVector != 0; }

}  // namespace
}  // namespace qsa

extern "C" int32_t bench_empty(void* stream) {
  return QSA_LAUNCH(qsa::empty_kernel, dim3(1), dim3(32), 0, stream);
}

extern "C" int32_t bench_read(const uint32_t* source, uint32_t* sink, int64_t words, void* stream) {
  if (source == nullptr || sink == nullptr) return QSA_NULL_POINTER;
  if (qsa::is_bad_extent(words)) return QSA_BAD_EXTENT;
  const int64_t vectors = words / qsa::kWordsPerVector;
  return QSA_LAUNCH(qsa::read_kernel, qsa::grid_for(vectors), dim3(qsa::kThreads), 0, stream,
                    reinterpret_cast<const uint4*>(source), sink, vectors);
}

extern "C" int32_t bench_write(uint32_t* target, int64_t words, uint32_t value, void* stream) {
  if (target == nullptr) return QSA_NULL_POINTER;
  if (qsa::is_bad_extent(words)) return QSA_BAD_EXTENT;
  const int64_t vectors = words / qsa::kWordsPerVector;
  return QSA_LAUNCH(qsa::write_kernel, qsa::grid_for(vectors), dim3(qsa::kThreads), 0, stream,
                    reinterpret_cast<uint4*>(target), vectors, value);
}

extern "C" int32_t bench_copy(const uint32_t* source, uint32_t* target, int64_t words, void* stream) {
  if (source == nullptr || target == nullptr) return QSA_NULL_POINTER;
  if (qsa::is_bad_extent(words)) return QSA_BAD_EXTENT;
  const int64_t vectors = words / qsa::kWordsPerVector;
  return QSA_LAUNCH(qsa::copy_kernel, qsa::grid_for(vectors), dim3(qsa::kThreads), 0, stream,
                    reinterpret_cast<const uint4*>(source), reinterpret_cast<uint4*>(target), vectors);
}
