// The one place that knows the compiler. A kernel file includes this and nothing of CUDA; the same file then
// builds with nvcc for a GPU and with g++ for the CPU (kernels/host), without a difference in the source.
//
// Beyond CUDA's own names a kernel uses:
//   QSA_SHARED(T, name, count)         static shared array, 16-byte aligned, uninitialised; `name` is a T*
//   QSA_DYNAMIC_SHARED(T, name)        T* to the dynamic shared memory, 16-byte aligned
//   QSA_LAUNCH(kernel, grid, block, dynamic_bytes, stream, arguments...)           -> int32_t status
//   QSA_LAUNCH_CLUSTER(kernel, grid, block, cluster_x, dynamic_bytes, stream, arguments...)  -> the same
//   QSA_TRAP("reason")    ends the launch; on a GPU the context is lost
//   QSA_HOST              1 for the CPU, 0 for a GPU
//   qsa::add_from_lane_above(value, step)    one step of a sum over a warp's lanes from the caller's up
//   qsa::is_rare(condition) touch(address)    hints
//   qsa::SharedWords(p, first).increment(i) take(i)    counts in words of shared memory
//   qsa::in_register(v)
//   qsa::cluster_rank() cluster_size() cluster_sync() cluster_arrive() cluster_wait()
//   qsa::map_shared_rank(p, rank)
//   qsa::Mailbox open(senders) expect(rank, bytes) send(rank, p, value) sent() wait(parity)
//   qsa::async_copy16(shared, global) async_copy_commit() async_copy_wait<groups left>()
//   qsa::mma_m16n8k16_bf16(d, a, b, c) ldmatrix_x4(d, row) ldmatrix_x4_trans ldmatrix_x2 ldmatrix_x2_trans
//   qsa::compute_capability() multiprocessor_count()    host functions: 90 for an H200
#pragma once

#if !defined(__CUDACC__)

#include "host/cuda_on_host.h"

#else

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "common/status.h"

#define QSA_HOST 0

#define QSA_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define QSA_DYNAMIC_SHARED(T, name)                                          \
  extern __shared__ __align__(16) unsigned char qsa_dynamic_shared_memory[]; \
  T* const name = reinterpret_cast<T*>(qsa_dynamic_shared_memory)
#define QSA_TRAP(reason) __trap()
#define QSA_LAUNCH(...) (::qsa::launch_plain(__VA_ARGS__))
#define QSA_LAUNCH_CLUSTER(...) (::qsa::launch(__VA_ARGS__))

namespace qsa {

// --- host side ---
// What a block may have without asking for more.
constexpr size_t kDefaultSharedBytes = 48 * 1024;
// The cluster size every device of compute capability 9 and above serves.
constexpr unsigned kPortableClusterSize = 8;

template <class... Parameters, class... Arguments>
int32_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned cluster, size_t dynamic_bytes,
               void* stream, Arguments... arguments) {
  cudaError_t error = cudaSuccess;
  if (dynamic_bytes > kDefaultSharedBytes) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(dynamic_bytes));
  }
  if (error == cudaSuccess && cluster > kPortableClusterSize) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error == cudaSuccess) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = dynamic_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  }
  if (error == cudaSuccess) return QSA_OK;
  (void)cudaGetLastError();  // reported by the status: the next caller must not find it
  return QSA_LAUNCH_FAILED;
}

template <class... Parameters, class... Arguments>
int32_t launch_plain(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t dynamic_bytes, void* stream,
                     Arguments... arguments) {
  return launch(kernel, grid, block, 1, dynamic_bytes, stream, arguments...);
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

// Zero where no device can be asked.
inline int compute_capability() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
         device_attribute(cudaDevAttrComputeCapabilityMinor);
}
inline int multiprocessor_count() { return device_attribute(cudaDevAttrMultiProcessorCount); }

// --- warps ---
// value + the value of the lane `step` above, or value alone where there is no such lane. All lanes call it.
// The shuffle itself says which, in a predicate that no intrinsic gives.
__device__ __forceinline__ uint32_t add_from_lane_above(uint32_t value, unsigned step) {
  asm volatile(
      "{.reg .u32 higher; .reg .pred exists; shfl.sync.down.b32 higher|exists, %0, %1, 0x1f, 0xffffffff; "
      "@exists add.u32 %0, %0, higher;}"
      : "+r"(value)
      : "r"(step));
  return value;
}

// --- hints ---
// Says that `condition` as a rule does not hold: what follows from it is placed out of the way.
__device__ __forceinline__ bool is_rare(bool condition) { return __builtin_expect(condition, 0); }
// Has the address of global memory translated, and reads nothing: the first access to a page waits for that.
__device__ __forceinline__ void touch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// --- registers ---
// The value, which the compiler keeps in a register instead of making it anew at every use.
__device__ __forceinline__ uint32_t in_register(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <class T>
__device__ __forceinline__ T* in_register(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}
// Words of shared memory that threads count in together. The compiler makes the address of shared memory anew
// for every access, at three instructions where a cluster is possible; this holds it in a register.
class SharedWords {
 public:
  // `words` are those from index `first` on.
  __device__ __forceinline__ SharedWords(const uint32_t* words, uint32_t first)
      : address_(in_register(static_cast<uint32_t>(__cvta_generic_to_shared(words)) - 4u * first)) {}
  // Adds one to the word of that index, atomically, and says what it was.
  __device__ __forceinline__ uint32_t take(uint32_t index) const {
    uint32_t before;
    asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(address_ + 4u * index) : "memory");
    return before;
  }
  // Adds one to the word of that index, atomically.
  __device__ __forceinline__ void increment(uint32_t index) const {
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address_ + 4u * index) : "memory");
  }

 private:
  uint32_t address_;
};

// --- clusters; before compute capability 9 a CTA is a cluster of one ---
__device__ __forceinline__ unsigned cluster_rank() {
#if __CUDA_ARCH__ >= 900
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}
__device__ __forceinline__ unsigned cluster_size() {
#if __CUDA_ARCH__ >= 900
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return 1;
#endif
}
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// As cluster_arrive(), for what a box's open() and a __syncthreads have settled: orders nothing else.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
template <class T>
__device__ __forceinline__ T* map_shared_rank(T* address, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(reinterpret_cast<uint64_t>(address)), "r"(rank));
  return reinterpret_cast<T*>(mapped);
#else
  return address;
#endif
}

// Shared memory that the CTAs of a cluster write for each other, and a box that says when all of it is there.
// A cluster's barrier also waits until what its CTAs stored to global memory has arrived there; a box waits
// for what was sent to it alone.
//
// A round of a box: everyone sends, all threads call sent(), then wait(). What a thread did before a
// __syncthreads that lies before the first send of its CTA is done for whoever has waited. Between two rounds
// of a box lies one of another box, and a barrier of the cluster between open() and the first.
class alignas(8) Mailbox {
 public:
  // One thread. A round ends when `senders` have said what to expect and that many bytes have come.
  __device__ __forceinline__ void open(uint32_t senders) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(senders) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  // One thread a sender: `bytes` come to CTA `rank` in this round.
  __device__ __forceinline__ void expect(unsigned rank, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [there], %2;}" ::"r"(address()),
        "r"(rank), "r"(bytes)
        : "memory");
#endif
  }
  // Stores `value` where CTA `rank` has what `here` is in this one.
  template <class T>
  __device__ __forceinline__ void send(unsigned rank, T* here, const T& value) {
#if __CUDA_ARCH__ >= 900
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "words");
    const uint32_t target = static_cast<uint32_t>(__cvta_generic_to_shared(here));
    if constexpr (sizeof(T) == 8) {
      asm volatile(
          "{.reg .b32 there, box; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 box, %1, "
          "%2; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], %3, [box];}" ::"r"(
              target),
          "r"(address()), "r"(rank), "l"(value)
          : "memory");
    } else {
      asm volatile(
          "{.reg .b32 there, box; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 box, %1, "
          "%2; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [box];}" ::"r"(
              target),
          "r"(address()), "r"(rank), "r"(value)
          : "memory");
    }
#endif
  }
  __device__ __forceinline__ void sent() const {}
  // `parity` is 0 in the first round, 1 in the second, 0 again in the third.
  __device__ __forceinline__ void wait(uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra "
        "again;}" ::"r"(address()),
        "r"(parity)
        : "memory");
#endif
  }

 private:
  __device__ __forceinline__ uint32_t address() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(this));
  }

  uint64_t word_;
};

// --- asynchronous copies: 16 bytes, both sides 16-byte aligned ---
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void async_copy16(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}
__device__ __forceinline__ void async_copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroupsLeft>
__device__ __forceinline__ void async_copy_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
#endif
}

// --- tensor cores: d = a * b + c for one 16x8x16 tile a warp, in PTX's register layout; needs compute
// capability 8 ---
__device__ __forceinline__ void mma_m16n8k16_bf16(float* d, const uint32_t* a, const uint32_t* b,
                                                  const float* c) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
        "f"(c[3]));
#else
  __trap();
#endif
}
// Lane i names the 16-byte row i of the matrices' rows in order; x2 reads the rows of lanes 0 to 15 only.
__device__ __forceinline__ void ldmatrix_x4(uint32_t* d, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t* d, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t* d, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t* d, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(shared_address(row))
               : "memory");
}

}  // namespace qsa

#endif  // __CUDACC__
