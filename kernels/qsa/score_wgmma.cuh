// The warpgroup body of qsa_score: many rows against many keys on compute capability 9.0 (sm_90a). GPU only.
//
// A CTA takes 64 rows and a range of keys, 128 keys a tile. One thread has the tensor copy engine bring the
// tiles, four stages ahead. Two warpgroups take 32 rows each: their query stays in registers for the whole
// range, as two left operands of 64 rows (of warp w, row g of a 16-row slice is head 2p of query row 8w + g,
// row g + 8 is head 2p + 1, p being the operand), so the four heads of a row meet in one lane, which adds
// them and stores two neighbouring scores at a time. A tile is multiplied in two halves: while one is added
// up and stored, the other keeps the tensor cores busy.
//
// Order of a dot product: the 8 k-steps one after another on the tensor cores, from zero. Against float64 the
// worst of 4 million scores erred by 0.21 of the gate's bound.
//
// 2,048 rows by 16,384 blocks on an H200: 56.8 us back to back, 54.9 us with other work between (605 to 626
// TFLOP/s). Without its stores it takes 52.5 us; the clock stands at 1.66 GHz under this load, at which the
// tensor cores alone need 38 us.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/score_mma.cuh"
#include "qsa/score_mma_query.cuh"
#include "qsa/score_row.cuh"
#include "qsa/score_wgmma_ops.cuh"

namespace qsa {

#if !QSA_HOST

namespace score_wgmma {

using namespace score_query;

// From here on faster than reading the keys once for every 8 rows.
constexpr int64_t kLeastRows = 24;

constexpr int kConsumers = 2;  // warpgroups that multiply
constexpr int kGroupThreads = 128;
constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
constexpr int kConsumerWarps = kConsumers * kGroupThreads / kWarpLanes;
constexpr int kWarpsAGroup = kGroupThreads / kWarpLanes;
constexpr int kRows = kConsumerWarps * kGroupRows;  // 64
constexpr int kSteps = kHeadDim / 16;
constexpr int kTileKeys = 128;
constexpr int kStages = 4;
constexpr int kHalves = 2;
constexpr int kHalfKeys = kTileKeys / kHalves;
constexpr int kHalfDots = kHalfKeys / 2;  // f32 of a lane for one left operand and a half
// A box of the copy engine: 128 bytes of every key of a tile, what its swizzle spans.
constexpr int kBoxDims = 64;
constexpr int kBoxes = kHeadDim / kBoxDims;
constexpr int kBoxBytes = kTileKeys * kBoxDims * 2;
constexpr int kStageBytes = kBoxes * kBoxBytes;
constexpr int kStageAlignment = 1024;
// 255 a thread would not fit three warpgroups; the one that only copies gives most of its share to the
// others.
constexpr int kConsumerRegisters = 240;
constexpr int kProducerRegisters = 24;

constexpr int kWarpQueryDims = kGroupRows * kQueryHeads * kHeadDim;

struct Shared {
  unsigned char keys[kStages][kStageBytes];
  uint16_t query[kConsumerWarps][kWarpQueryDims];
};
constexpr int kSharedBytes = sizeof(Shared) + kStageAlignment;

struct Barriers {
  uint64_t full[kStages];     // the tile is there
  uint64_t empty[kStages];    // both warpgroups have read it
  uint64_t turn[kConsumers];  // the warpgroup may multiply
};

#if QSA_HAS_WGMMA

// What the warp loads of its rows, all before it builds the first.
using GroupWords = RowWords[kGroupRows];

// Chunk c of a head vector of row g stands at place c ^ g: ldmatrix reads one chunk of eight rows.
__device__ __forceinline__ uint16_t* chunk_at(uint16_t* query, int row, int head, int chunk) {
  return query + (row * kQueryHeads + head) * kHeadDim + (chunk ^ row) * kChunkDims;
}

__device__ __forceinline__ void store_chunks(const PackedRow& packed, uint16_t* query, int row, int lane) {
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    const int dim = k * kGroupStride + lane % kHeadLanes * kGroupDims;
    uint16_t* chunk = chunk_at(query, row, lane / kHeadLanes, dim / kChunkDims);
    *reinterpret_cast<uint2*>(chunk + dim % kChunkDims) = packed.group[k];
  }
}

using Query = uint32_t[kHeadPairs][kSteps][4];

// The warp's slice of both left operands.
__device__ __forceinline__ void read_query(uint16_t* query, int lane, Query& operand) {
  const int matrix = lane / kGroupRows;  // heads 2p, 2p + 1 of the low eight dims, then of the high ones
  QSA_SCORE_UNROLL
  for (int pair = 0; pair < kHeadPairs; ++pair) {
    QSA_SCORE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      ldmatrix_x4(operand[pair][step],
                  chunk_at(query, lane % kGroupRows, 2 * pair + matrix % 2, 2 * step + matrix / 2));
    }
  }
}

// Brings tiles begin .. end - 1, each into the next stage as soon as both warpgroups have left it.
__device__ __forceinline__ void produce(const CUtensorMap* key_map, Shared* shared, Barriers* barriers,
                                        int begin, int end) {
  for (int tile = begin; tile < end; ++tile) {
    const int turn = tile - begin;
    const int stage = turn % kStages;
    hopper::barrier_wait(&barriers->empty[stage], (turn / kStages + 1) % 2);
    hopper::barrier_arrive_expecting(&barriers->full[stage], kStageBytes);
    for (int box = 0; box < kBoxes; ++box) {
      hopper::copy_box(shared->keys[stage] + box * kBoxBytes, key_map, box * kBoxDims, tile * kTileKeys,
                       &barriers->full[stage]);
    }
  }
}

// The dots of a half by left operand: column 8j + 2t + e of rows g and g + 8 are 4j + e and 4j + 2 + e.
using Dots = float[kHeadPairs][kHalfDots];

__device__ __forceinline__ float score_of(const Dots& dots, int j, int e) {
  return whole_score(half_score(dots[0][4 * j + e], dots[0][4 * j + 2 + e]),
                     half_score(dots[1][4 * j + e], dots[1][4 * j + 2 + e]));
}

// Issues the multiplications of a half by one left operand. `stage` is the shared memory of its tile.
__device__ __forceinline__ void issue(const uint32_t (&query)[kSteps][4], const unsigned char* stage,
                                      int half, float (&dots)[kHalfDots]) {
  const uint64_t keys = hopper::operand_descriptor(shared_address(stage));
  QSA_SCORE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    // In bytes; the descriptor counts in 16.
    const int offset = half * kHalfKeys * kBoxDims * 2 + step / 4 * kBoxBytes + step % 4 * 32;
    hopper::multiply_step(dots, query[step], keys + offset / 16, step != 0);
  }
}

// What a lane stores of its row: the columns from 2t on, of eight.
struct LaneOutput {
  float* scores;
  int live;
  bool is_aligned;  // the row begins on 8 bytes
};

// [score.untouched-tail] `live` of the row's columns are written.
__device__ __forceinline__ void store_half(const Dots& dots, const LaneOutput& output, int block) {
  constexpr int kColumnGroups = kHalfKeys / 8;
  float* scores = output.scores + block;
  if (output.is_aligned && block + kHalfKeys <= output.live) {
    QSA_SCORE_UNROLL
    for (int j = 0; j < kColumnGroups; ++j) {
      __stcs(reinterpret_cast<float2*>(scores + 8 * j),
             make_float2(score_of(dots, j, 0), score_of(dots, j, 1)));
    }
    return;
  }
  QSA_SCORE_UNROLL
  for (int j = 0; j < kColumnGroups; ++j) {
    QSA_SCORE_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (block + 8 * j + e < output.live) {
        scores[8 * j + e] = score_of(dots, j, e);
      }
    }
  }
}

// Adds up and stores a half whose multiplications are complete.
__device__ __forceinline__ void finish_half(Dots& dots, const LaneOutput& output, int block) {
  QSA_SCORE_UNROLL
  for (int pair = 0; pair < kHeadPairs; ++pair) {
    hopper::pin(dots[pair]);
  }
  store_half(dots, output, block);
}

// The stages as a warpgroup goes through them.
struct Stages {
  Shared* shared;
  Barriers* barriers;
  int begin;
  int lane;

  __device__ __forceinline__ const unsigned char* wait(int tile) const {
    const int turn = tile - begin;
    hopper::barrier_wait(&barriers->full[turn % kStages], turn / kStages % 2);
    return shared->keys[turn % kStages];
  }
  __device__ __forceinline__ void leave(int tile) const {
    if (lane == 0) {
      hopper::barrier_arrive(&barriers->empty[(tile - begin) % kStages]);
    }
  }
};

// The first warpgroup begins, then each waits for the other's multiplications to be issued: in step, both
// would add up at once and leave the tensor cores idle.
__device__ __forceinline__ void wait_for_turn(Barriers* barriers, int group, int turn) {
  hopper::barrier_wait(&barriers->turn[group], (turn + 1 + group) % 2);
}

__device__ __forceinline__ void give_turn(Barriers* barriers, int group, int lane) {
  if (lane == 0) {
    hopper::barrier_arrive(&barriers->turn[1 - group]);
  }
}

// One warpgroup's share. `group` is its index, `group_most` is how many blocks any of its rows sees.
__device__ __forceinline__ void consume(const ScoreArguments& arguments, const LaneRow& lane_row,
                                        const WeightWords& weight_words, const GroupWords& words,
                                        Shared* shared, Barriers* barriers, int group, int group_most,
                                        int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  Query query;
  {
    const Weights weights = one_plus(weight_words);
    uint16_t* rows = shared->query[warp];
    QSA_SCORE_UNROLL
    for (int i = 0; i < kGroupRows; ++i) {
      store_chunks(build_row(words[i], weights, arguments.eps), rows, i, lane);
    }
    __syncwarp();  // the rows are built by other lanes than read them
    read_query(rows, lane, query);
  }
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + warp * kGroupRows + lane / kQuadLanes;
  const int column = lane % kQuadLanes * 2;
  float* row_scores = arguments.scores + row * arguments.score_cols;
  // Blocks count from the lane's first column.
  const LaneOutput output{row_scores + column, lane_row.live - column,
                          reinterpret_cast<uintptr_t>(row_scores) % sizeof(float2) == 0};

  const Stages stages{shared, barriers, begin, lane};
  const int live_end = min(end, (group_most + kTileKeys - 1) / kTileKeys);
  for (int tile = begin; tile < live_end; ++tile) {
    const int block = tile * kTileKeys;
    Dots first;
    Dots second;
    const unsigned char* stage = stages.wait(tile);
    wait_for_turn(barriers, group, tile - begin);
    hopper::multiply_fence();
    issue(query[0], stage, 0, first[0]);
    issue(query[1], stage, 0, first[1]);
    hopper::multiply_commit();
    hopper::multiply_fence();
    issue(query[0], stage, 1, second[0]);
    // Before the last quarter, so that the other warpgroup's multiplications follow without a gap.
    give_turn(barriers, group, lane);
    issue(query[1], stage, 1, second[1]);
    hopper::multiply_commit();
    hopper::multiply_wait<1>();
    finish_half(first, output, block);
    hopper::multiply_wait<0>();
    stages.leave(tile);
    finish_half(second, output, block + kHalfKeys);
  }
  // The other warpgroup and the producer go on with tiles that no row of this one sees.
  for (int tile = max(begin, live_end); tile < end; ++tile) {
    wait_for_turn(barriers, group, tile - begin);
    give_turn(barriers, group, lane);
    stages.leave(tile);
  }
}

#endif  // QSA_HAS_WGMMA

template <int kUnused>
__global__ void __launch_bounds__(kThreads, 1) score_wgmma_kernel(const __grid_constant__ CUtensorMap key_map,
                                                                  ScoreArguments arguments, int range_tiles) {
#if QSA_HAS_WGMMA
  QSA_DYNAMIC_SHARED(unsigned char, dynamic);
  QSA_SHARED(Barriers, barriers, 1);
  QSA_SHARED(int, warp_most, kConsumerWarps);
  const unsigned misalignment = shared_address(dynamic) % kStageAlignment;
  Shared* shared = reinterpret_cast<Shared*>(dynamic + (kStageAlignment - misalignment) % kStageAlignment);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;

  LaneRow lane_row = {};
  if (warp < kConsumerWarps) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + warp * kGroupRows + lane / kQuadLanes;
    lane_row = load_lane_row(arguments, row);
    const int most = __reduce_max_sync(kFullWarp, lane_row.live);
    if (lane == 0) {
      warp_most[warp] = most;
    }
  } else if (threadIdx.x == kConsumers * kGroupThreads) {
    hopper::prefetch_map(&key_map);
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::barrier_init(&barriers->full[stage], 1);
      hopper::barrier_init(&barriers->empty[stage], kConsumerWarps);
    }
    for (int group = 0; group < kConsumers; ++group) {
      hopper::barrier_init(&barriers->turn[group], kWarpsAGroup);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();  // the barriers are ready, and every warp's length is there

  int group_most[kConsumers] = {};
  QSA_SCORE_UNROLL
  for (int i = 0; i < kConsumerWarps; ++i) {
    group_most[i / kWarpsAGroup] = max(group_most[i / kWarpsAGroup], warp_most[i]);
  }
  // The CTA leaves its range together: what its rows see bounds it, not the capacity.
  const int tiles = (max(group_most[0], group_most[1]) + kTileKeys - 1) / kTileKeys;
  const int begin = static_cast<int>(blockIdx.y) * range_tiles;
  const int end = min(begin + range_tiles, tiles);
  if (begin >= end) {
    return;
  }
  WeightWords weight_words;
  GroupWords words;
  if (warp < kConsumerWarps) {
    weight_words = load_weights(arguments, lane);
    QSA_SCORE_UNROLL
    for (int i = 0; i < kGroupRows; ++i) {
      words[i] = load_group_row(arguments, lane_row, i, lane);
    }
  }
  // The loads of the query are issued before those of the keys: behind four stages of them, 128 KB, building
  // the query took 4.5 us.
  __syncthreads();
  if (warp >= kConsumerWarps) {
    hopper::give_registers<kProducerRegisters>();
    if (threadIdx.x == kConsumers * kGroupThreads) {
      produce(&key_map, shared, barriers, begin, end);
    }
  } else {
    hopper::take_registers<kConsumerRegisters>();
    const int group = warp / kWarpsAGroup;
    consume(arguments, lane_row, weight_words, words, shared, barriers, group,
            group == 0 ? group_most[0] : group_most[1], begin, end);
  }
#endif
}

// Describes the keys to the copy engine. A tile may reach past the keys that any row sees, but not past the
// capacity: what lies there is read as zero, and no score of it is written.
inline bool describe_keys(const ScoreArguments& arguments, int64_t capacity, CUtensorMap* map) {
  static void* const entry = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr;
  }();
  if (entry == nullptr) {
    return false;
  }
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  const cuuint64_t extents[] = {kHeadDim, static_cast<cuuint64_t>(capacity < 1 ? 1 : capacity)};
  const cuuint64_t strides[] = {kHeadDim * sizeof(uint16_t)};
  const cuuint32_t box[] = {kBoxDims, kTileKeys};
  const cuuint32_t steps[] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t*>(arguments.block_keys),
                extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Whether this device and this build have the body: compiled for any other architecture, plain sm_90 too, the
// kernel is empty, and shows it by having no shared memory.
inline bool is_available() {
  if (compute_capability() != 90) {
    return false;
  }
  cudaFuncAttributes attributes = {};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, score_wgmma_kernel<0>);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
  }
  return error == cudaSuccess && attributes.sharedSizeBytes != 0;
}

inline int32_t launch(const ScoreArguments& arguments, void* stream) {
  constexpr int64_t kStartTiles = 3;
  const int64_t capacity = score_mma::capacity_of(arguments);
  CUtensorMap key_map;
  if (!describe_keys(arguments, capacity, &key_map)) {
    return QSA_LAUNCH_FAILED;
  }
  const int64_t row_tiles = (arguments.row_count + kRows - 1) / kRows;
  const int64_t capacity_tiles = (capacity + kTileKeys - 1) / kTileKeys;
  // One range at least: it checks the rows even where no block can be visible.
  const int64_t key_tiles = capacity_tiles < 1 ? 1 : capacity_tiles;
  const int64_t range = score_mma::range_of(row_tiles, key_tiles, multiprocessor_count(), kStartTiles);
  const dim3 grid(static_cast<unsigned>(row_tiles), static_cast<unsigned>((key_tiles + range - 1) / range));
  constexpr auto* kernel = score_wgmma_kernel<0>;
  return QSA_LAUNCH(kernel, grid, dim3(kThreads), kSharedBytes, stream, key_map, arguments,
                    static_cast<int>(range));
}

}  // namespace score_wgmma

#endif  // !QSA_HOST

namespace score_body {

struct Wgmma {
  // Whether it is there, and faster than score_mma.cuh for so many rows.
  static bool serves(const ScoreArguments& arguments) {
#if QSA_HOST
    (void)arguments;
    return false;
#else
    return arguments.row_count >= score_wgmma::kLeastRows && score_wgmma::is_available();
#endif
  }

  // Only where it serves.
  static int32_t launch(const ScoreArguments& arguments, void* stream) {
#if QSA_HOST
    (void)arguments;
    (void)stream;
    return QSA_UNSUPPORTED;
#else
    return score_wgmma::launch(arguments, stream);
#endif
  }
};

}  // namespace score_body
}  // namespace qsa
