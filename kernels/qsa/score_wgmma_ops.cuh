// The instructions of compute capability 9.0a that score_wgmma.cuh is made of, one function each. GPU only:
// the CPU target has neither mbarriers nor the tensor copy engine nor warpgroup multiplication.
#pragma once

#include "common/portability.cuh"

#if !QSA_HOST

#include <cuda.h>  // the type of a tensor map; nothing of libcuda is linked

#include <cstdint>

// wgmma and setmaxnreg exist on this architecture alone, not on plain sm_90.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QSA_HAS_WGMMA 1
#else
#define QSA_HAS_WGMMA 0
#endif

#if QSA_HAS_WGMMA

namespace qsa {
namespace hopper {

// --- mbarriers: a phase ends when `count` arrivals and all expected bytes are there ---
__device__ __forceinline__ void barrier_init(uint64_t* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}

// Makes the initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expecting(uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Waits for the end of the phase of this parity. A fresh barrier is in phase 0, and the phase before it, of
// parity 1, counts as ended.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_FOR_PHASE:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT_FOR_PHASE;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// --- the tensor copy engine ---
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the map's box at (column, row) to shared memory; its bytes count at `barrier`.
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap* map, int column, int row,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], "
      "[%4];" ::"r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// --- registers of a warpgroup ---
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- warpgroup multiplication ---
// Orders the warpgroup's register accesses before the multiplications that follow.
__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void multiply_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kGroupsLeft of the warpgroup's committed groups are under way.
template <int kGroupsLeft>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
}

// Keeps the compiler from moving a use of a result above the wait for it.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

// The right operand in shared memory: rows of 64 bf16, 128 bytes, with the copy engine's 128-byte swizzle;
// groups of eight rows follow each other. `address` is aligned to 1024 bytes, but for a k-step's 32 bytes a
// step.
__device__ __forceinline__ uint64_t operand_descriptor(unsigned address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kLeadingUnused = uint64_t{1} << 16;
  return kSwizzle128 | kGroupStride | kLeadingUnused | (address & 0x3ffff) >> 4;
}

// d = a * b, or d += a * b, for 64 x 64 x 16: a in registers, b in shared memory by its descriptor, in PTX's
// layouts. `d` must not be touched before the wait for its group.
__device__ __forceinline__ void multiply_step(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

}  // namespace hopper
}  // namespace qsa

#endif  // QSA_HAS_WGMMA
#endif  // !QSA_HOST
