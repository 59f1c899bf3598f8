// dsa_topk_pools: which pools each query row keeps.
//
// Computes   for every row r with n = visible_pools[r]: the min(topk / kpool, n) highest of scores[r, 0 .. n)
//              [dsa.score-order] [dsa.keep], ties by ascending pool index [dsa.ties-ascending], -0.0 equal to
//              +0.0 [dsa.zeros-equal]
// Inputs     scores [row_count, score_cols] f32; score_cols is the row stride [dsa.row-stride]
//            visible_pools [row_count] i32, as dsa_index_scores leaves them
//            geometry [5] i32 on the device, or null
// Outputs    kept_pools [row_count, topk / kpool] i32, ascending, then -1 [dsa.ascending]
//            kept_counts [row_count] i32, how many of them; zero visible pools are legal [dsa.zero-pools]
// Requires   at most 512 pools kept; pools, the most that any row sees, at most score_cols; with geometry one
//            row, which keeps as many as the geometry says [dsa.live-geometry]
// Traps      a visible score that is not finite [dsa.non-finite-traps]; visible_pools outside 0 .. pools, or
// past
//            the geometry's whole pools; a geometry that contradicts itself or passes `pools`
//              [dsa.visible-range-traps]
// Reads      of a row its visible scores and nothing past them [dsa.prefix-only]. Offsets are 64-bit.
// Numerics   comparisons only, so every launch shape gives the same bits.
// Launch     a CTA a row, of the selection engine that qsa_select uses. The shape follows `pools`, the time
// of a
//            row its own visible pools.
// Scratch    static shared memory: 13.4 KiB.

#include "common/portability.cuh"
#include "common/select_ascending.cuh"
#include "common/select_engine.cuh"
#include "common/select_tiles.cuh"
#include "common/status.h"
#include "dsa/geometry.cuh"

namespace qsa {
namespace dsa {
namespace {

constexpr int kMostSharedBytes = 32 * 1024;  // what an engine may count on
static_assert(sizeof(select::Workspace) + sizeof(select::KeptList) <= kMostSharedBytes,
              "the search and its list fit");

struct TopkArguments {
  const float* scores;
  const int32_t* visible_pools;
  const int32_t* geometry;
  int32_t* kept_pools;
  int32_t* kept_counts;
  int64_t score_cols;
  int32_t row_count;
  int32_t pools;
  int32_t most_kept;
  int32_t kpool;
};

// How many pools a row keeps at most: the launch's, or the live geometry's.
__device__ __forceinline__ int32_t keep_of(const TopkArguments& arguments, int32_t visible) {
  if (visible < 0 || visible > arguments.pools) {
    QSA_TRAP("a row sees fewer pools than none or more than there are");
  }
  if (arguments.geometry == nullptr) {
    return min(arguments.most_kept, visible);
  }
  const int32_t ceiling = static_cast<int32_t>(
      min(static_cast<int64_t>(arguments.pools + 1) * arguments.kpool - 1, static_cast<int64_t>(INT32_MAX)));
  const int32_t live = live_tokens(arguments.geometry, ceiling, arguments.kpool);
  const int32_t whole = whole_pools_of(live, arguments.kpool);
  const int32_t keep = __ldg(arguments.geometry + kSelectK);
  if (keep != min(arguments.most_kept, whole) || visible > whole) {
    QSA_TRAP(
        "the geometry keeps another number of pools than the launch, or the row sees more than are live");
  }
  return min(keep, visible);
}

template <int kThreads>
__device__ __forceinline__ void trap_if_not_finite(const float* scores, int32_t count) {
  float probe = 0.0f;
  QSA_ROLLED
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    probe = finite_probe(__ldg(scores + i), probe);
  }
  if (met_non_finite(probe)) {
    QSA_TRAP("a visible score is not finite");
  }
}

// The `keep` first of `count` scores, in the engine's order, as ascending indices. All this kernel knows of
// the engine stands here.
template <int kThreads, int kVectors>
__device__ QSA_PASS void write_first(const float* row_scores, uint32_t count, uint32_t keep,
                                     select::Workspace& workspace, select::Lists<1>& lists,
                                     select::KeptList& kept, int32_t* ascending) {
  select::prepare<kThreads>(workspace);
  select::clear_lists<kThreads>(lists);
  select::prepare_list(kept);
  __syncthreads();  // the bins, counters and lists are clear before anything is counted
  ScoreTiles<kThreads, kVectors> scores(row_scores, count);
  select::ListOutput output{kept};
  select::LocalTeam<kThreads> team{workspace, lists};
  select::select_first(team, scores, keep, output);
  select::sort_ascending<kThreads>(kept, count, workspace);
  QSA_ROLLED
  for (uint32_t i = threadIdx.x; i < keep; i += kThreads) {
    ascending[i] = static_cast<int32_t>(kept.sorted[i]);
  }
}

template <int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) topk_kernel(TopkArguments arguments) {
  QSA_SHARED(select::Workspace, workspace, 1);
  QSA_SHARED(select::Lists<1>, lists, 1);
  QSA_SHARED(select::KeptList, kept, 1);
  const int64_t row = blockIdx.x;
  const int32_t visible = __ldg(arguments.visible_pools + row);
  const int32_t keep = keep_of(arguments, visible);
  const float* const row_scores = arguments.scores + row * arguments.score_cols;
  int32_t* const row_pools = arguments.kept_pools + row * arguments.most_kept;
  QSA_ROLLED
  for (int32_t i = keep + static_cast<int32_t>(threadIdx.x); i < arguments.most_kept; i += kThreads) {
    row_pools[i] = -1;
  }
  if (threadIdx.x == 0) {
    arguments.kept_counts[row] = keep;
  }
  if (keep == visible) {
    trap_if_not_finite<kThreads>(row_scores, visible);
    QSA_ROLLED
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < keep; i += kThreads) {
      row_pools[i] = i;
    }
    return;
  }
  write_first<kThreads, kVectors>(row_scores, static_cast<uint32_t>(visible), static_cast<uint32_t>(keep),
                                  *workspace, *lists, *kept, row_pools);
}

template <int kThreads, int kVectors>
int32_t run(const TopkArguments& arguments, void* stream) {
  constexpr auto* kernel = topk_kernel<kThreads, kVectors>;
  const dim3 grid(static_cast<unsigned>(arguments.row_count));
  return QSA_LAUNCH(kernel, grid, dim3(kThreads), 0, stream, arguments);
}

// Threads a CTA and vectors of four scores a thread: qsa_select's table.
int32_t launch(const TopkArguments& arguments, void* stream) {
#if QSA_HOST
  return run<128, 4>(arguments, stream);
#else
  if (arguments.pools <= 1024) {
    return run<256, 1>(arguments, stream);
  }
  if (arguments.pools <= 2048) {
    return run<512, 1>(arguments, stream);
  }
  const bool many_rows = 4 * static_cast<int64_t>(arguments.row_count) >= multiprocessor_count();
  if (arguments.pools <= 16384) {
    return many_rows ? run<512, 8>(arguments, stream) : run<1024, 4>(arguments, stream);
  }
  return run<1024, 8>(arguments, stream);
#endif
}

}  // namespace
}  // namespace dsa
}  // namespace qsa

extern "C" int32_t dsa_topk_pools(const float* scores, const int32_t* visible_pools, const int32_t* geometry,
                                  int32_t* kept_pools, int32_t* kept_counts, int64_t row_count,
                                  int64_t score_cols, int64_t pools, int64_t topk, int64_t kpool,
                                  void* stream) {
  const int64_t extents[] = {row_count, score_cols, pools};
  for (const int64_t extent : extents) {
    if (extent < 0 || extent > INT32_MAX) {
      return QSA_BAD_EXTENT;
    }
  }
  // [dsa.one-row-replay]
  if (geometry != nullptr && row_count > 1) {
    return QSA_BAD_EXTENT;
  }
  if (!qsa::dsa::serves_kpool(kpool) || topk < kpool || topk % kpool != 0 ||
      topk / kpool > static_cast<int64_t>(qsa::select::kMostKept)) {
    return QSA_BAD_BUDGET;
  }
  if (score_cols < (pools < 1 ? 1 : pools)) {
    return QSA_BAD_STRIDE;
  }
  if (row_count == 0) {
    return QSA_OK;
  }
  if (scores == nullptr || visible_pools == nullptr || kept_pools == nullptr || kept_counts == nullptr) {
    return QSA_NULL_POINTER;
  }
  const qsa::dsa::TopkArguments arguments{scores,
                                          visible_pools,
                                          geometry,
                                          kept_pools,
                                          kept_counts,
                                          score_cols,
                                          static_cast<int32_t>(row_count),
                                          static_cast<int32_t>(pools),
                                          static_cast<int32_t>(topk / kpool),
                                          static_cast<int32_t>(kpool)};
  return qsa::dsa::launch(arguments, stream);
}
