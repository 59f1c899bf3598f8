// qsa_select, qsa_select_ids: which tokens each row attends to.
//
// Computes   for every row r at position p = rows[r]:
//              blocks = (p + 1) / 4, the complete ones, and none after p    [select.causality]
//              keep = min(budget / 4, blocks)                               [select.budget]
//              the `keep` highest of scores[r, 0 .. blocks)                 [select.score-order]
//                whatever their distribution                                [select.any-distribution]
//                ties by ascending block index                              [select.ties-ascending]
//                -0.0 equal to +0.0                                         [select.zeros-equal]
//              and the (p + 1) % 4 tokens after the last complete block     [select.tail]
// Inputs     scores [row_count, score_cols] f32; score_cols is the row stride and may exceed tokens / 4,
//              and the buffer may be longer                                 [select.score-stride]
//            rows [row_count] i32, absolute positions
//            live_rows [1] i32 on the device, or null: rows at or past it are padding; a negative count makes
//              all rows padding, one above row_count none                   [select.live-rows]
// Outputs    qsa_select
//              mask [row_count, tokens] u8, 1 for the tokens of the kept blocks and the tail, 0 elsewhere and
//                in padding rows                                            [select.every-byte-written]
//            qsa_select_ids
//              ids [row_count, budget + 3] i32, the same tokens in ascending order, then -1; a padding row is
//                all -1                                                     [select.ids-ascending]
//              counts [row_count] i32, how many of them; 0 for padding
// Requires   token 0 is the first visible token: a list whose first tokens were evicted is out of contract.
//            scores, rows, ids and counts aligned to 4 bytes and no further: any stride is served.
// Traps      a score inside a live row's blocks that is not finite          [select.non-finite-traps]
//            a live row's position outside 0 .. tokens - 1                  [select.row-range-traps]
// Refuses    null pointers (live_rows may be null), negative extents, no rows, no tokens, extents beyond
//            int32, a budget that is no positive multiple of 4 or above 2048, score_cols below
//            max(1, tokens / 4)                                             [select.refusals]
// Reads      of a live row its position and its `blocks` scores and nothing past them, of a padding row
//            nothing                                                        [select.prefix-only]
//            Offsets into scores, mask and ids are 64-bit                   [select.offsets-64-bit]
// Numerics   comparisons only, so every launch shape gives the same bits    [select.deterministic]
// Launch     a CTA a row. The shape follows the capacities (tokens, row_count); the time of a row follows its
//            own position, apart from the zeros that `tokens` asks for      [select.capacity-and-length]
//            A row may be longer than a CTA's registers hold                [select.long-rows]
//            A row of at most budget / 4 blocks is written without a search [select.all-kept]
// Scratch    static shared memory only: 9.4 KiB, with ids 13.4 KiB.
// Not for    more than one sequence a call.

#include "common/portability.cuh"
#include "common/select_ascending.cuh"
#include "common/select_engine.cuh"
#include "common/select_tiles.cuh"
#include "common/status.h"
#include "qsa/mask_row.cuh"

namespace qsa {
namespace {

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
  if (position < 0 || position >= tokens) {
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
  return inputs.live_rows != nullptr && row >= __ldg(inputs.live_rows);
}

// [select.non-finite-traps] for a row within the budget, whose scores nothing else looks at.
template <int kThreads>
__device__ __forceinline__ void trap_if_not_finite(const float* scores, uint32_t count) {
  constexpr uint32_t kReads = (select::kMostKept + kThreads - 1) / kThreads;
  float probe = 0.0f;
  QSA_UNROLL
  for (uint32_t i = 0; i < kReads; ++i) {
    const uint32_t index = i * kThreads + threadIdx.x;
    if (index < count) {
      probe = finite_probe(__ldg(scores + index), probe);
    }
  }
  if (met_non_finite(probe)) {
    QSA_TRAP("a score inside the row's prefix is not finite");
  }
}

// [select.all-kept] A row within the budget keeps everything: nothing to compare, only to check.
__device__ __forceinline__ bool is_all_kept(const RowPlan& plan, const SelectInputs& inputs) {
  return plan.blocks <= inputs.budget_blocks;
}

template <int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    select_mask_kernel(SelectInputs inputs, uint8_t* __restrict__ mask) {
  QSA_SHARED(select::Workspace, workspace, 1);
  const int64_t row = blockIdx.x;
  MaskRow<kThreads> output(mask + row * inputs.tokens, inputs.tokens);
  if (is_padding(row, inputs)) {
    output.write(0);
    return;
  }
  const int32_t position = __ldg(inputs.rows + row);
  // What needs no position fills the wait for it.
  select::prepare<kThreads>(*workspace);
  output.clear_ends();
  output.overlap();
  __syncthreads();  // the bins and counters are zero before anything is counted
  trap_if_out_of_range(position, inputs.tokens);
  const RowPlan plan = plan_row(position, inputs);
  const float* const row_scores = inputs.scores + row * inputs.score_cols;
  if (is_all_kept(plan, inputs)) {
    trap_if_not_finite<kThreads>(row_scores, plan.blocks);
    output.write(plan.kept_tokens);
    return;
  }
  ScoreTiles<kThreads, kVectors> scores(row_scores, plan.blocks);
  select::select_first<kThreads>(scores, plan.keep, *workspace, output);
  // The engine's barriers stand between the zeros and these ones.
  output.set(plan.tail_begin, plan.tail);
}

// Writes ids[begin + i] = first + i.
template <int kThreads>
__device__ __forceinline__ void write_run(int32_t* ids, int32_t begin, int32_t first, int32_t count) {
  QSA_ROLLED
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    ids[begin + i] = first + i;
  }
}

template <int kThreads>
__device__ __forceinline__ void write_padding(int32_t* ids, int32_t begin, int32_t end) {
  QSA_ROLLED
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads) {
    ids[i] = -1;
  }
}

__device__ __forceinline__ void write_count(int32_t* counts, int64_t row, int32_t count) {
  if (threadIdx.x == 0) {
    counts[row] = count;
  }
}

template <int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    select_ids_kernel(SelectInputs inputs, int32_t* __restrict__ ids, int32_t* __restrict__ counts) {
  QSA_SHARED(select::Workspace, workspace, 1);
  QSA_SHARED(select::KeptList, kept, 1);
  const int64_t row = blockIdx.x;
  const int32_t width = static_cast<int32_t>(kBlockTokens * inputs.budget_blocks + kBlockTokens - 1);
  int32_t* const row_ids = ids + row * width;
  if (is_padding(row, inputs)) {
    write_padding<kThreads>(row_ids, 0, width);
    write_count(counts, row, 0);
    return;
  }
  const int32_t position = __ldg(inputs.rows + row);
  select::prepare<kThreads>(*workspace);
  select::prepare_list(*kept);
  __syncthreads();  // the bins and counters are zero before anything is counted
  trap_if_out_of_range(position, inputs.tokens);
  const RowPlan plan = plan_row(position, inputs);
  const float* const row_scores = inputs.scores + row * inputs.score_cols;
  write_padding<kThreads>(row_ids, plan.kept_tokens, width);
  write_count(counts, row, plan.kept_tokens);
  if (is_all_kept(plan, inputs)) {
    trap_if_not_finite<kThreads>(row_scores, plan.blocks);
    write_run<kThreads>(row_ids, 0, 0, plan.kept_tokens);
    return;
  }
  ScoreTiles<kThreads, kVectors> scores(row_scores, plan.blocks);
  select::ListOutput output{*kept};
  select::select_first<kThreads>(scores, plan.keep, *workspace, output);
  select::place_ascending<kThreads>(*kept, plan.blocks, *workspace, [&](uint32_t rank, uint32_t block) {
    for (uint32_t token = 0; token < kBlockTokens; ++token) {
      row_ids[kBlockTokens * rank + token] = static_cast<int32_t>(kBlockTokens * block + token);
    }
  });
  write_run<kThreads>(row_ids, plan.kept_tokens - plan.tail, plan.tail_begin, plan.tail);
}

struct MaskLaunch {
  uint8_t* mask;

  template <int kThreads, int kVectors>
  int32_t run(const SelectInputs& inputs, void* stream) const {
    constexpr auto* kernel = select_mask_kernel<kThreads, kVectors>;
    const dim3 grid(static_cast<unsigned>(inputs.row_count));
    return QSA_LAUNCH(kernel, grid, dim3(kThreads), 0, stream, inputs, mask);
  }
};

struct IdsLaunch {
  int32_t* ids;
  int32_t* counts;

  template <int kThreads, int kVectors>
  int32_t run(const SelectInputs& inputs, void* stream) const {
    constexpr auto* kernel = select_ids_kernel<kThreads, kVectors>;
    const dim3 grid(static_cast<unsigned>(inputs.row_count));
    return QSA_LAUNCH(kernel, grid, dim3(kThreads), 0, stream, inputs, ids, counts);
  }
};

// The launch table: threads a CTA, and vectors of four scores a thread holds. Their product times four is the
// longest row, in blocks, that is read once; longer rows are served by the same code, reading them again.
// A build with QSA_SELECT_THREADS has one shape. The CPU build is one of these: its time is that of the
// barriers, and every path is reached from 128 threads with four vectors (rows above 2,048 blocks are read
// again).
#if QSA_HOST
#ifndef QSA_SELECT_THREADS
#define QSA_SELECT_THREADS 128
#endif
constexpr int kForcedVectors = 4;
#elif defined(QSA_SELECT_THREADS)
constexpr int kForcedVectors = 8;
#endif

template <class Launch>
int32_t launch_rows(const Launch& launch, const SelectInputs& inputs, void* stream) {
#ifdef QSA_SELECT_THREADS
  return launch.template run<QSA_SELECT_THREADS, kForcedVectors>(inputs, stream);
#else
  const int32_t most_blocks = inputs.tokens / static_cast<int32_t>(kBlockTokens);
  if (most_blocks <= 1024) {
    return launch.template run<256, 1>(inputs, stream);
  }
  if (most_blocks <= 2048) {
    return launch.template run<512, 1>(inputs, stream);
  }
  // One CTA of 1,024 threads has the shortest row; with a row for every fourth multiprocessor or more, 512
  // threads that hold twice as much lose nothing, and two such CTAs share a multiprocessor.
  if (4 * static_cast<int64_t>(inputs.row_count) >= multiprocessor_count() && most_blocks <= 16384) {
    return launch.template run<512, 8>(inputs, stream);
  }
  if (most_blocks <= 16384) {
    return launch.template run<1024, 4>(inputs, stream);
  }
  return launch.template run<1024, 8>(inputs, stream);
#endif
}

// [select.refusals] What both entries refuse; `outputs_present` says whether theirs are there.
int32_t refuse(const float* scores, const int32_t* rows, bool outputs_present, int64_t row_count,
               int64_t tokens, int64_t score_cols, int64_t budget) {
  if (scores == nullptr || rows == nullptr || !outputs_present) {
    return QSA_NULL_POINTER;
  }
  const int64_t extents[] = {row_count, tokens, score_cols};
  for (const int64_t extent : extents) {
    // Positions and the grid are int32.
    if (extent < 0 || extent > INT32_MAX) {
      return QSA_BAD_EXTENT;
    }
  }
  if (row_count == 0 || tokens == 0) {
    return QSA_BAD_EXTENT;
  }
  if (budget <= 0 || budget > kMostBudget || budget % kBlockTokens != 0) {
    return QSA_BAD_BUDGET;
  }
  // A row of fewer than four tokens has no score, yet a stride of at least one.
  const int64_t least_stride = tokens < kBlockTokens ? 1 : tokens / kBlockTokens;
  if (score_cols < least_stride) {
    return QSA_BAD_STRIDE;
  }
  return QSA_OK;
}

SelectInputs inputs_of(const float* scores, const int32_t* rows, const int32_t* live_rows, int64_t row_count,
                       int64_t tokens, int64_t score_cols, int64_t budget) {
  SelectInputs inputs;
  inputs.scores = scores;
  inputs.rows = rows;
  inputs.live_rows = live_rows;
  inputs.row_count = static_cast<int32_t>(row_count);
  inputs.tokens = static_cast<int32_t>(tokens);
  inputs.score_cols = score_cols;
  inputs.budget_blocks = static_cast<uint32_t>(budget / kBlockTokens);
  return inputs;
}

}  // namespace
}  // namespace qsa

extern "C" int32_t qsa_select(const float* scores, const int32_t* rows, const int32_t* live_rows,
                              uint8_t* mask, int64_t row_count, int64_t tokens, int64_t score_cols,
                              int64_t budget, void* stream) {
  const bool outputs_present = mask != nullptr;
  const int32_t refusal = qsa::refuse(scores, rows, outputs_present, row_count, tokens, score_cols, budget);
  if (refusal != QSA_OK) {
    return refusal;
  }
  const qsa::SelectInputs inputs =
      qsa::inputs_of(scores, rows, live_rows, row_count, tokens, score_cols, budget);
  return qsa::launch_rows(qsa::MaskLaunch{mask}, inputs, stream);
}

extern "C" int32_t qsa_select_ids(const float* scores, const int32_t* rows, const int32_t* live_rows,
                                  int32_t* ids, int32_t* counts, int64_t row_count, int64_t tokens,
                                  int64_t score_cols, int64_t budget, void* stream) {
  const bool outputs_present = ids != nullptr && counts != nullptr;
  const int32_t refusal = qsa::refuse(scores, rows, outputs_present, row_count, tokens, score_cols, budget);
  if (refusal != QSA_OK) {
    return refusal;
  }
  const qsa::SelectInputs inputs =
      qsa::inputs_of(scores, rows, live_rows, row_count, tokens, score_cols, budget);
  return qsa::launch_rows(qsa::IdsLaunch{ids, counts}, inputs, stream);
}
