// Many rows against many keys on the tensor cores (mma.sync): a chunk of prefill on compute capability 8 and
// up.
//
// A CTA takes 128 rows and a range of keys. A warp keeps the query of 16 rows in registers for the whole
// range (64 rows of m16n8k16, four tiles: two groups of 8 rows by two pairs of heads); the keys pass through
// shared memory, 64 a stage, and every warp reads each of them once. Row g of a tile is one head of query row
// g, row g + 8 the next head, so that the four heads of a row meet in one lane.
//
// Lane 4g + t multiplies the 16-byte chunks t, t + 4, t + 8 and t + 12 of query and key (see
// score_mma_decode.cuh for why the dims are free), and column 2t + e of the key tiles j = 0, 1 is key 4t + 2j
// + e of 16: the lane ends with four neighbouring scores of a row, one 16-byte store, and the quad fills 64
// bytes.
//
// Order of a dot product: the 8 k-steps of a chunk after another on the tensor cores, from zero. It does not
// depend on CTAs or rows.
//
// 2,048 rows by 16,384 blocks on an H200: 96.7 us, 9.3 clocks a multiplication where the unit needs 8,
// with 8.5 us of it spent on building the query; that part has fewer instructions since, and was not measured
// again.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/score_mma_query.cuh"
#include "qsa/score_row.cuh"

namespace qsa {
namespace score_prefill {

using namespace score_query;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kRowGroups = 2;
constexpr int kWarpRows = kGroupRows * kRowGroups;
constexpr int kRows = kWarps * kWarpRows;          // 128 a CTA
constexpr int kChunks = 4;                         // chunks of a vector a lane
constexpr int kSteps = 2 * kChunks;                // k-steps of 16 dims
constexpr int kKeyChunks = kHeadDim / kChunkDims;  // 16
constexpr int kKeyGroup = 16;                      // keys of two column tiles
constexpr int kTileKeys = 64;
constexpr int kStages = 3;
constexpr int kStageDims = kTileKeys * kHeadDim;
constexpr int kLoads = kTileKeys * kKeyChunks / kThreads;

// 96 KB, within the 99 KB of compute capability 8.6: two stages of keys, and 64 KB in which the query is
// built, a group of rows at a time. Once it is in registers the third stage takes its place.
struct Shared {
  uint16_t keys[kStages - 1][kStageDims];
  uint4 query[kWarps][kGroupRows * kRowUnits];
  int warp_most[kWarps];
};
static_assert(sizeof(uint16_t) * kStageDims <= sizeof(uint4) * kWarps * kGroupRows * kRowUnits,
              "the third stage fits where the query was built");

__device__ QSA_SCORE_PASS uint16_t* stage_at(Shared* shared, int stage) {
  return reinterpret_cast<uint16_t*>(shared) + stage * kStageDims;
}

// The left operand of a warp, by group of rows, pair of heads and k-step.
using Query = uint32_t[kRowGroups][kHeadPairs][kSteps][4];

// Rows whose loads are in flight while as many are built.
constexpr int kBatchRows = 2;
using Batch = RowWords[kBatchRows];

// Loads rows first .. first + kBatchRows - 1 of a group.
__device__ QSA_SCORE_PASS void load_batch(const ScoreArguments& arguments, const LaneRow& lane_row, int first,
                                          int lane, Batch& words) {
  QSA_SCORE_UNROLL
  for (int i = 0; i < kBatchRows; ++i) {
    words[i] = load_group_row(arguments, lane_row, first + i, lane);
  }
}

// Builds a group as units. `next` holds its first batch, and at the end that of the group that follows.
__device__ QSA_SCORE_PASS void build_group(const ScoreArguments& arguments, const Weights& weights,
                                           const LaneRow& lane_row, const LaneRow& following, uint4* units,
                                           int lane, Batch& next) {
  // Rolled: run once, straight-line code waits for instructions more than it computes.
  QSA_SCORE_ROLLED
  for (int first = 0; first < kGroupRows; first += kBatchRows) {
    Batch words;
    QSA_SCORE_UNROLL
    for (int i = 0; i < kBatchRows; ++i) {
      words[i] = next[i];
    }
    const bool is_last = first + kBatchRows == kGroupRows;
    const LaneRow source{is_last ? following.visible : lane_row.visible, 0,
                         is_last ? following.position : lane_row.position};
    load_batch(arguments, source, is_last ? 0 : first + kBatchRows, lane, next);
    QSA_SCORE_UNROLL
    for (int i = 0; i < kBatchRows; ++i) {
      store_units(build_row(words[i], weights, arguments.eps), units, first + i, lane);
    }
  }
}

// Row g of `query` for the lane, all heads, as the left operand of one group of rows.
__device__ QSA_SCORE_PASS void read_group(const uint4* query, uint32_t (&operand)[kHeadPairs][kSteps][4],
                                          int quad, int quad_lane) {
  QSA_SCORE_UNROLL
  for (int pair = 0; pair < kHeadPairs; ++pair) {
    QSA_SCORE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int group = step / 2 * kQuadLanes * 2 + quad_lane * 2 + step % 2;
      const uint4 unit = query[unit_place(quad, pair, group)];
      operand[pair][step][0] = unit.x;
      operand[pair][step][1] = unit.y;
      operand[pair][step][2] = unit.z;
      operand[pair][step][3] = unit.w;
    }
  }
}

// A stage holds a key a row. Chunks trade halves of 128 bytes in odd rows: the two keys that lanes read
// together then lie in different banks.
__device__ QSA_SCORE_PASS uint16_t* key_chunk(uint16_t* stage, int key, int chunk) {
  return stage + key * kHeadDim + (chunk ^ (key & 1) << 2) * kChunkDims;
}

// Starts the copy of a tile of keys. Keys at or past `most` may not exist and read as zero.
__device__ QSA_SCORE_PASS void copy_tile(const uint16_t* block_keys, int first_key, int most,
                                         uint16_t* stage) {
  QSA_SCORE_UNROLL
  for (int load = 0; load < kLoads; ++load) {
    const int index = load * kThreads + static_cast<int>(threadIdx.x);
    const int key = index / kKeyChunks;
    const int chunk = index % kKeyChunks;
    uint16_t* place = key_chunk(stage, key, chunk);
    if (first_key + key < most) {
      const uint16_t* source =
          block_keys + static_cast<int64_t>(first_key + key) * kHeadDim + chunk * kChunkDims;
      async_copy16(place, source);
    } else {
      *reinterpret_cast<uint4*>(place) = make_uint4(0, 0, 0, 0);
    }
  }
}

using Dots = float[kRowGroups][kHeadPairs][2][4];  // by group of rows, pair of heads and column tile

// The dots of the warp's rows with 16 keys of a stage.
__device__ QSA_SCORE_PASS void multiply(const Query& query, uint16_t* keys, int quad, int quad_lane,
                                        Dots& dots) {
  QSA_SCORE_UNROLL
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    uint32_t right[2][4];
    QSA_SCORE_UNROLL
    for (int tile = 0; tile < 2; ++tile) {
      const int key = quad / 2 * 4 + tile * 2 + quad % 2;
      const uint16_t* place = key_chunk(keys, key, chunk * kQuadLanes + quad_lane);
      const uint4 words = *reinterpret_cast<const uint4*>(place);
      right[tile][0] = words.x;
      right[tile][1] = words.y;
      right[tile][2] = words.z;
      right[tile][3] = words.w;
    }
    // The eight tiles in turn: a multiplication waits for the one eight before it.
    QSA_SCORE_UNROLL
    for (int half = 0; half < 2; ++half) {
      QSA_SCORE_UNROLL
      for (int group = 0; group < kRowGroups; ++group) {
        QSA_SCORE_UNROLL
        for (int pair = 0; pair < kHeadPairs; ++pair) {
          QSA_SCORE_UNROLL
          for (int tile = 0; tile < 2; ++tile) {
            float (&dot)[4] = dots[group][pair][tile];
            mma_m16n8k16_bf16(dot, query[group][pair][2 * chunk + half], right[tile] + 2 * half, dot);
          }
        }
      }
    }
  }
}

// [score.untouched-tail] `live` of the row's columns are written. `is_aligned` says that the row's first
// score lies on 16 bytes.
__device__ QSA_SCORE_PASS void store_scores(float* row_scores, const float (&score)[4], int block, int live,
                                            bool is_aligned) {
  if (is_aligned && block + 4 <= live) {
    *reinterpret_cast<float4*>(row_scores + block) = make_float4(score[0], score[1], score[2], score[3]);
    return;
  }
  QSA_SCORE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (block + i < live) {
      row_scores[block + i] = score[i];
    }
  }
}

template <int kUnused>
__global__ void __launch_bounds__(kThreads, 1)
    score_prefill_kernel(ScoreArguments arguments, int range_tiles) {
  QSA_DYNAMIC_SHARED(Shared, shared);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows + warp * kWarpRows;

  LaneRow rows[kRowGroups];  // row g of each group
  int warp_most = 0;
  QSA_SCORE_UNROLL
  for (int group = 0; group < kRowGroups; ++group) {
    rows[group] = load_lane_row(arguments, first_row + group * kGroupRows + quad);
    warp_most = max(warp_most, rows[group].live);
  }
  warp_most = __reduce_max_sync(kFullWarp, warp_most);
  if (lane == 0) {
    shared->warp_most[warp] = warp_most;
  }
  __syncthreads();  // every warp's length is there
  int most = 0;
  QSA_SCORE_UNROLL
  for (int i = 0; i < kWarps; ++i) {
    most = max(most, shared->warp_most[i]);
  }
  // The CTA leaves its range together: what its rows see bounds it, not the capacity.
  const int tiles = (most + kTileKeys - 1) / kTileKeys;
  const int begin = static_cast<int>(blockIdx.y) * range_tiles;
  const int end = min(begin + range_tiles, tiles);
  if (begin >= end) {
    return;
  }

  QSA_SCORE_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (begin + stage < end) {
      copy_tile(arguments.block_keys, (begin + stage) * kTileKeys, most, stage_at(shared, stage));
    }
    async_copy_commit();
  }

  // The first keys are on their way while the query is built. A warp builds what it reads.
  Query query;
  {
    const Weights weights = one_plus(load_weights(arguments, lane));
    uint4* units = shared->query[warp];
    Batch next;
    load_batch(arguments, rows[0], 0, lane, next);
    // Unrolled, it must be: ptxas 13.0 gives both groups the same registers when a loop fills them in turn.
    QSA_SCORE_UNROLL
    for (int group = 0; group < kRowGroups; ++group) {
      const LaneRow following = group + 1 < kRowGroups ? rows[group + 1] : LaneRow{};
      build_group(arguments, weights, rows[group], following, units, lane, next);
      __syncwarp();  // the rows are built by other lanes than read them
      read_group(units, query[group], quad, quad_lane);
      __syncwarp();  // the next group overwrites them
    }
  }

  float* row_scores[kRowGroups];
  bool is_aligned[kRowGroups];
  QSA_SCORE_UNROLL
  for (int group = 0; group < kRowGroups; ++group) {
    row_scores[group] = arguments.scores + (first_row + group * kGroupRows + quad) * arguments.score_cols;
    is_aligned[group] = reinterpret_cast<uintptr_t>(row_scores[group]) % 16 == 0;
  }

  for (int tile = begin; tile < end; ++tile) {
    async_copy_wait<kStages - 2>();
    // This tile has arrived for every thread; the stage of the tile before, or the query in its place, has
    // been read by all.
    __syncthreads();
    const int ahead = tile + kStages - 1;
    if (ahead < end) {
      copy_tile(arguments.block_keys, ahead * kTileKeys, most, stage_at(shared, (ahead - begin) % kStages));
    }
    async_copy_commit();
    uint16_t* stage = stage_at(shared, (tile - begin) % kStages);
    QSA_SCORE_UNROLL
    for (int first = 0; first < kTileKeys; first += kKeyGroup) {
      const int block = tile * kTileKeys + first;
      if (block >= warp_most) {
        continue;
      }
      Dots dots = {};
      multiply(query, stage + first * kHeadDim, quad, quad_lane, dots);
      QSA_SCORE_UNROLL
      for (int group = 0; group < kRowGroups; ++group) {
        float score[4];
        QSA_SCORE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float (&front)[4] = dots[group][0][i / 2];
          const float (&back)[4] = dots[group][1][i / 2];
          score[i] = whole_score(half_score(front[i % 2], front[2 + i % 2]),
                                 half_score(back[i % 2], back[2 + i % 2]));
        }
        store_scores(row_scores[group], score, block + 4 * quad_lane, rows[group].live, is_aligned[group]);
      }
    }
  }
}

}  // namespace score_prefill
}  // namespace qsa
