// Few rows against many keys on the tensor cores (mma.sync): what a step of decoding asks for.
//
// Bound by reading the keys, so they go from global memory straight into the registers of the multiplication,
// each once, with as many loads in flight as a multiprocessor holds. A warp takes 16 keys as two right operands
// of m16n8k16; the 16 rows of the left operand are the four heads of four rows of the query. With one row three
// quarters of the multiplication are wasted, and it is still not what a launch waits for.
//
// Lane 4g + t loads, of keys g and g + 8, the 16-byte chunks t, t + 4, t + 8 and t + 12. Which dims a k-step
// multiplies is free as long as both sides agree: chunk by chunk is what makes the loads 16 bytes wide and their
// registers operands as they are.
//
// Order of a dot product: two k-steps (32 dims: chunks 4c .. 4c+3) on the tensor cores, from zero; the four
// results are added in f32. It does not depend on CTAs or rows.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/score_mma_query.cuh"
#include "qsa/score_row.cuh"

#ifndef QSA_SCORE_MMA_THREADS
#define QSA_SCORE_MMA_THREADS 512
#endif
#ifndef QSA_ORDER
#define QSA_ORDER 0
#endif
#ifndef QSA_SCORE_MMA_CHAIN
#define QSA_SCORE_MMA_CHAIN 8
#endif

namespace qsa {
namespace score_decode {

using namespace score_query;

constexpr int kThreads = QSA_SCORE_MMA_THREADS;
static_assert(kThreads % kWarpLanes == 0 && kThreads >= 128 && kThreads <= 1024,
              "QSA_SCORE_MMA_THREADS is a whole number of warps, 128 to 1024");
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kOperandKeys = 8;
constexpr int kOperands = 2;
constexpr int kTileKeys = kOperandKeys * kOperands;  // keys of a warp
constexpr int kTileRows = 4;                         // rows of the query in a left operand
constexpr int kChunks = 4;                           // chunks of a key a lane
constexpr int kChain = QSA_SCORE_MMA_CHAIN;          // k-steps added up by the tensor cores
constexpr int kParts = 2 * kChunks / kChain;
static_assert(kChain == 2 || kChain == 4 || kChain == 8, "QSA_SCORE_MMA_CHAIN is 2, 4 or 8");

// Threads of a multiprocessor: 64 registers a thread hold the 32 of the keys and the rest of one row tile, so
// that all of 65,536 keys are in flight on 132 multiprocessors at once.
constexpr int resident_threads(int row_tiles) { return row_tiles == 1 ? 1024 : 512; }
constexpr int resident_ctas(int row_tiles) {
  return kThreads < resident_threads(row_tiles) ? resident_threads(row_tiles) / kThreads : 1;
}

struct KeyWords {
  uint4 chunk[kOperands][kChunks];
};

// Loads keys `key` and `key` + 8. Keys at or past `live` may not exist: the last one that does stands in, and its
// scores are not written.
__device__ QSA_SCORE_PASS void load_keys(const uint16_t* block_keys, int key, int live, int quad_lane,
                                         KeyWords& keys) {
  QSA_SCORE_UNROLL
  for (int operand = 0; operand < kOperands; ++operand) {
    const int64_t present = min(key + operand * kOperandKeys, live - 1);
    const uint16_t* first = block_keys + present * kHeadDim + quad_lane * kChunkDims;
    QSA_SCORE_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint16_t* place = first + chunk * kQuadLanes * kChunkDims;
      keys.chunk[operand][chunk] = __ldg(reinterpret_cast<const uint4*>(place));
    }
  }
}

// dot += query . key over the 32 dims of a chunk: two k-steps.
__device__ QSA_SCORE_PASS void multiply(float (&dot)[4], const uint4 (&query)[2], uint4 key) {
  const uint32_t left[2][4] = {{query[0].x, query[0].y, query[0].z, query[0].w},
                               {query[1].x, query[1].y, query[1].z, query[1].w}};
  const uint32_t right[2][2] = {{key.x, key.y}, {key.z, key.w}};
  mma_m16n8k16_bf16(dot, left[0], right[0], dot);
  mma_m16n8k16_bf16(dot, left[1], right[1], dot);
}

__device__ QSA_SCORE_PASS void add_part(float (&sum)[4], const float (&part)[4]) {
  QSA_SCORE_UNROLL
  for (int i = 0; i < 4; ++i) {
    sum[i] = __fadd_rn(sum[i], part[i]);
  }
}

// Lane 4g + t holds heads 2(g % 2) and 2(g % 2) + 1 of row g / 2, for keys 2t and 2t + 1. Lanes g and g ^ 1 trade
// halves: the even one ends with the score of key 2t, the odd one with that of key 2t + 1.
__device__ QSA_SCORE_PASS float combine_heads(const float (&dot)[4], bool is_odd) {
  const float even_key = half_score(dot[0], dot[2]);
  const float odd_key = half_score(dot[1], dot[3]);
  const float given = is_odd ? even_key : odd_key;
  const float kept = is_odd ? odd_key : even_key;
  const float taken = __shfl_xor_sync(kFullWarp, given, kQuadLanes);
  // Addition commutes: the order of the halves does not show.
  return whole_score(kept, taken);
}

template <int kRowTiles>
__global__ void __launch_bounds__(kThreads, resident_ctas(kRowTiles))
    score_decode_kernel(ScoreArguments arguments) {
  constexpr int kRows = kTileRows * kRowTiles;
  constexpr int kBuilds = (kRows * kQueryHeads + kWarps - 1) / kWarps;
  QSA_SHARED(uint4, query, kRows* kRowUnits);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  const int64_t rows_left = arguments.row_count - first_row;
  const int rows = rows_left < kRows ? static_cast<int>(rows_left) : kRows;

  // Warp w builds heads w, w + kWarps ... Their positions are loaded beside the lengths, not after them: either
  // load waits 600 clocks.
  int position[kBuilds];
  int built_visible_len[kBuilds];
  QSA_SCORE_UNROLL
  for (int i = 0; i < kBuilds; ++i) {
    const int row = (warp + i * kWarps) / kQueryHeads;
    position[i] = row < rows ? arguments.rows[first_row + row] : 0;
    built_visible_len[i] = row < rows ? arguments.visible_len[first_row + row] : 0;
  }
  int live[kRowTiles];  // blocks seen by the rows whose scores this lane writes
  int most = 0;
  QSA_SCORE_UNROLL
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const int row = tile * kTileRows + quad / 2;
    const int visible_len = row < rows ? arguments.visible_len[first_row + row] : 0;
    require_visible_len(arguments, visible_len);
    live[tile] = visible_len / kRatio;
    most = max(most, live[tile]);
  }
  most = __reduce_max_sync(kFullWarp, most);
  int first_key = (static_cast<int>(blockIdx.x) * kWarps + warp) * kTileKeys;
  // The whole CTA leaves together. The first one stays: it checks the positions, whatever the rows see.
  if (static_cast<int>(blockIdx.x) * kWarps * kTileKeys >= most && blockIdx.x != 0) {
    return;
  }

  // The loads of the query go before those of the keys: behind 128 KB of keys they took 2 us longer.
  HeadWords words[kBuilds];
  QSA_SCORE_UNROLL
  for (int i = 0; i < kBuilds; ++i) {
    words[i] = no_head();
    // [score.zero-visible] a row that sees nothing is a padding row; its position is not looked at.
    if (built_visible_len[i] != 0) {
      require_position(arguments, position[i]);
      words[i] = load_head(arguments, position[i], (warp + i * kWarps) % kQueryHeads, lane);
    }
  }
  if (QSA_ORDER) {
    __syncthreads();
  }
  KeyWords keys;
  if (first_key < most) {
    load_keys(arguments.block_keys, first_key + quad, most, quad_lane, keys);
  }
  QSA_SCORE_UNROLL
  for (int i = 0; i < kBuilds; ++i) {
    const int vector = warp + i * kWarps;
    if (vector < rows * kQueryHeads) {
      store_group(build_head(words[i], arguments.eps, lane), query, vector / kQueryHeads, vector % kQueryHeads, lane);
    }
  }
  // [score.query-barrier] heads are built by other warps than read them.
  __syncthreads();

  // The lane's units of each k-step: of the row and pair that stand in row g of the left operand. A row that is
  // not there is read as the last one, and its scores are not written.
  const uint4* units[kRowTiles][2];
  QSA_SCORE_UNROLL
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const int row = min(tile * kTileRows + quad / 2, rows - 1);
    units[tile][0] = query + unit_place(row, quad % 2, 2 * quad_lane);
    units[tile][1] = query + unit_place(row, quad % 2, 2 * quad_lane + 1);
  }
  const bool is_odd = quad % 2 != 0;
  const int stride = static_cast<int>(gridDim.x) * kWarps * kTileKeys;
  // The bound is the warp's, not the lane's: all 32 lanes take part in each multiplication.
  for (; first_key < most; first_key += stride) {
    float dot[kParts][kRowTiles][kOperands][4] = {};
    QSA_SCORE_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      QSA_SCORE_UNROLL
      for (int tile = 0; tile < kRowTiles; ++tile) {
        const int place = chunk * kQuadLanes * kChunkDims / kGroupDims;
        const uint4 left[2] = {units[tile][0][place], units[tile][1][place]};
        QSA_SCORE_UNROLL
        for (int operand = 0; operand < kOperands; ++operand) {
          multiply(dot[2 * chunk / kChain][tile][operand], left, keys.chunk[operand][chunk]);
        }
      }
    }
    if (first_key + stride < most) {
      load_keys(arguments.block_keys, first_key + stride + quad, most, quad_lane, keys);
    }
    QSA_SCORE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      float* row_scores = arguments.scores + (first_row + tile * kTileRows + quad / 2) * arguments.score_cols;
      QSA_SCORE_UNROLL
      for (int operand = 0; operand < kOperands; ++operand) {
        float(&sum)[4] = dot[0][tile][operand];
        QSA_SCORE_UNROLL
        for (int part = 1; part < kParts; ++part) {
          add_part(sum, dot[part][tile][operand]);
        }
        const float score = combine_heads(sum, is_odd);
        const int block = first_key + operand * kOperandKeys + 2 * quad_lane + quad % 2;
        // [score.untouched-tail] only the first visible_len / 4 columns are written.
        if (block < live[tile]) {
          row_scores[block] = score;
        }
      }
    }
    __syncwarp();  // keeps the query in shared memory: in registers it would leave no room for the keys
  }
}

// Key CTAs: as many as are resident at once, never more than the capacity has keys for.
template <int kRowTiles>
int32_t launch(const ScoreArguments& arguments, int64_t capacity, void* stream) {
  constexpr int kRows = kTileRows * kRowTiles;
  constexpr int kCtaKeys = kWarps * kTileKeys;
  const int64_t groups = (arguments.row_count + kRows - 1) / kRows;
  const int64_t resident = static_cast<int64_t>(multiprocessor_count()) * resident_ctas(kRowTiles);
  const int64_t wanted = (resident + groups - 1) / groups;
  const int64_t needed = (capacity + kCtaKeys - 1) / kCtaKeys;
  const int64_t splits = needed < wanted ? needed : wanted;
  const dim3 grid(static_cast<unsigned>(splits < 1 ? 1 : splits), static_cast<unsigned>(groups));
  constexpr auto* kernel = score_decode_kernel<kRowTiles>;
  return QSA_LAUNCH(kernel, grid, dim3(kThreads), 0, stream, arguments);
}

}  // namespace score_decode
}  // namespace qsa
