// Clusters, asynchronous copies and tensor cores. A marker after an at sign names a line for the tests.
#include "common/portability.cuh"

#define ENTRY(name, kernel, grid, block, cluster)                                         \
  extern "C" int32_t name(const int32_t* in, int32_t* out, int64_t value, void* stream) { \
    return QSA_LAUNCH_CLUSTER(kernel, grid, block, cluster, 0, stream, in, out, value);   \
  }

// Every block writes its own part, then reads its neighbour's. value: 1 no barrier before reading, 2 none
// before leaving.
__global__ void neighbour_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, part, 32);
  const unsigned rank = qsa::cluster_rank();
  const unsigned next = (rank + 1) % qsa::cluster_size();
  part[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
  if (value != 1) qsa::cluster_sync();
  const int32_t* theirs = qsa::map_shared_rank(part, next);
  out[blockIdx.x * 32 + threadIdx.x] = theirs[31 - threadIdx.x];  // @neighbour-read
  if (value != 2) qsa::cluster_sync();
}
ENTRY(neighbour, neighbour_kernel, 8, 32, 4)

// A second barrier is needed before a part that others read is written again.
__global__ void reuse_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, part, 32);
  const unsigned next = (qsa::cluster_rank() + 1) % qsa::cluster_size();
  int32_t sum = 0;
  for (int round = 0; round < 2; ++round) {
    part[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x] + round;  // @reuse-write
    qsa::cluster_sync();
    sum += qsa::map_shared_rank(part, next)[threadIdx.x];
    if (value == 0) qsa::cluster_sync();
  }
  out[blockIdx.x * 32 + threadIdx.x] = sum;
  if (value != 0) qsa::cluster_sync();
}
ENTRY(reuse, reuse_kernel, 2, 32, 2)

// Between arriving and waiting nothing of that barrier is ordered yet.
__global__ void split_barrier_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, part, 32);
  QSA_SHARED(int32_t, late, 32);
  const unsigned next = (qsa::cluster_rank() + 1) % qsa::cluster_size();
  part[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
  late[threadIdx.x] = 0;
  qsa::cluster_sync();
  int32_t* target = value == 0 ? part : late;
  if (value == 0) target[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x] + 1;
  qsa::cluster_arrive();
  if (value != 0) target[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x] + 1;
  qsa::cluster_wait();
  out[blockIdx.x * 32 + threadIdx.x] =
      qsa::map_shared_rank(target, next)[threadIdx.x];  // @split-barrier-read
  qsa::cluster_sync();
}
ENTRY(split_barrier, split_barrier_kernel, 2, 32, 2)

// Nothing orders what a thread does between the halves of a barrier with what others do after it.
__global__ void between_halves_kernel(const int32_t*, int32_t* out, int64_t) {
  const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
  qsa::cluster_arrive();
  if (is_first) atomicMax(&out[0], 1);
  qsa::cluster_wait();
  if (blockIdx.x == 1 && threadIdx.x == 31) atomicExch(&out[0], 0);
}
ENTRY(between_halves, between_halves_kernel, 2, 32, 2)

// One warp arrives before a barrier of its CTA, the other behind it.
__global__ void arrive_apart_kernel(const int32_t* in, int32_t* out, int64_t) {
  QSA_SHARED(int32_t, part, 64);
  part[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x < 32) qsa::cluster_arrive();
  __syncthreads();
  if (threadIdx.x >= 32) qsa::cluster_arrive();
  qsa::cluster_wait();
  out[blockIdx.x * 64 + threadIdx.x] = part[63 - threadIdx.x];
}
ENTRY(arrive_apart, arrive_apart_kernel, 2, 64, 2)

// What another CTA did in shared memory before the CTA that has it returned: an atomic (0), after which the
// owner's own come, or a read (1), beside three of the owner's warps.
__global__ void late_visitor_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, part, 96);
  part[threadIdx.x] = in[threadIdx.x];
  qsa::cluster_sync();
  const bool is_owner = qsa::cluster_rank() == 0;
  int32_t* const target = qsa::map_shared_rank(part, 0);
  int32_t seen = 0;
  if (value == 0) {
    if (!is_owner && threadIdx.x == 0) atomicAdd(target, 1);  // @late-atomic
    __syncthreads();
    if (is_owner && threadIdx.x == 0) atomicAdd(part, 1);
  } else {
    if (is_owner) seen = part[7];
    if (!is_owner && threadIdx.x == 0) seen = target[7];  // @late-read
  }
  out[blockIdx.x * 96 + threadIdx.x] = seen;
}
ENTRY(late_visitor, late_visitor_kernel, 2, 96, 2)

// Warps that arrive on different sides of a barrier of their CTA; behind the wait they race (1) or, with a
// barrier between, do not (0). What the late one wrote before it arrived, the other CTA may read.
__global__ void skewed_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, part, 64);
  QSA_SHARED(int32_t, own, 64);
  if (threadIdx.x < 32) qsa::cluster_arrive();
  __syncthreads();
  part[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x >= 32) qsa::cluster_arrive();
  qsa::cluster_wait();
  const unsigned next = (qsa::cluster_rank() + 1) % qsa::cluster_size();
  int32_t got = threadIdx.x >= 32 ? qsa::map_shared_rank(part, next)[threadIdx.x] : 0;
  if (threadIdx.x < 32) own[threadIdx.x] = in[threadIdx.x];
  if (value == 0) __syncthreads();
  if (threadIdx.x >= 32) got += own[threadIdx.x - 32];  // @skewed-read
  qsa::cluster_sync();
  out[blockIdx.x * 64 + threadIdx.x] = got;
}
ENTRY(skewed, skewed_kernel, 2, 64, 2)

__global__ void remote_atomic_kernel(const int32_t*, int32_t* out, int64_t) {
  QSA_SHARED(int32_t, total, 1);
  if (threadIdx.x == 0) total[0] = 0;
  qsa::cluster_sync();
  atomicAdd(qsa::map_shared_rank(total, 0), static_cast<int32_t>(blockIdx.x + 1));
  qsa::cluster_sync();
  if (threadIdx.x == 0) out[blockIdx.x] = total[0];
}
ENTRY(remote_atomic, remote_atomic_kernel, 16, 32, 16)

__global__ void own_block_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, part, 32);
  part[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
  if (value == 0) {
    qsa::cluster_sync();
  } else {
    qsa::cluster_arrive();
  }
  out[blockIdx.x * 32 + threadIdx.x] = part[31 - threadIdx.x];  // @own-block-read
  if (value != 0) qsa::cluster_wait();
}
ENTRY(own_block, own_block_kernel, 2, 32, 2)

// A block barrier orders nothing between blocks.
__global__ void block_barrier_kernel(const int32_t* in, int32_t* out, int64_t) {
  QSA_SHARED(int32_t, part, 32);
  part[threadIdx.x] = in[threadIdx.x];
  qsa::cluster_sync();
  if (qsa::cluster_rank() == 0) qsa::map_shared_rank(part, 1)[threadIdx.x] = 5;
  __syncthreads();
  if (qsa::cluster_rank() == 1) out[threadIdx.x] = part[threadIdx.x];  // @block-barrier-read
  qsa::cluster_sync();
}
ENTRY(block_barrier, block_barrier_kernel, 2, 32, 2)

__global__ void leave_kernel(const int32_t*, int32_t* out, int64_t value) {
  if (blockIdx.x == 1 && value == 1) return;
  qsa::cluster_arrive();  // @leave-arrive
  if (blockIdx.x == 1 && value == 2) return;
  if (value != 3) qsa::cluster_wait();
  if (value == 4) qsa::cluster_wait();    // @leave-second-wait
  if (value == 3) qsa::cluster_arrive();  // @leave-second-arrive
  if (threadIdx.x == 0) out[blockIdx.x] = 1;
}
ENTRY(leave, leave_kernel, 2, 32, 2)

__global__ void rank_kernel(const int32_t*, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, part, 1);
  part[0] = 1;
  qsa::cluster_sync();
  out[blockIdx.x] = *qsa::map_shared_rank(part, static_cast<unsigned>(value));  // @bad-rank
  qsa::cluster_sync();
}
ENTRY(rank, rank_kernel, 2, 1, 2)

__global__ void not_shared_kernel(const int32_t* in, int32_t* out, int64_t) {
  out[blockIdx.x] = *qsa::map_shared_rank(in, 0);  // @not-shared
}
ENTRY(not_shared, not_shared_kernel, 2, 1, 2)

// --- asynchronous copies; value: 1 no wait, 2 waits for one group too few, 3 no barrier after the wait ---
__global__ void copy_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, first, 128);
  QSA_SHARED(int32_t, second, 128);
  first[threadIdx.x] = first[threadIdx.x + 32] = first[threadIdx.x + 64] = first[threadIdx.x + 96] = -1;
  second[threadIdx.x] = second[threadIdx.x + 32] = second[threadIdx.x + 64] = second[threadIdx.x + 96] = -1;
  __syncthreads();
  qsa::async_copy16(first + 4 * threadIdx.x, in + 4 * threadIdx.x);
  qsa::async_copy_commit();
  qsa::async_copy16(second + 4 * threadIdx.x, in + 128 + 4 * threadIdx.x);  // @copy-issue
  qsa::async_copy_commit();
  if (value == 2) qsa::async_copy_wait<1>();
  if (value == 0 || value == 3) qsa::async_copy_wait<0>();
  if (value != 3) __syncthreads();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = first[4 * (31 - threadIdx.x) + i];  // @copy-read
  for (int i = 0; i < 4; ++i) out[128 + 4 * threadIdx.x + i] = second[4 * (31 - threadIdx.x) + i];
}
ENTRY(copy, copy_kernel, 1, 32, 1)

// A thread's copy is under way over a barrier while its neighbour uses the place; value: 1 before the issue,
// 2 while the copy is under way.
__global__ void copy_under_way_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 128);
  int32_t* const own = cells + 4 * threadIdx.x;
  int32_t* const other = cells + 4 * (threadIdx.x ^ 1);
  if (value == 1) other[0] = -1;
  __syncthreads();
  qsa::async_copy16(own, in + 4 * threadIdx.x);  // @copy-under-way
  qsa::async_copy_commit();
  if (value == 2) other[0] = -1;
  __syncthreads();
  qsa::async_copy_wait<0>();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = own[i];
}
ENTRY(copy_under_way, copy_under_way_kernel, 1, 32, 1)

__global__ void fresh_copy_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, cells, 4);
  qsa::async_copy16(cells, in + (value >= 4 ? value : 0));  // @fresh-copy
  qsa::async_copy_commit();
  if (value != 1) qsa::async_copy_wait<0>();
  out[0] = cells[0];  // @fresh-copy-read
}
ENTRY(fresh_copy, fresh_copy_kernel, 1, 1, 1)

// --- tensor cores: out = in as a 16x16 left and a 16x8 right tile in bf16, c = value everywhere ---
__global__ void mma_kernel(const int32_t* in, int32_t* out, int64_t value) {
  const unsigned g = threadIdx.x / 4;
  const unsigned t = 2 * (threadIdx.x % 4);
  const uint16_t* left = reinterpret_cast<const uint16_t*>(in);
  const uint16_t* right = left + 256;
  const auto pair = [](uint16_t low, uint16_t high) {
    return static_cast<uint32_t>(low) | (static_cast<uint32_t>(high) << 16);
  };
  uint32_t a[4];
  uint32_t b[2];
  for (unsigned i = 0; i < 4; ++i) {
    const uint16_t* at = left + (g + 8 * (i % 2)) * 16 + t + 8 * (i / 2);
    a[i] = pair(at[0], at[1]);
  }
  for (unsigned i = 0; i < 2; ++i) {
    const uint16_t* at = right + (t + 8 * i) * 8 + g;
    b[i] = pair(at[0], at[8]);
  }
  const float c = static_cast<float>(value);
  float d[4] = {c, c, c, c};
  qsa::mma_m16n8k16_bf16(d, a, b, d);
  for (unsigned i = 0; i < 4; ++i) out[(g + 8 * (i / 2)) * 8 + t + i % 2] = __float_as_int(d[i]);
}
ENTRY(mma, mma_kernel, 1, 32, 1)

// Four 8x8 tiles: loaded as they are, transposed, and two of them both ways.
__global__ void load_matrix_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(uint4, rows, 33);
  rows[threadIdx.x] = reinterpret_cast<const uint4*>(in)[threadIdx.x];
  if (value != 1) __syncwarp();
  const char* row = reinterpret_cast<const char*>(rows + threadIdx.x) + (value == 2 ? 2 : 0);
  uint32_t d[12];
  const void* first = value == 3 && threadIdx.x == 3 ? static_cast<const void*>(in) : row;
  qsa::ldmatrix_x4(d, first);  // @load-matrix
  qsa::ldmatrix_x4_trans(d + 4, row);
  qsa::ldmatrix_x2(d + 8, threadIdx.x < 16 ? row : nullptr);
  qsa::ldmatrix_x2_trans(d + 10, threadIdx.x < 16 ? row : nullptr);
  for (unsigned i = 0; i < 12; ++i) out[i * 32 + threadIdx.x] = static_cast<int32_t>(d[i]);
}
ENTRY(load_matrix, load_matrix_kernel, 1, 32, 1)
ENTRY(short_mma, mma_kernel, 1, 30, 1)
