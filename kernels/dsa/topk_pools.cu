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
// Traps      a visible score that is not finite [dsa.non-finite-traps]; visible_pools outside 0 .. pools,
//            or past the geometry's whole pools; a geometry that contradicts itself or passes `pools`
//              [dsa.visible-range-traps]
// Reads      of a row its visible scores and nothing past them [dsa.prefix-only]. Offsets are 64-bit.
// Numerics   comparisons only, so every launch shape gives the same bits.
// Launch     a CTA a row, of the selection engine that qsa_select uses. The shape follows `pools`, the
//            time of a row its own visible pools.
// Scratch    static shared memory: 14.2 KiB, in a cluster of eight 16.4.

#include "common/portability.cuh"
#include "common/select_cluster.cuh"
#include "common/select_kept.cuh"
#include "common/select_tiles.cuh"
#include "common/status.h"
#include "dsa/geometry.cuh"
#include "dsa/pool_lists.cuh"

namespace qsa {
namespace dsa {
namespace {

constexpr int kMostSharedBytes = 32 * 1024;  // what an engine may count on
template <class Kept>
constexpr size_t kSharedBytes =
    sizeof(select::Workspace) + sizeof(select::List) + sizeof(select::Exchange<8>) + sizeof(Kept);
static_assert(kSharedBytes<select::Kept<1024, 8, false>> <= kMostSharedBytes &&
                  kSharedBytes<select::Kept<512, 4, true>> <= kMostSharedBytes,
              "the search and what it keeps fit");

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
  int32_t most_tokens;  // that `pools` can be of
  uint32_t part_pools;  // pools of a row that are one CTA's
};

// How many pools a row keeps. A geometry says the same, or it is not this launch's.
__device__ __forceinline__ int32_t keep_of(const TopkArguments& arguments, int32_t visible) {
  if (visible < 0 || visible > arguments.pools) {
    QSA_TRAP("a row sees fewer pools than none or more than there are");
  }
  return min(arguments.most_kept, visible);
}

// Judges the geometry, which fixes nothing of the search: it is done while scores are on their way.
__device__ __forceinline__ void trap_if_another(const TopkArguments& arguments, const LiveWords& words,
                                                int32_t visible) {
  if (arguments.geometry == nullptr) {
    return;
  }
  trap_if_wrong(words, arguments.geometry, arguments.most_tokens, arguments.kpool);
  const int32_t whole = words.of[kWholePools];
  if (words.of[kSelectK] != min(arguments.most_kept, whole) || visible > whole) {
    QSA_TRAP(
        "the geometry keeps another number of pools than the launch, or the row sees more than are live");
  }
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

// The part of a row that is one CTA's.
struct Part {
  uint32_t rank;
  uint32_t first;
};

template <int kCtas>
__device__ __forceinline__ Part part_of(const TopkArguments& arguments) {
  Part part;
  part.rank = kCtas == 1 ? 0u : cluster_rank();
  part.first = part.rank * arguments.part_pools;
  return part;
}

// Of the pools that the row sees, those in the part.
__device__ __forceinline__ uint32_t pools_in_part(const TopkArguments& arguments, const Part& part,
                                                  int32_t visible) {
  const uint32_t seen = static_cast<uint32_t>(visible);
  return min(seen > part.first ? seen - part.first : 0u, arguments.part_pools);
}

template <int kThreads, int kVectors, int kCtas, bool kIsPlain>
__global__ void __launch_bounds__(kThreads, kCtas == 1 ? 1024 / kThreads : 1)
    topk_kernel(TopkArguments arguments) {
  using Selecting = select::Selecting<kThreads, kVectors, kCtas, kIsPlain>;
  QSA_SHARED(select::Workspace, workspace, 1);
  QSA_SHARED(select::List, list, 1);
  QSA_SHARED(select::Exchange<kCtas>, exchange, 1);
  QSA_SHARED(typename Selecting::Kept, kept, 1);
  Selecting selecting{*workspace, *list, *exchange, *kept};
  const int64_t row = blockIdx.x / kCtas;
  const int32_t visible = __ldg(arguments.visible_pools + row);
  const bool judges = threadIdx.x < select::kWarpLanes;  // one warp does
  const LiveWords words = load_words(judges ? arguments.geometry : nullptr);
  const Part part = part_of<kCtas>(arguments);
  const float* const row_scores = arguments.scores + row * arguments.score_cols;
  // What needs no length fills the wait for it. (No score is touched ahead, as in qsa_select: the kernel
  // before has just written them.)
  selecting.prepare();
  __syncthreads();  // the bins, counters and lists are clear before anything is counted
  if constexpr (kCtas > 1) {
    cluster_arrive_relaxed();
  }
  const int32_t keep = keep_of(arguments, visible);
  // Whether the first CTA holds the whole row; it then needs none of the others.
  const bool is_alone =
      kCtas == 1 || is_rare(keep == visible || visible <= static_cast<int32_t>(arguments.part_pools));
  if (is_alone) {
    if constexpr (kCtas > 1) {
      cluster_wait();
    }
    if (part.rank > 0) {
      return;
    }
  }
  int32_t* const row_pools = arguments.kept_pools + row * arguments.most_kept;
  const auto judge_and_fill = [&] {
    if (judges) {
      trap_if_another(arguments, words, visible);
    }
    if (part.rank == 0) {
      QSA_ROLLED
      for (int32_t i = keep + static_cast<int32_t>(threadIdx.x); i < arguments.most_kept; i += kThreads) {
        row_pools[i] = -1;
      }
      if (threadIdx.x == 0) {
        arguments.kept_counts[row] = keep;
      }
    }
  };
  if (is_rare(keep == visible)) {
    judge_and_fill();
    trap_if_not_finite<kThreads>(row_scores, visible);
    QSA_ROLLED
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < keep; i += kThreads) {
      row_pools[i] = i;
    }
    return;
  }
  ScoreTiles<kThreads, kVectors, kIsPlain> scores(row_scores + part.first,
                                                  pools_in_part(arguments, part, visible));
  select::visit_first<false>(
      selecting, scores, static_cast<uint32_t>(keep), is_alone, part.rank, part.first, judge_and_fill,
      [&](uint32_t place, uint32_t index) { row_pools[place] = static_cast<int32_t>(part.first + index); });
}

// Spreads every row over kCtas CTAs; their parts begin on 16-byte boundaries of the row.
template <int kThreads, int kVectors, int kCtas>
int32_t spread(TopkArguments arguments, void* stream) {
  const int64_t vectors = (static_cast<int64_t>(arguments.pools) + select::kPartUnit - 1) / select::kPartUnit;
  arguments.part_pools = static_cast<uint32_t>((vectors + kCtas - 1) / kCtas * select::kPartUnit);
  const bool begins_on_vectors =
      is_aligned(arguments.scores) && (arguments.row_count == 1 || arguments.score_cols % kVectorScores == 0);
  const bool is_plain =
      begins_on_vectors && arguments.part_pools <= select::KeptMarks<kThreads, kVectors>::kElements;
  auto* const kernel =
      is_plain ? topk_kernel<kThreads, kVectors, kCtas, true> : topk_kernel<kThreads, kVectors, kCtas, false>;
  const dim3 grid(static_cast<unsigned>(arguments.row_count) * kCtas);
  return QSA_LAUNCH_CLUSTER(kernel, grid, dim3(kThreads), kCtas, 0, stream, arguments);
}

// Threads a CTA, vectors of four scores a thread, CTAs a row: qsa_select's table, where the times are.
#if QSA_HOST || defined(QSA_SELECT_FEW_SHAPES)
int32_t launch(const TopkArguments& arguments, void* stream) {
  const bool has_clusters = compute_capability() >= 90;
  if (has_clusters && arguments.pools > 1600 && arguments.row_count <= 2) {
    return spread<128, 2, 4>(arguments, stream);
  }
  return spread<128, 2, 1>(arguments, stream);
}
#else
int32_t launch(const TopkArguments& arguments, void* stream) {
  const int64_t pools = arguments.pools;
  const int64_t rows = arguments.row_count;
  const bool has_clusters = compute_capability() >= 90;
  if (pools <= 1024) {
    return spread<256, 1, 1>(arguments, stream);
  }
  if (pools <= 2048) {
    return spread<512, 1, 1>(arguments, stream);
  }
  if (has_clusters && 8 * rows <= multiprocessor_count()) {
    if (pools <= 16384) {
      return spread<512, 1, 8>(arguments, stream);
    }
    return pools <= 65536 ? spread<512, 4, 8>(arguments, stream) : spread<1024, 8, 8>(arguments, stream);
  }
  if (has_clusters && 2 * rows <= multiprocessor_count()) {
    return pools <= 16384 ? spread<512, 4, 2>(arguments, stream) : spread<1024, 8, 2>(arguments, stream);
  }
  if (pools <= 16384) {
    return spread<512, 8, 1>(arguments, stream);
  }
  return spread<1024, 8, 1>(arguments, stream);
}
#endif

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
  const int64_t most_tokens = (pools + 1) * kpool - 1;
  const qsa::dsa::TopkArguments arguments{
      scores,
      visible_pools,
      geometry,
      kept_pools,
      kept_counts,
      score_cols,
      static_cast<int32_t>(row_count),
      static_cast<int32_t>(pools),
      static_cast<int32_t>(topk / kpool),
      static_cast<int32_t>(kpool),
      static_cast<int32_t>(most_tokens < INT32_MAX ? most_tokens : INT32_MAX),
      0};
  return qsa::dsa::launch(arguments, stream);
}
