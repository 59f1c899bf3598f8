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
// Launch     a CTA a row, or a cluster of CTAs where rows are few and long and the device has clusters. The
//            shape follows the capacities (tokens, row_count) and the device; the time of a row follows its
//            own position, apart from the zeros that `tokens` asks for      [select.capacity-and-length]
//            Rows that the CTAs hold whole, all of them and their masks on 16-byte boundaries, have bodies of
//            their own
//            A row may be longer than a CTA's registers hold                [select.long-rows]
//            A row of at most budget / 4 blocks is written without a search [select.all-kept]
// Scratch    static shared memory only: 10.2 KiB a CTA and with ids at most 14.2, in a cluster of eight 12.3
//            and 16.4.
// Not for    more than one sequence a call.

#include "common/portability.cuh"
#include "common/select_cluster.cuh"
#include "common/select_engine.cuh"
#include "common/select_kept.cuh"
#include "common/select_tiles.cuh"
#include "common/status.h"
#include "qsa/mask_row.cuh"
#include "qsa/select_row.cuh"

namespace qsa {
namespace {

// Tells the cluster that this CTA's shared memory is ready; whoever writes to another CTA's waits first.
template <int kCtas>
__device__ __forceinline__ void arrive_ready() {
  if constexpr (kCtas > 1) {
    cluster_arrive_relaxed();
  }
}
template <int kCtas>
__device__ __forceinline__ void wait_ready() {
  if constexpr (kCtas > 1) {
    cluster_wait();
  }
}

// Whether a mask is written once, after the threshold is known, instead of zeros first: stores of many scores
// a thread would hold up its loads. (16384 x 1 on one CTA: 5.2 us instead of 5.5.)
#if QSA_HOST || defined(QSA_SELECT_FEW_SHAPES)
template <int kVectors, int kCtas>
constexpr bool kWritesOnce = kCtas > 1;  // of the two shapes there, one for each
#else
template <int kVectors, int kCtas>
constexpr bool kWritesOnce = kVectors > 2;
#endif

template <int kThreads, int kVectors, int kCtas, bool kIsPlain>
__global__ void __launch_bounds__(kThreads, kCtas == 1 ? 1024 / kThreads : 1)
    select_mask_kernel(SelectInputs inputs, uint8_t* __restrict__ mask) {
  QSA_SHARED(select::Workspace, workspace, 1);
  QSA_SHARED(select::List, list, 1);
  QSA_SHARED(select::Exchange<kCtas>, exchange, 1);
  const int64_t row = blockIdx.x / kCtas;
  const bool is_live = !is_padding(row, inputs);
  const int32_t position = position_of(row, is_live, inputs);
  const Part part = part_of<kCtas>(inputs);
  const float* const scores_of_part = in_register(inputs.scores + row * inputs.score_cols + part.first_block);
  MaskRow<kThreads, kWritesOnce<kVectors, kCtas>, kIsPlain> output(
      mask + row * inputs.tokens + part.first_token, part.tokens);
  if (is_rare(!is_live)) {
    output.write(0);
    return;
  }
  // What needs no position fills the wait for it.
  if (kCtas > 1 && threadIdx.x == 0) {
    touch(scores_of_part);
  }
  select::prepare<kThreads>(*workspace);
  select::clear_list<kThreads>(*list);
  select::prepare_exchange(*exchange);
  output.clear_ends();
  if (!kWritesOnce<kVectors, kCtas>) {
    output.overlap();
  }
  __syncthreads();  // the bins, counters and lists are clear before anything is counted
  arrive_ready<kCtas>();
  trap_if_out_of_range(position, inputs.tokens);
  const RowPlan plan = plan_row(position, inputs);
  const uint32_t blocks = blocks_in_part<kCtas>(plan, part, inputs);
  if (is_rare(is_all_kept(plan, inputs))) {
    wait_ready<kCtas>();
    trap_if_not_finite<kThreads>(scores_of_part, blocks,
                                 [&] { output.write(plan.kept_tokens - part.first_token); });
    return;
  }
  output.expect_tail(plan.tail_begin - part.first_token, plan.tail);
  ScoreTiles<kThreads, kVectors, kIsPlain> scores(scores_of_part, blocks);
  if (is_held_by_one<kCtas>(plan, inputs)) {
    wait_ready<kCtas>();
    if (part.rank == 0) {
      output.follow(scores);
      select::LocalTeam<kThreads> team{*workspace, *list};
      select::select_first(team, scores, plan.keep, output);
    } else {
      output.finish_overlap();
      __syncthreads();  // the zeros are written before a tail that begins this part
      output.settle();
    }
  } else if constexpr (kCtas > 1) {
    output.follow(scores);
    select::ClusterTeam<kThreads, kCtas> team{*workspace,       *list, *exchange, part.rank,
                                              part.first_block, blocks};
    select::select_first(team, scores, plan.keep, output);
  }
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

template <int kThreads, int kVectors, int kCtas, bool kIsPlain>
__global__ void __launch_bounds__(kThreads, kCtas == 1 ? 1024 / kThreads : 1)
    select_ids_kernel(SelectInputs inputs, int32_t* __restrict__ ids, int32_t* __restrict__ counts) {
  using Selecting = select::Selecting<kThreads, kVectors, kCtas, kIsPlain>;
  QSA_SHARED(select::Workspace, workspace, 1);
  QSA_SHARED(select::List, list, 1);
  QSA_SHARED(select::Exchange<kCtas>, exchange, 1);
  QSA_SHARED(typename Selecting::Kept, kept, 1);
  Selecting selecting{*workspace, *list, *exchange, *kept};
  const int64_t row = blockIdx.x / kCtas;
  const bool is_live = !is_padding(row, inputs);
  const int32_t position = position_of(row, is_live, inputs);
  const Part part = part_of<kCtas>(inputs);
  const int32_t width = static_cast<int32_t>(kBlockTokens * inputs.budget_blocks + kBlockTokens - 1);
  int32_t* const row_ids = ids + row * width;
  if (is_rare(!is_live)) {
    if (part.rank == 0) {
      write_padding<kThreads>(row_ids, 0, width);
      write_count(counts, row, 0);
    }
    return;
  }
  selecting.prepare();
  __syncthreads();  // the bins, counters and lists are clear before anything is counted
  arrive_ready<kCtas>();
  trap_if_out_of_range(position, inputs.tokens);
  const RowPlan plan = plan_row(position, inputs);
  // One CTA writes a list that needs no search, wherever the row's blocks lie.
  const bool is_alone =
      kCtas == 1 || is_rare(is_held_by_one<kCtas>(plan, inputs) || is_all_kept(plan, inputs));
  if (is_alone) {
    wait_ready<kCtas>();
    if (part.rank > 0) {
      return;
    }
  }
  const float* const scores_of_part = inputs.scores + row * inputs.score_cols + part.first_block;
  const auto write_rest = [&] {
    if (part.rank == 0) {
      write_padding<kThreads>(row_ids, plan.kept_tokens, width);
      write_count(counts, row, plan.kept_tokens);
      write_run<kThreads>(row_ids, plan.kept_tokens - plan.tail, plan.tail_begin, plan.tail);
    }
  };
  if (is_rare(is_all_kept(plan, inputs))) {
    write_rest();
    trap_if_not_finite<kThreads>(scores_of_part, plan.blocks,
                                 [&] { write_run<kThreads>(row_ids, 0, 0, plan.kept_tokens - plan.tail); });
    return;
  }
  ScoreTiles<kThreads, kVectors, kIsPlain> scores(scores_of_part, blocks_in_part<kCtas>(plan, part, inputs));
  select::visit_first<true>(selecting, scores, plan.keep, is_alone, part.rank, part.first_block, write_rest,
                            [&](uint32_t place, uint32_t index) {
                              const int32_t token =
                                  static_cast<int32_t>(kBlockTokens * (part.first_block + index));
                              QSA_UNROLL
                              for (uint32_t t = 0; t < kBlockTokens; ++t) {
                                row_ids[kBlockTokens * place + t] = token + static_cast<int32_t>(t);
                              }
                            });
}

// Capacities that no row can outgrow its budget in: nothing to search, so nothing of the search is loaded.
// (512 x 1: 1.0 us. A kernel that does nothing takes 0.54, one that reads the position 0.70, one that reads
// it and then the scores 0.97; both at once would take 0.83.)
constexpr int kShortThreads = QSA_HOST ? 64 : 128;

__global__ void __launch_bounds__(kShortThreads)
    short_mask_kernel(SelectInputs inputs, uint8_t* __restrict__ mask) {
  const int64_t row = blockIdx.x;
  const bool is_live = !is_padding(row, inputs);
  const int32_t position = position_of(row, is_live, inputs);
  const float* const scores = inputs.scores + row * inputs.score_cols;
  if (is_live && threadIdx.x == 0) {
    touch(scores);
  }
  MaskRow<kShortThreads> output(mask + row * inputs.tokens, inputs.tokens);
  if (!is_live) {
    output.write(0);
    return;
  }
  trap_if_out_of_range(position, inputs.tokens);
  const RowPlan plan = plan_row(position, inputs);
  trap_if_not_finite<kShortThreads>(scores, plan.blocks, [&] { output.write(plan.kept_tokens); });
}

__global__ void __launch_bounds__(kShortThreads)
    short_ids_kernel(SelectInputs inputs, int32_t* __restrict__ ids, int32_t* __restrict__ counts) {
  const int64_t row = blockIdx.x;
  const bool is_live = !is_padding(row, inputs);
  const int32_t position = position_of(row, is_live, inputs);
  const int32_t width = static_cast<int32_t>(kBlockTokens * inputs.budget_blocks + kBlockTokens - 1);
  int32_t* const row_ids = ids + row * width;
  if (!is_live) {
    write_padding<kShortThreads>(row_ids, 0, width);
    write_count(counts, row, 0);
    return;
  }
  trap_if_out_of_range(position, inputs.tokens);
  const RowPlan plan = plan_row(position, inputs);
  trap_if_not_finite<kShortThreads>(inputs.scores + row * inputs.score_cols, plan.blocks, [&] {
    write_run<kShortThreads>(row_ids, 0, 0, plan.kept_tokens);
    write_padding<kShortThreads>(row_ids, plan.kept_tokens, width);
    write_count(counts, row, plan.kept_tokens);
  });
}

// Whether plain rows have bodies of their own. In the emulation those of one CTA a row alone: every body is
// compiled anew for each mutant.
template <int kCtas>
constexpr bool kHasPlain = !QSA_HOST || kCtas == 1;

// Whether every row of a buffer begins on 16 bytes.
bool do_rows_begin_on_vectors(const void* first, int64_t rows, int64_t row_bytes) {
  constexpr int64_t kVectorBytes = 16;
  return reinterpret_cast<uintptr_t>(first) % kVectorBytes == 0 &&
         (rows == 1 || row_bytes % kVectorBytes == 0);
}

// Whether the CTAs hold all their scores at once, in whole vectors.
template <int kThreads, int kVectors>
bool are_scores_plain(const SelectInputs& inputs) {
  const int64_t row_bytes = inputs.score_cols * static_cast<int64_t>(sizeof(float));
  return inputs.part_blocks <= kThreads * kVectors * kVectorScores &&
         do_rows_begin_on_vectors(inputs.scores, inputs.row_count, row_bytes);
}

struct MaskLaunch {
  uint8_t* mask;

  int32_t run_short(const SelectInputs& inputs, void* stream) const {
    const dim3 grid(static_cast<unsigned>(inputs.row_count));
    return QSA_LAUNCH(short_mask_kernel, grid, dim3(kShortThreads), 0, stream, inputs, mask);
  }
  template <int kThreads, int kVectors, int kCtas>
  int32_t run(const SelectInputs& inputs, void* stream) const {
    const bool is_plain = are_scores_plain<kThreads, kVectors>(inputs) &&
                          do_rows_begin_on_vectors(mask, inputs.row_count, inputs.tokens);
    auto* const kernel = is_plain ? select_mask_kernel<kThreads, kVectors, kCtas, kHasPlain<kCtas>>
                                  : select_mask_kernel<kThreads, kVectors, kCtas, false>;
    const dim3 grid(static_cast<unsigned>(inputs.row_count) * kCtas);
    return QSA_LAUNCH_CLUSTER(kernel, grid, dim3(kThreads), kCtas, 0, stream, inputs, mask);
  }
};

struct IdsLaunch {
  int32_t* ids;
  int32_t* counts;

  int32_t run_short(const SelectInputs& inputs, void* stream) const {
    const dim3 grid(static_cast<unsigned>(inputs.row_count));
    return QSA_LAUNCH(short_ids_kernel, grid, dim3(kShortThreads), 0, stream, inputs, ids, counts);
  }
  template <int kThreads, int kVectors, int kCtas>
  int32_t run(const SelectInputs& inputs, void* stream) const {
    auto* const kernel = are_scores_plain<kThreads, kVectors>(inputs)
                             ? select_ids_kernel<kThreads, kVectors, kCtas, kHasPlain<kCtas>>
                             : select_ids_kernel<kThreads, kVectors, kCtas, false>;
    const dim3 grid(static_cast<unsigned>(inputs.row_count) * kCtas);
    return QSA_LAUNCH_CLUSTER(kernel, grid, dim3(kThreads), kCtas, 0, stream, inputs, ids, counts);
  }
};

// Spreads every row over kCtas CTAs; their parts begin on 16-byte boundaries of the row.
template <int kThreads, int kVectors, int kCtas, class Launch>
int32_t spread(const Launch& launch, SelectInputs inputs, void* stream) {
  const int64_t most_blocks = inputs.tokens / static_cast<int32_t>(kBlockTokens);
  const int64_t vectors = (most_blocks + select::kPartUnit - 1) / select::kPartUnit;
  inputs.part_blocks = static_cast<uint32_t>((vectors + kCtas - 1) / kCtas * select::kPartUnit);
  return launch.template run<kThreads, kVectors, kCtas>(inputs, stream);
}

// The launch table: threads a CTA, vectors of four scores a thread holds, CTAs a row. Their product times
// four is the longest row, in blocks, that is read once; longer rows are served by the same code, reading
// them again. It is chosen by what is known when a launch is captured and never by a live length. A build
// with QSA_SELECT_THREADS has one shape; it may name QSA_SELECT_VECTORS and QSA_SELECT_CTAS too.
#ifndef QSA_SELECT_VECTORS
#define QSA_SELECT_VECTORS 8
#endif
#ifndef QSA_SELECT_CTAS
#define QSA_SELECT_CTAS 1
#endif

template <class Launch>
int32_t launch_rows(const Launch& launch, const SelectInputs& inputs, void* stream) {
  const int64_t most_blocks = inputs.tokens / static_cast<int32_t>(kBlockTokens);
  if (most_blocks <= inputs.budget_blocks) {
    return launch.run_short(inputs, stream);
  }
#if QSA_HOST || defined(QSA_SELECT_FEW_SHAPES)
  // Small CTAs, whose barriers cost little time, and every path of the table below: scores held or read
  // again, and clusters. The emulation's are of two warps, for it pays for every thread at every barrier.
  constexpr int kThreads = QSA_HOST ? 64 : 128;
  constexpr int kVectors = QSA_HOST ? 4 : 2;
  if (compute_capability() >= 90 && most_blocks > 1600 && inputs.row_count <= 2) {
    return spread<kThreads, kVectors, 4>(launch, inputs, stream);
  }
  return spread<kThreads, kVectors, 1>(launch, inputs, stream);
#elif defined(QSA_SELECT_THREADS)
  return spread<QSA_SELECT_THREADS, QSA_SELECT_VECTORS, QSA_SELECT_CTAS>(launch, inputs, stream);
#else
  const int64_t rows = inputs.row_count;
  const bool has_clusters = compute_capability() >= 90;
  // What follows was measured on one H200, in us, warm, with the mask written: blocks x rows, then threads,
  // vectors, CTAs.
  // 513 x 1: 256,1,1 2.0; 256,2,1 2.4; 128,2,1 2.6.
  if (most_blocks <= 1024) {
    return spread<256, 1, 1>(launch, inputs, stream);
  }
  // 2048 x 1: 512,1,1 2.0; 256,2,1 2.1; 128,4,1 2.4. 2048 x 4096: 33; 29; 23. Places in the list taken while
  // counting: 2.2, as without, and 3.6 instead of 2.6 where all scores are equal.
  if (most_blocks <= 2048) {
    // With more rows than there is room for at once, what a row costs all together counts more than its wait.
    if (rows > 2 * multiprocessor_count()) {
      return spread<128, 4, 1>(launch, inputs, stream);
    }
    return spread<512, 1, 1>(launch, inputs, stream);
  }
  if (has_clusters && 8 * rows <= multiprocessor_count()) {
    // 16384 x 1: 512,1,8 3.2; 256,2,8 3.1. 16384 x 8: 3.3; 3.2.
    if (most_blocks <= 16384) {
      return spread<512, 1, 8>(launch, inputs, stream);
    }
    // 65536 x 1: 512,4,8 4.3. Before bodies for plain rows: 4.5; 1024,2,8 4.9; 512,2,16 4.4. Eight CTAs are
    // what every device with clusters can launch.
    if (most_blocks <= 65536) {
      return spread<512, 4, 8>(launch, inputs, stream);
    }
    return spread<1024, 8, 8>(launch, inputs, stream);
  }
  if (has_clusters && 2 * rows <= multiprocessor_count()) {
    // 16384 x 64: 512,4,2 4.7; 256,8,2 4.7. Before bodies for plain rows: 512,4,2 4.9; 1024,2,2 5.4; 1024,4,1
    // 5.3; 512,8,1 5.4.
    if (most_blocks <= 16384) {
      return spread<512, 4, 2>(launch, inputs, stream);
    }
    // 65536 x 64: 10.9.
    return spread<1024, 8, 2>(launch, inputs, stream);
  }
  // 16384 x 2048: 512,8,1 70, four CTAs an SM of 256,8,2 70, two of 512,4,2 89, three of 512,2,4 112. Before
  // bodies for plain rows: 512,8,1 72; 1024,4,1 87; CTAs that stay and copy their next row while they search
  // this one 94. Zeros first by bulk copies from shared memory: 95, by stores: 75. Rows fetched into the
  // second cache 132 rows ahead: 71, 264 rows: 87.
  if (most_blocks <= 16384) {
    return spread<512, 8, 1>(launch, inputs, stream);
  }
  return spread<1024, 8, 1>(launch, inputs, stream);
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
  inputs.part_blocks = 0;
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
