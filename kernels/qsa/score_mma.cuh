// The tensor-core body of qsa_score for compute capability 8 and up (mma.sync): few rows and many rows.
//
// The query and the keys are bf16 and their products exact, so the tensor cores multiply them unchanged;
// relu, the sum over heads and the scale are f32 on the CUDA cores.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/score_mma_decode.cuh"
#include "qsa/score_mma_prefill.cuh"
#include "qsa/score_row.cuh"

namespace qsa {
namespace score_mma {

// Up to this many rows read the keys again for every 8 rows; more go through tiles of 128 rows.
constexpr int64_t kDecodeRows = 32;
constexpr int64_t kMaximumRanges = 65535;  // gridDim.y

// No row sees a block past either.
inline int64_t capacity_of(const ScoreArguments& arguments) {
  const int64_t blocks = arguments.tokens / kRatio;
  return blocks < arguments.block_capacity ? blocks : arguments.block_capacity;
}

// How many tiles of keys a CTA takes when `slots` CTAs run at once: the range whose waves end first. A CTA's
// start, with the building of its query, costs as much as `start_tiles`.
inline int64_t range_of(int64_t row_tiles, int64_t key_tiles, int64_t slots, int64_t start_tiles) {
  int64_t best = key_tiles;
  int64_t best_cost = INT64_MAX;
  const int64_t most = key_tiles < kMaximumRanges ? key_tiles : kMaximumRanges;
  for (int64_t ranges = 1; ranges <= most; ++ranges) {
    const int64_t tiles = (key_tiles + ranges - 1) / ranges;
    const int64_t waves = (row_tiles * ranges + slots - 1) / slots;
    const int64_t cost = waves * (tiles + start_tiles);
    if (cost < best_cost) {
      best_cost = cost;
      best = tiles;
    }
    // More ranges only add waves, and with them starts.
    if (row_tiles * ranges > 8 * slots) {
      break;
    }
  }
  return best;
}

inline int32_t launch_prefill(const ScoreArguments& arguments, void* stream) {
  using namespace score_prefill;
  constexpr int64_t kStartTiles = 2;
  const int64_t row_tiles = (arguments.row_count + kRows - 1) / kRows;
  const int64_t capacity_tiles = (capacity_of(arguments) + kTileKeys - 1) / kTileKeys;
  // One range at least: it checks the rows even where no block can be visible.
  const int64_t key_tiles = capacity_tiles < 1 ? 1 : capacity_tiles;
  const int64_t slots = multiprocessor_count() < 1 ? 1 : multiprocessor_count();
  const int64_t range = range_of(row_tiles, key_tiles, slots, kStartTiles);
  const dim3 grid(static_cast<unsigned>(row_tiles), static_cast<unsigned>((key_tiles + range - 1) / range));
  constexpr auto* kernel = score_prefill_kernel<0>;
  return QSA_LAUNCH(kernel, grid, dim3(kThreads), sizeof(Shared), stream, arguments, static_cast<int>(range));
}

}  // namespace score_mma

namespace score_body {

struct Mma {
  static bool serves() { return compute_capability() >= 80; }

  static int32_t launch(const ScoreArguments& arguments, void* stream) {
    if (!serves()) {
      return QSA_UNSUPPORTED;
    }
    // By the number of rows alone, which the launch fixes: a captured launch stays right.
    if (arguments.row_count <= score_mma::kDecodeRows) {
      return score_decode::launch(arguments, score_mma::capacity_of(arguments), stream);
    }
    return score_mma::launch_prefill(arguments, stream);
  }
};

}  // namespace score_body
}  // namespace qsa
