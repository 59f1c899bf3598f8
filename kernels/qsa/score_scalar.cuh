// The scalar body of qsa_score: f32 FMA on the CUDA cores.
//
// A CTA serves one row. Its warps build the four query heads once, in shared memory; then every lane keeps
// its part of the query in registers (64 f32) and the warp walks the row's blocks, four at a time: 8 lanes a
// block, 16 dims a lane, two 16-byte loads of the key. A row is split over several CTAs (blockIdx.y) when
// rows alone would not fill the device.
//
// Order of a dot product: lane j of 8 accumulates dims 8j .. 8j+7, then 64+8j .. 64+8j+7, by FMA from zero;
// the 8 partial sums are added by a butterfly over lanes 4, 2, 1 apart. It does not depend on threads, CTAs
// or rows.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/score_row.cuh"

#ifndef QSA_SCORE_THREADS
#define QSA_SCORE_THREADS 256
#endif

namespace qsa {
namespace score_scalar {

constexpr int kThreads = QSA_SCORE_THREADS;
static_assert(kThreads % kWarpLanes == 0 && kThreads >= kWarpLanes && kThreads <= 1024,
              "QSA_SCORE_THREADS is a whole number of warps, 32 to 1024");
constexpr int kWarps = kThreads / kWarpLanes;

constexpr int kGroupLanes = 8;   // lanes that share a block
constexpr int kDimsPerLoad = 8;  // bf16 in 16 bytes
constexpr int kLoads = kHeadDim / (kGroupLanes * kDimsPerLoad);
constexpr int kSliceDims = kLoads * kDimsPerLoad;        // 16 dims of a key, and of each head, a lane
constexpr int kLoadStride = kGroupLanes * kDimsPerLoad;  // dims between a lane's two loads
constexpr int kBlocksPerWarp = kWarpLanes / kGroupLanes;
constexpr int kBlocksPerPass = kWarps * kBlocksPerWarp;

// 512 resident threads a multiprocessor: 64 query registers a thread leave room for no more.
constexpr int kCtasPerMultiprocessor = kThreads < 512 ? 512 / kThreads : 1;
constexpr int64_t kMaximumSplits = 65535;  // gridDim.y

struct KeySlice {
  uint4 word[kLoads];
};

struct QuerySlice {
  float head[kQueryHeads][kSliceDims];
};

// A block at or past live_blocks reads as zero: its key may not exist.
__device__ __forceinline__ KeySlice load_key(const uint16_t* block_keys, int64_t block, int64_t live_blocks,
                                             int group_lane) {
  KeySlice slice = {};
  if (block >= live_blocks) {
    return slice;
  }
  const uint16_t* first = block_keys + block * kHeadDim + group_lane * kDimsPerLoad;
  for (int load = 0; load < kLoads; ++load) {
    slice.word[load] = __ldg(reinterpret_cast<const uint4*>(first + load * kLoadStride));
  }
  return slice;
}

__device__ __forceinline__ void unpack_key(const KeySlice& slice, float (&key)[kSliceDims]) {
  for (int load = 0; load < kLoads; ++load) {
    const uint4 word = slice.word[load];
    float* first = key + load * kDimsPerLoad;
    first[0] = bf16_low_half(word.x);
    first[1] = bf16_high_half(word.x);
    first[2] = bf16_low_half(word.y);
    first[3] = bf16_high_half(word.y);
    first[4] = bf16_low_half(word.z);
    first[5] = bf16_high_half(word.z);
    first[6] = bf16_low_half(word.w);
    first[7] = bf16_high_half(word.w);
  }
}

// Query head `head` of the row at `position`; the whole warp calls it.
// [score.query-norm-then-rotation] norm, bf16, then the rotation.
__device__ __forceinline__ LaneDims query_head(const ScoreArguments& arguments, int64_t position, int head,
                                               int lane) {
  const QueryPlace place = query_place(arguments, position);
  const LaneDims raw = load_lane_dims(place.heads + head * kHeadDim, lane);
  const LaneDims normed = rms_norm(raw, load_lane_dims(arguments.q_norm_weight, lane), arguments.eps);
  return rotate(normed, place.cosine, place.sine, lane);
}

// Warps take the heads in turn; any number of warps covers all four.
__device__ __forceinline__ void build_query(const ScoreArguments& arguments, int64_t position, float* query,
                                            int warp, int lane) {
  for (int head = warp; head < kQueryHeads; head += kWarps) {
    const LaneDims part = query_head(arguments, position, head, lane);
    float* first = query + head * kHeadDim + lane * kDimsPerLane;
    for (int i = 0; i < kDimsPerLane; ++i) {
      first[i] = part.dim[i];
    }
  }
}

__device__ __forceinline__ QuerySlice read_query(const float* query, int group_lane) {
  QuerySlice slice;
  for (int head = 0; head < kQueryHeads; ++head) {
    for (int i = 0; i < kSliceDims; ++i) {
      const int dim = (i / kDimsPerLoad) * kLoadStride + group_lane * kDimsPerLoad + i % kDimsPerLoad;
      slice.head[head][i] = query[head * kHeadDim + dim];
    }
  }
  return slice;
}

// Adds over the 8 lanes of a block; the exchange never leaves the group, so a NaN key stays in its own score.
__device__ __forceinline__ float group_sum(float value) {
  for (int distance = kGroupLanes / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(kFullWarp, value, distance);
    value = __fadd_rn(value, other);
  }
  return value;
}

__device__ __forceinline__ float score_block(const QuerySlice& query, const KeySlice& slice) {
  float key[kSliceDims];
  unpack_key(slice, key);
  float dot[kQueryHeads] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int i = 0; i < kSliceDims; ++i) {
    for (int head = 0; head < kQueryHeads; ++head) {
      dot[head] = __fmaf_rn(query.head[head][i], key[i], dot[head]);
    }
  }
  for (int head = 0; head < kQueryHeads; ++head) {
    dot[head] = group_sum(dot[head]);
  }
  return whole_score(half_score(dot[0], dot[1]), half_score(dot[2], dot[3]));
}

__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor) score_kernel(ScoreArguments arguments) {
  QSA_SHARED(float, query, kQueryHeads* kHeadDim);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int group_lane = lane % kGroupLanes;
  const int group = lane / kGroupLanes;

  const int64_t row = blockIdx.x;
  const int64_t visible_len = arguments.visible_len[row];
  // Every early return is taken by the whole CTA: it hangs on the row and the CTA's first pass alone.
  // [score.zero-visible] a row that sees nothing is a padding row; its position is not even read.
  if (visible_len == 0) {
    return;
  }
  require_visible_len(arguments, visible_len);
  const int64_t position = arguments.rows[row];
  require_position(arguments, position);
  const int64_t live_blocks = visible_len / kRatio;
  const int64_t first_pass = static_cast<int64_t>(blockIdx.y) * kBlocksPerPass;
  if (first_pass >= live_blocks) {
    return;
  }

  // The first keys are on their way while the query is built.
  int64_t warp_block = first_pass + warp * kBlocksPerWarp;
  KeySlice slice = load_key(arguments.block_keys, warp_block + group, live_blocks, group_lane);
  build_query(arguments, position, query, warp, lane);
  // [score.query-barrier] heads are built by different warps than read them.
  __syncthreads();
  const QuerySlice query_slice = read_query(query, group_lane);

  const int64_t stride = static_cast<int64_t>(gridDim.y) * kBlocksPerPass;
  float* row_scores = arguments.scores + row * arguments.score_cols;
  // The bound is the warp's, not the group's: all 32 lanes take part in each exchange.
  for (; warp_block < live_blocks; warp_block += stride) {
    const int64_t block = warp_block + group;
    const KeySlice next = load_key(arguments.block_keys, block + stride, live_blocks, group_lane);
    const float score = score_block(query_slice, slice);
    // [score.untouched-tail] only the first visible_len / 4 columns are written.
    if (group_lane == 0 && block < live_blocks) {
      row_scores[block] = score;
    }
    slice = next;
  }
}

// CTAs a row: enough to fill the device, never more than the capacity has passes for. Rows take gridDim.x,
// whose limit is the larger one. Live lengths are the device's business: a CTA past them leaves at once.
inline int64_t splits_of(const ScoreArguments& arguments) {
  const int64_t capacity = arguments.tokens / kRatio < arguments.block_capacity ? arguments.tokens / kRatio
                                                                                : arguments.block_capacity;
  const int64_t passes = (capacity + kBlocksPerPass - 1) / kBlocksPerPass;
  const int64_t resident = static_cast<int64_t>(multiprocessor_count()) * kCtasPerMultiprocessor;
  const int64_t wanted = (resident + arguments.row_count - 1) / arguments.row_count;
  const int64_t splits = passes < wanted ? passes : wanted;
  // One CTA a row at least: it checks the row even where no block can be visible.
  return splits < 1 ? 1 : (splits < kMaximumSplits ? splits : kMaximumSplits);
}

}  // namespace score_scalar

namespace score_body {

struct Scalar {
  static int32_t launch(const ScoreArguments& arguments, void* stream) {
    const dim3 grid(static_cast<unsigned>(arguments.row_count),
                    static_cast<unsigned>(score_scalar::splits_of(arguments)));
    const dim3 block(score_scalar::kThreads);
    return QSA_LAUNCH(score_scalar::score_kernel, grid, block, 0, stream, arguments);
  }
};

}  // namespace score_body
}  // namespace qsa
