// Memory accesses, right and wrong: races, bounds, junk, inputs. A marker after an at sign names a line for
// the tests.
#include "common/portability.cuh"

#define ENTRY(name, kernel, grid, block, dynamic_bytes)                                   \
  extern "C" int32_t name(const int32_t* in, int32_t* out, int64_t value, void* stream) { \
    return QSA_LAUNCH(kernel, grid, block, dynamic_bytes, stream, in, out, value);        \
  }

constexpr unsigned kFull = 0xffffffffu;

// --- races inside a block; value 1 removes or breaks the ordering ---
__global__ void exchange_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 64);
  cells[threadIdx.x] = in[threadIdx.x];  // @exchange-write
  if (value == 0) __syncthreads();
  out[threadIdx.x] = cells[63 - threadIdx.x];  // @exchange-read
}
ENTRY(exchange, exchange_kernel, 1, 64, 0)

// Everybody reads the cell above the own one: without the trailing barrier that is right in ascending order
// only.
__global__ void upward_rounds_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 65);
  int32_t sum = 0;
  if (threadIdx.x == 0) cells[64] = 0;
  for (int round = 0; round < 3; ++round) {
    cells[threadIdx.x] = in[threadIdx.x] + round;
    __syncthreads();
    sum += cells[threadIdx.x + 1];
    if (value == 0) __syncthreads();
  }
  out[threadIdx.x] = sum;
}
ENTRY(upward_rounds, upward_rounds_kernel, 1, 64, 0)

// The first half is right; without the trailing barrier the next round overwrites what others still read.
__global__ void rounds_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 64);
  int32_t sum = 0;
  for (int round = 0; round < 3; ++round) {
    cells[threadIdx.x] = in[threadIdx.x] + round;  // @rounds-write
    __syncthreads();
    sum += cells[63 - threadIdx.x];
    if (value == 0) __syncthreads();
  }
  out[threadIdx.x] = sum;
}
ENTRY(rounds, rounds_kernel, 1, 64, 0)

__global__ void histogram_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, bins, 16);
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  if (value != 2) __syncthreads();
  const int bin = in[threadIdx.x] & 15;
  if (value == 1) {
    bins[bin] += 1;  // @histogram-plain
  } else {
    atomicAdd(&bins[bin], 1);  // @histogram-atomic
  }
  if (value != 3) __syncthreads();
  if (threadIdx.x < 16) out[threadIdx.x] = bins[threadIdx.x];  // @histogram-read
}
ENTRY(histogram, histogram_kernel, 1, 64, 0)

// --- races inside a warp: __syncwarp orders, a shuffle does not ---
__global__ void warp_exchange_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 32);
  cells[threadIdx.x] = in[threadIdx.x];
  if (value == 0) __syncwarp();
  if (value == 1) (void)__shfl_sync(kFull, 0, 0);
  if (value == 2) (void)__ballot_sync(kFull, 1);
  // Orders within each half only: lane i reads from the other half.
  if (value == 3) __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
  out[threadIdx.x] = cells[31 - threadIdx.x];  // @warp-read
}
ENTRY(warp_exchange, warp_exchange_kernel, 1, 32, 0)

// Lane 0 writes; lane 1 learns of it from lane 0, and lane 2 from lane 1: ordered through the one between.
__global__ void warp_chain_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cell, 1);
  const unsigned lane = threadIdx.x;
  if (lane == 0) cell[0] = in[0];
  if (lane < 2) __syncwarp(0x3u);
  if (lane == 1 || lane == 2) {
    if (value == 0) __syncwarp(0x6u);
  }
  if (lane == 2) out[0] = cell[0];  // @warp-chain-read
}
ENTRY(warp_chain, warp_chain_kernel, 1, 32, 0)

// --- atomics against plain accesses of the same thread's neighbours ---
__global__ void flag_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, flag, 1);
  if (threadIdx.x == 0) flag[0] = 0;
  __syncthreads();
  if (value == 0) {
    atomicExch(&flag[0], 1);
  } else {
    flag[0] = 1;  // @flag-write
  }
  __syncthreads();
  if (threadIdx.x == 0) out[0] = flag[0];
}
ENTRY(flag, flag_kernel, 1, 64, 0)

// The last to update atomically reads plainly at once: the others' updates are not ordered before that.
__global__ void own_atomic_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, count, 1);
  if (threadIdx.x == 0) count[0] = 0;
  __syncthreads();
  const int32_t before = atomicAdd(&count[0], 1);
  if (value == 0) __syncthreads();
  if (before == 63) out[0] = count[0];  // @own-atomic-read
}
ENTRY(own_atomic, own_atomic_kernel, 1, 64, 0)

// Neighbouring bytes of one word are different places; the same byte is not.
__global__ void bytes_kernel(const int32_t*, int32_t* out, int64_t value) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(out);
  bytes[threadIdx.x / static_cast<unsigned>(value)] = static_cast<uint8_t>(threadIdx.x);  // @byte-write
}
ENTRY(bytes, bytes_kernel, 1, 64, 0)

// Word, bytes, word again: the bookkeeping of a word splits and joins.
__global__ void split_word_kernel(const int32_t*, int32_t* out, int64_t value) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(out);
  if (threadIdx.x == 0) out[0] = 0;
  __syncthreads();
  if (threadIdx.x < 4) bytes[threadIdx.x] = static_cast<uint8_t>(threadIdx.x + 1);
  if (value == 0) __syncthreads();
  if (threadIdx.x == 40) out[0] += 1;  // @split-word
}
ENTRY(split_word, split_word_kernel, 1, 64, 0)

// Two readers in two warps; the writer is ordered with one of them. value: 0 with both, 1 and 2
// with one; 3 as 1 with a full warp of readers.
__global__ void two_readers_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cell, 1);
  const unsigned thread = threadIdx.x;
  if (thread == 0) cell[0] = in[0];
  __syncthreads();
  if (thread == 0 || thread == 32) out[thread] = cell[0];  // @two-readers-read
  if (value == 0) __syncthreads();
  __syncwarp();
  const unsigned writer = value == 2 ? 33 : 1;
  if (thread == writer) cell[0] = 1;  // @two-readers-write
}
ENTRY(two_readers, two_readers_kernel, 1, 64, 0)

// Every lane reads; then one of them writes, without and with a __syncwarp between.
__global__ void reader_writes_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cell, 1);
  const unsigned lane = threadIdx.x;
  if (lane == 0) cell[0] = in[0];
  __syncwarp();
  out[lane] = cell[0];
  (void)__ballot_sync(kFull, 1);  // all have read when the writer writes, and nothing orders them
  if (value < 32 && lane == static_cast<unsigned>(value)) cell[0] = 1;  // @reader-writes
  if (value >= 32) __syncwarp();
  if (lane == static_cast<unsigned>(value - 32)) cell[0] = 1;
}
ENTRY(reader_writes, reader_writes_kernel, 1, 32, 0)

// --- races between blocks, and the order of launches ---
__global__ void blocks_kernel(const int32_t*, int32_t* out, int64_t value) {
  if (threadIdx.x != 0) return;
  if (value == 0) {
    atomicAdd(&out[0], 1);
  } else {
    out[0] += 1;  // @blocks-write
  }
}
ENTRY(blocks, blocks_kernel, 8, 32, 0)

extern "C" int32_t blocks_in_launches(const int32_t* in, int32_t* out, int64_t launches, void* stream) {
  for (int64_t i = 0; i < launches; ++i) {
    const int32_t status = QSA_LAUNCH(blocks_kernel, 1, 32, 0, stream, in, out, int64_t{1});
    if (status != QSA_OK) return status;
  }
  return QSA_OK;
}

// --- bounds ---
__global__ void global_bounds_kernel(const int32_t* in, int32_t* out, int64_t value) {
  if (threadIdx.x != 3) return;
  out[0] = in[value];  // @global-read
}
ENTRY(global_read, global_bounds_kernel, 1, 32, 0)

__global__ void global_write_kernel(const int32_t*, int32_t* out, int64_t value) {
  if (threadIdx.x != 3) return;
  reinterpret_cast<uint8_t*>(out)[value] = 7;  // @global-write
}
ENTRY(global_write, global_write_kernel, 1, 32, 0)

__global__ void wide_read_kernel(const int32_t* in, int32_t* out, int64_t value) {
  *reinterpret_cast<int4*>(out) = *reinterpret_cast<const int4*>(in + value);  // @wide-read
}
ENTRY(wide_read, wide_read_kernel, 1, 1, 0)

__global__ void shared_bounds_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, first, 8);
  QSA_SHARED(int32_t, second, 8);
  if (threadIdx.x < 8) {
    first[threadIdx.x] = 1;
    second[threadIdx.x] = 2;
  }
  __syncthreads();
  if (threadIdx.x == 0) out[0] = first[value] + second[0];  // @shared-read
}
ENTRY(shared_bounds, shared_bounds_kernel, 1, 32, 0)

__global__ void wide_shared_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 10);
  if (threadIdx.x < 10) cells[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0)
    *reinterpret_cast<int4*>(out) = *reinterpret_cast<int4*>(cells + value);  // @wide-shared
}
ENTRY(wide_shared, wide_shared_kernel, 1, 32, 0)

__global__ void dynamic_bounds_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_DYNAMIC_SHARED(int32_t, pool);
  pool[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 5) pool[value] = 2;  // @dynamic-write
  __syncthreads();
  if (threadIdx.x == 0) out[0] = pool[0];
}
ENTRY(dynamic_bounds, dynamic_bounds_kernel, 1, 32, 40 * 4)

// Another thread's local memory is not there on a GPU.
__global__ void local_memory_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t*, pointer, 1);
  int32_t mine = static_cast<int32_t>(threadIdx.x);
  if (threadIdx.x == 4) pointer[0] = &mine;
  __syncthreads();
  if (threadIdx.x == (value == 0 ? 4 : 5)) out[0] = *pointer[0];  // @local-memory
  __syncthreads();
}
ENTRY(local_memory, local_memory_kernel, 1, 32, 0)

// A thread's own array, also one inside a struct, has its size.
__global__ void own_array_kernel(const int32_t* in, int32_t* out, int64_t value) {
  struct {
    int32_t cell[4];
  } own;
  for (int64_t i = 0; i < value; ++i) {
    own.cell[i] = in[i];  // @own-array
  }
  out[0] = own.cell[3];
}
ENTRY(own_array, own_array_kernel, 1, 1, 0)

// A word has 32 bits to be shifted by.
__global__ void shift_kernel(const int32_t* in, int32_t* out, int64_t value) {
  const int32_t count = static_cast<int32_t>(value);
  out[0] = static_cast<int32_t>(static_cast<uint32_t>(in[0]) << count);  // @shift
}
ENTRY(shift, shift_kernel, 1, 1, 0)

int32_t library_variable = 0;
const int32_t library_table[4] = {3, 1, 4, 1};

__global__ void library_kernel(const int32_t* in, int32_t* out, int64_t value) {
  out[0] = library_table[in[0] & 3];
  if (value != 0) library_variable = 1;  // @library-write
}
ENTRY(library, library_kernel, 1, 1, 0)

// --- nobody wrote it ---
__global__ void uninitialised_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 64);
  const bool missing = value == 1 || (value == 2 && blockIdx.x == 1);
  if (threadIdx.x != 63 || !missing) cells[threadIdx.x] = 1;
  __syncthreads();
  out[64 * blockIdx.x + threadIdx.x] = cells[63 - threadIdx.x];  // @uninitialised-shared
}
ENTRY(uninitialised_shared, uninitialised_kernel, 2, 64, 0)

__global__ void uninitialised_atomic_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, count, 1);
  if (threadIdx.x == 0 && value == 0) atomicExch(&count[0], 0);
  __syncthreads();
  const int32_t before = atomicAdd(&count[0], 1);  // @uninitialised-atomic
  out[threadIdx.x] = before;
}
ENTRY(uninitialised_atomic, uninitialised_atomic_kernel, 1, 32, 0)

__global__ void uninitialised_out_kernel(const int32_t*, int32_t* out, int64_t value) {
  if (value == 0) out[threadIdx.x] = 0;
  out[threadIdx.x] += 1;  // @uninitialised-out
}
ENTRY(uninitialised_out, uninitialised_out_kernel, 1, 32, 0)

extern "C" int32_t initialised_by_a_launch(const int32_t* in, int32_t* out, int64_t value, void* stream) {
  if (value == 0) {
    const int32_t status = QSA_LAUNCH(uninitialised_out_kernel, 1, 32, 0, stream, in, out, int64_t{0});
    if (status != QSA_OK) return status;
  }
  return QSA_LAUNCH(uninitialised_out_kernel, 1, 32, 0, stream, in, out, int64_t{1});
}

__global__ void many_findings_kernel(const int32_t*, int32_t* out, int64_t) {
  QSA_SHARED(int32_t, cells, 20);
  int32_t sum = 0;
#define READ(i) sum += cells[i];
#define READ_FIVE(i) READ(i) READ(i + 1) READ(i + 2) READ(i + 3) READ(i + 4)
  READ_FIVE(0) READ_FIVE(5) READ_FIVE(10) READ_FIVE(15) out[threadIdx.x] = sum;
}
ENTRY(many_findings, many_findings_kernel, 1, 2, 0)

// --- inputs ---
__global__ void read_only_kernel(const int32_t* in, int32_t* out, int64_t value) {
  int32_t* target = value == 0 ? out : const_cast<int32_t*>(in);
  if (threadIdx.x == 9) target[2] = 5;  // @read-only
}
ENTRY(read_only, read_only_kernel, 1, 32, 0)

// --- structures copied as a whole, by value and through memcpy ---
struct Big {
  int32_t numbers[100];
};
__global__ void big_argument_kernel(Big big, int32_t* out, int64_t value) {
  QSA_SHARED(Big, copy, 1);
  if (threadIdx.x == 0) copy[0] = big;
  if (value == 0) __syncthreads();
  out[threadIdx.x] = copy[0].numbers[threadIdx.x];  // @big-read
}
extern "C" int32_t big_argument(const int32_t* in, int32_t* out, int64_t value, void* stream) {
  Big big;
  memcpy(&big, in, sizeof(big));
  return QSA_LAUNCH(big_argument_kernel, 1, 64, 0, stream, big, out, value);
}

__global__ void memcpy_kernel(const int32_t* in, int32_t* out, int64_t value) {
  if (threadIdx.x == 0) memcpy(out, in, static_cast<size_t>(value));  // @memcpy
}
ENTRY(copy_bytes, memcpy_kernel, 1, 32, 0)

// --- faults ---
__global__ void crash_kernel(const int32_t* in, int32_t* out, int64_t value) {
  if (threadIdx.x == 6) out[0] = in[value];  // @crash-read
}
ENTRY(crash_read, crash_kernel, dim3(1, 2), 32, 0)

__global__ void crash_write_kernel(const int32_t*, int32_t* out, int64_t value) {
  if (threadIdx.x == 6) out[value] = 1;  // @crash-write
}
ENTRY(crash_write, crash_write_kernel, 1, 32, 0)

__global__ void null_write_kernel(const int32_t*, int32_t*, int64_t value) {
  int32_t* volatile nowhere = nullptr;
  if (threadIdx.x == 6) nowhere[value] = 1;
}
ENTRY(null_write, null_write_kernel, 1, 32, 0)

__global__ void division_kernel(const int32_t* in, int32_t* out, int64_t value) {
  out[threadIdx.x] = in[0] / static_cast<int32_t>(value);  // @division
}
ENTRY(division, division_kernel, 1, 32, 0)

__attribute__((noinline)) int32_t recurse(int64_t depth) {
  volatile int32_t room[64];
  room[depth & 63] = static_cast<int32_t>(depth);
  return depth == 0 ? 0 : recurse(depth - 1) + room[depth & 63];
}
__global__ void recursion_kernel(const int32_t*, int32_t* out, int64_t value) { out[0] = recurse(value); }
ENTRY(recursion, recursion_kernel, 1, 1, 0)

// --- junk: what fresh shared memory holds ---
__global__ void junk_kernel(const int32_t*, int32_t* out, int64_t) {
  QSA_SHARED(int32_t, cells, 64);
  out[blockIdx.x * 64 + threadIdx.x] = cells[threadIdx.x];
  cells[threadIdx.x] = 0;
}
ENTRY(junk, junk_kernel, 2, 64, 0)

extern "C" int32_t fault_after_launch(const int32_t* in, int32_t* out, int64_t value, void* stream) {
  const int32_t status = QSA_LAUNCH(junk_kernel, 2, 64, 0, stream, in, out, value);
  int32_t* volatile nowhere = nullptr;
  return status + *nowhere;
}

// A thread's own word, assigned only where `value` is above the thread's index.
__global__ void unassigned_kernel(uint32_t* out, int32_t value) {
  uint32_t own[2];
  for (int32_t i = 0; i < 2; ++i) {
    if (value > static_cast<int32_t>(threadIdx.x)) own[i] = 7u;
  }
  out[threadIdx.x] = own[threadIdx.x % 2];
}
extern "C" int32_t unassigned(uint32_t* out, int64_t value, void* stream) {
  return QSA_LAUNCH(unassigned_kernel, 1, 32, 0, stream, out, static_cast<int32_t>(value));
}
