// What a launch of select is given, and what a row's position and a CTA's place in the cluster make of it.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_ascending.cuh"
#include "common/select_list.cuh"
#include "qsa/mask_row.cuh"

namespace qsa {

constexpr int64_t kMostBudget = 2048;
static_assert(kMostBudget / kBlockTokens == select::kMostKept, "a row's kept blocks fit the list");

struct SelectInputs {
  const float* scores;
  const int32_t* rows;
  const int32_t* live_rows;
  int32_t row_count;
  int32_t tokens;
  int64_t score_cols;
  uint32_t budget_blocks;
  uint32_t part_blocks;  // blocks of a row that are one CTA's
};

// What a position fixes about its row.
struct RowPlan {
  uint32_t blocks;
  uint32_t keep;
  int32_t tail_begin;
  int32_t tail;         // tokens
  int32_t kept_tokens;  // of the kept blocks and the tail
};

// [select.row-range-traps]
__device__ __forceinline__ void trap_if_out_of_range(int32_t position, int32_t tokens) {
  // Negative ones are above all others here.
  if (static_cast<uint32_t>(position) >= static_cast<uint32_t>(tokens)) {
    QSA_TRAP("a row's position is outside 0 .. tokens - 1");
  }
}

__device__ __forceinline__ RowPlan plan_row(int32_t position, const SelectInputs& inputs) {
  const uint32_t visible = static_cast<uint32_t>(position) + 1u;
  RowPlan plan;
  plan.blocks = visible / kBlockTokens;
  plan.keep = min(inputs.budget_blocks, plan.blocks);
  plan.tail_begin = static_cast<int32_t>(kBlockTokens * plan.blocks);
  plan.tail = static_cast<int32_t>(visible % kBlockTokens);
  plan.kept_tokens = static_cast<int32_t>(kBlockTokens * plan.keep) + plan.tail;
  return plan;
}

// [select.live-rows] Tested before anything else of the row is read.
__device__ __forceinline__ bool is_padding(int64_t row, const SelectInputs& inputs) {
  const int32_t live_rows = inputs.live_rows == nullptr ? inputs.row_count : __ldg(inputs.live_rows);
  return static_cast<int32_t>(row) >= live_rows;
}

// The row's position, on its way before anything else is computed; nothing of a padding row is read.
__device__ __forceinline__ int32_t position_of(int64_t row, bool is_live, const SelectInputs& inputs) {
  return is_live ? __ldg(inputs.rows + row) : 0;
}

// [select.non-finite-traps] for a row within the budget, whose scores nothing else looks at.
// `meanwhile` is done while the scores are on their way.
template <int kThreads, class Meanwhile>
__device__ __forceinline__ void trap_if_not_finite(const float* scores, uint32_t count, Meanwhile meanwhile) {
  constexpr uint32_t kReads = (select::kMostKept + kThreads - 1) / kThreads;
  float score[kReads];
  QSA_UNROLL
  for (uint32_t i = 0; i < kReads; ++i) {
    const uint32_t index = i * kThreads + threadIdx.x;
    score[i] = index < count ? __ldg(scores + index) : 0.0f;
  }
  meanwhile();
  float probe = 0.0f;
  QSA_UNROLL
  for (uint32_t i = 0; i < kReads; ++i) {
    probe = finite_probe(score[i], probe);
  }
  if (met_non_finite(probe)) {
    QSA_TRAP("a score inside the row's prefix is not finite");
  }
}

// [select.all-kept] A row within the budget keeps everything: nothing to compare, only to check.
__device__ __forceinline__ bool is_all_kept(const RowPlan& plan, const SelectInputs& inputs) {
  return plan.blocks <= inputs.budget_blocks;
}

// The part of a row that is one CTA's: the same for every position, so that its mask can be cleared before
// the position is known.
struct Part {
  uint32_t rank;
  uint32_t first_block;
  int32_t first_token;
  int32_t tokens;
};

template <int kCtas>
__device__ __forceinline__ Part part_of(const SelectInputs& inputs) {
  if constexpr (kCtas == 1) {
    return Part{0, 0, 0, inputs.tokens};
  }
  Part part;
  part.rank = cluster_rank();
  part.first_block = part.rank * inputs.part_blocks;
  const int64_t part_tokens = static_cast<int64_t>(kBlockTokens) * inputs.part_blocks;
  const int64_t begin = min(part.rank * part_tokens, static_cast<int64_t>(inputs.tokens));
  const bool is_last = part.rank == kCtas - 1u;
  const int64_t end = is_last ? inputs.tokens : min(begin + part_tokens, static_cast<int64_t>(inputs.tokens));
  part.first_token = static_cast<int32_t>(begin);
  part.tokens = static_cast<int32_t>(end - begin);
  return part;
}

// Blocks of the row in this part.
template <int kCtas>
__device__ __forceinline__ uint32_t blocks_in_part(const RowPlan& plan, const Part& part,
                                                   const SelectInputs& inputs) {
  if (kCtas == 1) {
    return plan.blocks;
  }
  const uint32_t from_here = plan.blocks > part.first_block ? plan.blocks - part.first_block : 0u;
  return min(from_here, inputs.part_blocks);
}

// Whether the first CTA holds the whole row; it then needs none of the others. [select.capacity-and-length]
template <int kCtas>
__device__ __forceinline__ bool is_held_by_one(const RowPlan& plan, const SelectInputs& inputs) {
  return kCtas == 1 || plan.blocks <= inputs.part_blocks;
}

}  // namespace qsa
