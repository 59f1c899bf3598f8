// Collectives, right and wrong. Every entry is one launch over `out`; a marker after an at sign names a line
// for the tests.
#include "common/portability.cuh"

#define ENTRY(name, kernel, grid, block)                               \
  extern "C" int32_t name(int32_t* out, int64_t value, void* stream) { \
    return QSA_LAUNCH(kernel, grid, block, 0, stream, out, value);     \
  }

constexpr unsigned kFull = 0xffffffffu;

// --- what every collective returns, one row of 32 results each ---
__global__ void values_kernel(int32_t* out, int64_t) {
  const int lane = static_cast<int>(threadIdx.x);
  int row = 0;
  const auto keep = [&](int value) { out[32 * row++ + lane] = value; };
  keep(__shfl_sync(kFull, lane * 3, 5));
  keep(__shfl_sync(kFull, lane, lane + 1));
  keep(__shfl_sync(kFull, lane, 9, 8));
  keep(__shfl_up_sync(kFull, lane, 3));
  keep(__shfl_up_sync(kFull, lane, 3, 16));
  keep(__shfl_down_sync(kFull, lane, 3));
  keep(__shfl_down_sync(kFull, lane, 3, 8));
  keep(__shfl_xor_sync(kFull, lane, 7));
  keep(__shfl_xor_sync(kFull, lane, 16, 16));
  keep(static_cast<int>(__ballot_sync(kFull, lane % 3 == 0)));
  keep(__any_sync(kFull, lane == 31));
  keep(__any_sync(kFull, lane == 32));
  keep(__all_sync(kFull, lane < 32));
  keep(__all_sync(kFull, lane < 31));
  keep(static_cast<int>(__match_any_sync(kFull, lane / 3)));
  keep(__reduce_add_sync(kFull, lane));
  keep(__reduce_min_sync(kFull, lane - 5));
  keep(__reduce_max_sync(kFull, lane - 50));
  keep(static_cast<int>(__reduce_min_sync(kFull, static_cast<unsigned>(lane - 5))));
  keep(static_cast<int>(__reduce_max_sync(kFull, static_cast<unsigned>(lane - 5))));
  keep(static_cast<int>(__reduce_and_sync(kFull, static_cast<unsigned>(lane | 4))));
  keep(static_cast<int>(__reduce_or_sync(kFull, static_cast<unsigned>(lane << 8))));
  keep(static_cast<int>(__reduce_xor_sync(kFull, static_cast<unsigned>(lane * lane))));
  keep(static_cast<int>(__shfl_sync(kFull, static_cast<unsigned long long>(lane) << 32, 7) >> 32));
  keep(static_cast<int>(2.0f * __shfl_xor_sync(kFull, 0.5f * static_cast<float>(lane), 1)));
  keep(static_cast<int>(__activemask()));
}
ENTRY(values, values_kernel, 1, 32)

__global__ void lane_above_kernel(int32_t* out, int64_t step) {
  const uint32_t lane = threadIdx.x;
  out[lane] = static_cast<int32_t>(qsa::add_from_lane_above(lane, static_cast<unsigned>(step)));
}
ENTRY(lane_above, lane_above_kernel, 1, 32)

__global__ void barrier_values_kernel(int32_t* out, int64_t) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  out[thread] = __syncthreads_count(thread % 3 == 0);
  out[threads + thread] = __syncthreads_and(thread < threads);
  out[2 * threads + thread] = __syncthreads_and(thread != 7);
  out[3 * threads + thread] = __syncthreads_or(thread == 7);
  out[4 * threads + thread] = __syncthreads_or(thread == threads);
}
ENTRY(barrier_values, barrier_values_kernel, 1, 70)

// --- masks ---
__global__ void half_warps_kernel(int32_t* out, int64_t) {
  const unsigned lane = threadIdx.x;
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  out[lane] = __reduce_add_sync(mask, static_cast<int>(lane));
}
ENTRY(half_warps, half_warps_kernel, 1, 32)

__global__ void partial_ballot_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x < 20) {
    out[threadIdx.x] = static_cast<int>(__ballot_sync(static_cast<unsigned>(value), 1));  // @partial-ballot
  }
  __syncthreads();
}
ENTRY(partial_ballot, partial_ballot_kernel, 1, 32)

__global__ void short_block_kernel(int32_t* out, int64_t value) {
  out[threadIdx.x] = static_cast<int>(__ballot_sync(static_cast<unsigned>(value), 1));  // @short-block
}
ENTRY(short_block, short_block_kernel, 1, 20)

__global__ void mask_without_caller_kernel(int32_t* out, int64_t value) {
  const unsigned mask = threadIdx.x == 3 && value != 0 ? 0xfffffff7u : kFull;
  __syncwarp(mask);  // @mask-without-caller
  out[threadIdx.x] = 1;
}
ENTRY(mask_without_caller, mask_without_caller_kernel, 1, 32)

__global__ void returned_lane_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x == 0 && value != 0) return;
  __syncwarp(kFull);  // @returned-lane
  out[threadIdx.x] = 1;
}
ENTRY(returned_lane, returned_lane_kernel, 1, 32)

__global__ void different_masks_kernel(int32_t* out, int64_t value) {
  const unsigned mask = threadIdx.x < 8 && value != 0 ? 0x0000ffffu : kFull;
  __syncwarp(mask);  // @different-masks
  out[threadIdx.x] = 1;
}
ENTRY(different_masks, different_masks_kernel, 1, 32)

__global__ void odd_width_kernel(int32_t* out, int64_t value) {
  out[threadIdx.x] = __shfl_sync(kFull, 1, 0, static_cast<int>(value));  // @odd-width
}
ENTRY(odd_width, odd_width_kernel, 1, 32)

// --- agreement ---
__global__ void mixed_operations_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x < 16 || value == 0) {
    out[threadIdx.x] = static_cast<int>(__ballot_sync(kFull, 1));  // @mixed-ballot
  } else {
    out[threadIdx.x] = __shfl_sync(kFull, 1, 0);  // @mixed-shuffle
  }
}
ENTRY(mixed_operations, mixed_operations_kernel, 1, 32)

__global__ void two_sites_kernel(int32_t* out, int64_t value) {
  const bool left = threadIdx.x < 16 || value == 0;
  // clang-format off
  out[threadIdx.x] = left ? __shfl_sync(kFull, 1, 0) : __shfl_sync(kFull, 1, 0);  // @two-sites
  // clang-format on
}
ENTRY(two_sites, two_sites_kernel, 1, 32)

__global__ void barrier_sites_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x < 32 || value == 0) {
    __syncthreads();  // @barrier-site-a
  } else {
    __syncthreads();  // @barrier-site-b
  }
  out[threadIdx.x] = 1;
}
ENTRY(barrier_sites, barrier_sites_kernel, 1, 64)

__global__ void barrier_operations_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x < 32 || value == 0) {
    out[threadIdx.x] = __syncthreads_or(1);  // @barrier-or
  } else {
    out[threadIdx.x] = __syncthreads_and(1);  // @barrier-and
  }
}
ENTRY(barrier_operations, barrier_operations_kernel, 1, 64)

// --- leaving, and waiting for ever ---
__global__ void early_return_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x >= 60 && value != 0) return;
  __syncthreads();  // @early-return
  out[threadIdx.x] = 1;
}
ENTRY(early_return, early_return_kernel, 1, 64)

__global__ void divergent_barrier_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x % 2 == 0 || value == 0) __syncthreads();  // @divergent-barrier
  out[threadIdx.x] = 1;
}
ENTRY(divergent_barrier, divergent_barrier_kernel, 1, 64)

__global__ void deadlock_kernel(int32_t* out, int64_t value) {
  if (threadIdx.x == 5 && value != 0) __syncthreads();  // @deadlock-barrier
  __syncwarp();                                         // @deadlock-syncwarp
  if (threadIdx.x != 5 || value == 0) __syncthreads();
  out[threadIdx.x] = 1;
}
ENTRY(deadlock, deadlock_kernel, 1, 32)

__global__ void trap_kernel(int32_t* out, int64_t value) {
  if (value >= 0 && blockIdx.x == 2 && threadIdx.x == static_cast<unsigned>(value)) {
    QSA_TRAP("a score is \"not\" finite");  // @trap
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}
ENTRY(trap_at, trap_kernel, 4, 40)

__global__ void plain_trap_kernel(int32_t* out, int64_t value) {
  if (value != 0) __trap();  // @plain-trap
  out[threadIdx.x] = 1;
}
ENTRY(plain_trap, plain_trap_kernel, 1, 32)

// --- fuel ---
__global__ void endless_loop_kernel(int32_t* out, int64_t value) {
  volatile int64_t left = value;
  while (left != 0) left = left - 1;  // @endless-loop
  out[threadIdx.x] = 1;
}
ENTRY(endless_loop, endless_loop_kernel, 1, 1)

__global__ void endless_barriers_kernel(int32_t* out, int64_t value) {
  for (int64_t i = 0; i != value; ++i) __syncthreads();
  out[threadIdx.x] = 1;
}
ENTRY(endless_barriers, endless_barriers_kernel, 1, 64)

__global__ void many_syncwarps_kernel(int32_t* out, int64_t value) {
  for (int64_t i = 0; i < value; ++i) __syncwarp();
  out[threadIdx.x] = 1;
}
ENTRY(many_syncwarps, many_syncwarps_kernel, 1, 32)

// --- order: who comes when ---
__global__ void order_kernel(int32_t* out, int64_t) {
  const int place = atomicAdd(out, 1);
  out[1 + place] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}
ENTRY(order, order_kernel, 3, 40)

__global__ void coordinates_kernel(int32_t* out, int64_t) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const int before = __shfl_up_sync(thread < 32 ? kFull : 0xffffu, static_cast<int>(threadIdx.x), 1);
  __syncthreads();
  int32_t* mine = out + 7 * (block * threads + thread);
  mine[0] = static_cast<int>(threadIdx.x);
  mine[1] = static_cast<int>(threadIdx.y);
  mine[2] = static_cast<int>(threadIdx.z);
  mine[3] = static_cast<int>(blockIdx.x);
  mine[4] = static_cast<int>(blockIdx.y);
  mine[5] = static_cast<int>(blockIdx.z);
  mine[6] = before;
}
ENTRY(coordinates, coordinates_kernel, dim3(2, 3, 2), dim3(4, 3, 4))
