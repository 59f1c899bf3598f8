// What a launch of dsa_index_scores is given, and what it makes of a query row's place.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "dsa/pool_lists.cuh"

namespace qsa {
namespace dsa {

constexpr int kHeads = 32;
constexpr int kDims = 128;
constexpr float kMaskedScore = -3.402823466e+38f;  // the least f32

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct ScoreArguments {
  const uint16_t* q;
  const float* weights;
  const uint16_t* pool_keys;
  const int32_t* q_pos;
  const int32_t* geometry;
  float* scores;
  int32_t* visible_pools;
  PoolLists lists;
  int64_t score_cols;
  int32_t query_rows;
  int32_t tokens;
};

// How many pools the `row`-th row of every sequence sees in this one.
__device__ __forceinline__ int32_t visible_of(const ScoreArguments& arguments, int64_t sequence, int32_t row,
                                              int32_t live) {
  const int32_t position = arguments.geometry != nullptr ? live - 1 : __ldg(arguments.q_pos + row);
  // Below zero only where nothing is live: the row then sees nothing.
  if (arguments.geometry == nullptr && (position < 0 || position >= live)) {
    QSA_TRAP("a query row stands outside 0 .. live tokens - 1");
  }
  return arguments.lists.pools_seen(sequence, position);
}

// [dsa.row-stride] the capacity's, whatever is live. `number` counts the rows of all sequences.
__device__ __forceinline__ float* scores_of(const ScoreArguments& arguments, int64_t number) {
  return arguments.scores + number * arguments.score_cols;
}

__device__ __forceinline__ const uint16_t* keys_of(const ScoreArguments& arguments, int64_t sequence) {
  return arguments.pool_keys + sequence * arguments.lists.pool_capacity * kDims;
}

}  // namespace dsa
}  // namespace qsa
