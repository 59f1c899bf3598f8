// Few rows against many keys on the tensor cores (mma.sync): what a step of decoding asks for.
//
// Bound by reading the keys, so they go from global memory straight into the registers of the multiplication,
// each once, with as many loads in flight as a multiprocessor holds: on 132 multiprocessors all of 65,536
// keys at once. A warp takes 16 keys as two right operands of m16n8k16; the 16 rows of the left operand are
// the four heads of four rows of the query. With one row three quarters of the multiplication are wasted, and
// it is still not what a launch waits for.
//
// Lane 4g + t loads, of keys g and g + 8, the 16-byte chunks t, t + 4, t + 8 and t + 12. Which dims a k-step
// multiplies is free as long as both sides agree: chunk by chunk is what makes the loads 16 bytes wide and
// their registers operands as they are.
//
// Order of a dot product: the 8 k-steps, chunk by chunk, on the tensor cores, from zero. It does not depend
// on CTAs or rows. Against float64 the worst score of 4 million erred by 0.22 of the gate's bound; four
// results of two k-steps each, added in f32, by 0.15, for 0.2 us more; the scalar body by 0.14.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/score_mma_query.cuh"
#include "qsa/score_row.cuh"

namespace qsa {
namespace score_decode {

using namespace score_query;

constexpr int kOperandKeys = 8;
constexpr int kOperands = 2;
constexpr int kTileKeys = kOperandKeys * kOperands;  // keys of a warp
constexpr int kTileRows = 4;                         // rows of the query in a left operand
constexpr int kChunks = 4;                           // chunks of a key a lane

// A launch shape: threads a CTA, and the most rows that read the keys together.
template <int kThreadCount, int kRowCount>
struct Shape {
  static constexpr int kThreads = kThreadCount;
  static constexpr int kRows = kRowCount;
  static constexpr int kWarps = kThreads / kWarpLanes;
  static constexpr int kRowTiles = (kRows + kTileRows - 1) / kTileRows;
  static constexpr int kBuilds = (kRows * kQueryHeads + kWarps - 1) / kWarps;  // heads a warp builds
  static constexpr int kCtaKeys = kWarps * kTileKeys;
  // 64 registers hold the 32 of the keys and the rest of one row tile, 128 those of two.
  static constexpr int kResidentThreads = kRowTiles == 1 ? 1024 : 512;
  static constexpr int kResidentCtas = kResidentThreads / kThreads;
};

// us on an H200, 256 against 512 threads: 2.4 and 2.8 at 2,048 keys and one row, 2.8 and 2.9 at 16,384, 4.5
// and 4.3 at 65,536; 6.0 and 5.0 at 65,536 and four rows, where every warp of the smaller CTA has to build
// two heads.
using SmallShape = Shape<256, 2>;
using LargeShape = Shape<512, 4>;
using ManyRowShape = Shape<512, 8>;
constexpr int64_t kSmallCapacity = 32768;  // blocks

// Keys g and g + 8 of a warp's 16.
using KeyWords = uint4[kOperands][kChunks];

// Loads a key. One at or past `live` may not exist: the last one that does stands in, and its score is not
// written.
__device__ QSA_SCORE_PASS void load_key(const uint16_t* block_keys, int key, int live, int quad_lane,
                                        uint4 (&words)[kChunks]) {
  const int64_t present = min(key, live - 1);
  const uint16_t* first = block_keys + present * kHeadDim + quad_lane * kChunkDims;
  QSA_SCORE_UNROLL
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    words[chunk] = __ldg(reinterpret_cast<const uint4*>(first + chunk * kQuadLanes * kChunkDims));
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

// Lane 4g + t holds heads 2(g % 2) and 2(g % 2) + 1 of row g / 2, for keys 2t and 2t + 1. Lanes g and g ^ 1
// trade halves: the even one ends with the score of key 2t, the odd one with that of key 2t + 1.
__device__ QSA_SCORE_PASS float combine_heads(const float (&dot)[4], bool is_odd) {
  const float even_key = half_score(dot[0], dot[2]);
  const float odd_key = half_score(dot[1], dot[3]);
  const float given = is_odd ? even_key : odd_key;
  const float kept = is_odd ? odd_key : even_key;
  const float taken = __shfl_xor_sync(kFullWarp, given, kQuadLanes);
  // Addition commutes: the order of the halves does not show.
  return whole_score(kept, taken);
}

template <class Launch>
__global__ void __launch_bounds__(Launch::kThreads, Launch::kResidentCtas)
    score_decode_kernel(ScoreArguments arguments) {
  constexpr int kWarps = Launch::kWarps;
  constexpr int kRowTiles = Launch::kRowTiles;
  constexpr int kBuilds = Launch::kBuilds;
  QSA_SHARED(uint4, query, kRowTiles * kTileRows * kRowUnits);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int quad = lane / kQuadLanes;
  const int quad_lane = lane % kQuadLanes;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * Launch::kRows;
  const int64_t rows_left = arguments.row_count - first_row;
  const int rows = rows_left < Launch::kRows ? static_cast<int>(rows_left) : Launch::kRows;

  // Warp w builds heads w, w + kWarps ... Their positions are loaded beside the lengths, not after them:
  // either load waits 600 clocks.
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
  // The whole CTA leaves together. The first one stays: it checks the positions, whatever the rows see.
  if (static_cast<int>(blockIdx.x) * Launch::kCtaKeys >= most && blockIdx.x != 0) {
    return;
  }

  HeadWords words[kBuilds];
  QSA_SCORE_UNROLL
  for (int i = 0; i < kBuilds; ++i) {
    words[i] = HeadWords{};
    // [score.zero-visible] a row that sees nothing is a padding row; its position is not looked at.
    if (built_visible_len[i] != 0) {
      require_position(arguments, position[i]);
      words[i] = load_head(arguments, position[i], (warp + i * kWarps) % kQueryHeads, lane);
    }
  }
  // The loads of the query are issued before any of a key. Left to chance they come to stand behind keys: 4.7
  // us instead of 4.3 at 65,536 keys.
  __syncthreads();
  // The first half of a warp's keys goes out before the query is there, the second half after: a warp whose
  // loads find no room waits in the middle of them, and would come late to the next barrier. Warps that build
  // a head come to their keys after it.
  const bool is_builder = warp < rows * kQueryHeads;
  int first_key = (static_cast<int>(blockIdx.x) * kWarps + warp) * kTileKeys;
  const bool has_keys = first_key < most;
  KeyWords keys;
  if (has_keys && !is_builder) {
    load_key(arguments.block_keys, first_key + quad, most, quad_lane, keys[0]);
  }
  QSA_SCORE_UNROLL
  for (int i = 0; i < kBuilds; ++i) {
    const int vector = warp + i * kWarps;
    if (vector < rows * kQueryHeads) {
      const uint2 packed = build_head(words[i], arguments.eps, lane);
      store_group(packed, query, vector / kQueryHeads, vector % kQueryHeads, lane);
    }
  }
  // [score.query-barrier] heads are built by other warps than read them.
  __syncthreads();
  if (has_keys) {
    if (is_builder) {
      load_key(arguments.block_keys, first_key + quad, most, quad_lane, keys[0]);
    }
    load_key(arguments.block_keys, first_key + quad + kOperandKeys, most, quad_lane, keys[1]);
  }

  // The lane's units of each k-step: of the row and pair that stand in row g of the left operand. A row that
  // is not there is read as the last one, and its scores are not written.
  const uint4* units[kRowTiles][2];
  QSA_SCORE_UNROLL
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const int row = min(tile * kTileRows + quad / 2, rows - 1);
    units[tile][0] = query + unit_place(row, quad % 2, 2 * quad_lane);
    units[tile][1] = query + unit_place(row, quad % 2, 2 * quad_lane + 1);
  }
  const bool is_odd = quad % 2 != 0;
  const int stride = static_cast<int>(gridDim.x) * Launch::kCtaKeys;
  // The bound is the warp's, not the lane's: all 32 lanes take part in each multiplication.
  for (; first_key < most; first_key += stride) {
    float dot[kRowTiles][kOperands][4] = {};
    QSA_SCORE_UNROLL
    for (int operand = 0; operand < kOperands; ++operand) {
      QSA_SCORE_UNROLL
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        QSA_SCORE_UNROLL
        for (int tile = 0; tile < kRowTiles; ++tile) {
          const int place = chunk * kQuadLanes * kChunkDims / kGroupDims;
          const uint4 left[2] = {units[tile][0][place], units[tile][1][place]};
          multiply(dot[tile][operand], left, keys[operand][chunk]);
        }
      }
    }
    if (first_key + stride < most) {
      const int next_key = first_key + stride + quad;
      load_key(arguments.block_keys, next_key, most, quad_lane, keys[0]);
      load_key(arguments.block_keys, next_key + kOperandKeys, most, quad_lane, keys[1]);
    }
    QSA_SCORE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      float* row_scores = arguments.scores + (first_row + tile * kTileRows + quad / 2) * arguments.score_cols;
      QSA_SCORE_UNROLL
      for (int operand = 0; operand < kOperands; ++operand) {
        const float score = combine_heads(dot[tile][operand], is_odd);
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
template <class Launch>
int32_t launch_shape(const ScoreArguments& arguments, int64_t capacity, void* stream) {
  const int64_t groups = (arguments.row_count + Launch::kRows - 1) / Launch::kRows;
  const int64_t resident = static_cast<int64_t>(multiprocessor_count()) * Launch::kResidentCtas;
  const int64_t wanted = (resident + groups - 1) / groups;
  const int64_t needed = (capacity + Launch::kCtaKeys - 1) / Launch::kCtaKeys;
  const int64_t splits = needed < wanted ? needed : wanted;
  const dim3 grid(static_cast<unsigned>(splits < 1 ? 1 : splits), static_cast<unsigned>(groups));
  constexpr auto* kernel = score_decode_kernel<Launch>;
  return QSA_LAUNCH(kernel, grid, dim3(Launch::kThreads), 0, stream, arguments);
}

// `capacity` is how many blocks a row can see at most.
inline int32_t launch(const ScoreArguments& arguments, int64_t capacity, void* stream) {
  if (arguments.row_count <= SmallShape::kRows && capacity <= kSmallCapacity) {
    return launch_shape<SmallShape>(arguments, capacity, stream);
  }
  return arguments.row_count <= LargeShape::kRows ? launch_shape<LargeShape>(arguments, capacity, stream)
                                                  : launch_shape<ManyRowShape>(arguments, capacity, stream);
}

}  // namespace score_decode
}  // namespace qsa
