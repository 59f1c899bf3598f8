// The first elements of a row, visited in ascending order of their index by the CTAs that hold it.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_ascending.cuh"
#include "common/select_cluster.cuh"
#include "common/select_engine.cuh"
#include "common/select_list.cuh"
#include "common/select_marks.cuh"
#include "common/select_tiles.cuh"
#include "common/select_workspace.cuh"

namespace qsa {
namespace select {

// Whether what is kept of a plain row, as in select_tiles.cuh, is marked. With up to four vectors a thread
// ids take less time than they did listed: 16384 x 1 3.9 us on an H200 instead of 4.2, 65536 x 1 4.8 instead
// of 5.0. With eight, 65536 x 64, they take 11.0 us marked and 9.9 listed.
template <int kVectors, bool kIsPlain>
constexpr bool kIsMarked = kIsPlain && kVectors <= 4;

// What a CTA keeps, in shared memory.
template <int kThreads, int kVectors, bool kMarks>
struct Kept {
  using Output = MarkOutput<kThreads, kVectors>;
  KeptMarks<kThreads, kVectors> marks;

  // A barrier must follow before anything is kept.
  __device__ __forceinline__ void prepare() { prepare_marks(marks); }
  __device__ __forceinline__ Output output() { return Output{marks}; }
  // These after a barrier behind the last element kept. All threads call them.
  __device__ __forceinline__ uint32_t total() const { return kept_of(marks); }
  // Calls visit(place, index) for all that is kept of a part of `count` elements, in ascending order: with
  // kTogether, neighbours by neighbouring threads, which pays where a visit writes much.
  template <bool kTogether, class Visit>
  __device__ QSA_PASS void for_each(uint32_t, Workspace& shared, const Visit& visit) const {
    if constexpr (!kTogether) {
      for_each_kept(marks, visit);
      return;
    }
    for_each_kept(marks, [&](uint32_t place, uint32_t index) { shared.bins[place] = index; });
    __syncthreads();  // every element has its place before any is visited
    const uint32_t kept = total();
    QSA_ROLLED
    for (uint32_t place = threadIdx.x; place < kept; place += kThreads) {
      visit(place, shared.bins[place]);
    }
  }
};

template <int kThreads, int kVectors>
struct Kept<kThreads, kVectors, false> {
  using Output = ListOutput;
  KeptList list;

  __device__ __forceinline__ void prepare() { prepare_list(list); }
  __device__ __forceinline__ Output output() { return Output{list}; }
  __device__ __forceinline__ uint32_t total() const { return list.kept; }
  template <bool kTogether, class Visit>
  __device__ QSA_PASS void for_each(uint32_t count, Workspace& shared, const Visit& visit) {
    sort_ascending<kThreads>(list, count, shared);
    QSA_ROLLED
    for (uint32_t place = threadIdx.x; place < list.kept; place += kThreads) {
      visit(place, list.sorted[place]);
    }
  }
};

// Whether a row's other writing is hidden behind the first loads. A thread with more than one vector would
// have a copy of that code for each. (16384 x 2048, ids: 70 us instead of 61.)
#if QSA_HOST || defined(QSA_SELECT_FEW_SHAPES)
template <int kVectors, int kCtas>
constexpr bool kIsHidden = kCtas == 1;  // of the two shapes there, one for each
#else
template <int kVectors, int kCtas>
constexpr bool kIsHidden = kVectors == 1;
#endif

// An Output whose threads do work() while their scores are on their way, and those without scores after; or,
// not hidden, all before.
template <class Output, class Work, bool kHides>
struct Overlapping : Output {
  Work work;
  bool is_done;

  __device__ __forceinline__ Overlapping(const Output& output, const Work& given)
      : Output(output), work(given), is_done(false) {
    if (!kHides) {
      work();
    }
  }
  __device__ __forceinline__ void overlap() {
    if (kHides && !is_done) {
      is_done = true;
      work();
    }
  }
  __device__ __forceinline__ void finish_overlap() {
    if (kHides && is_rare(!is_done)) {
      work();
    }
  }
};

// The shared memory of visit_first(). A CTA's own threads prepare it, a barrier follows, and in a cluster its
// barrier.
template <int kThreads, int kVectors, int kCtas, bool kIsPlain>
struct Selecting {
  using Kept = select::Kept<kThreads, kVectors, kIsMarked<kVectors, kIsPlain>>;
  Workspace& workspace;
  List& list;
  Exchange<kCtas>& exchange;
  Kept& kept;

  __device__ QSA_PASS void prepare() {
    select::prepare<kThreads>(workspace);
    clear_list<kThreads>(list);
    kept.prepare();
    prepare_exchange(exchange);
  }
};

// Calls visit(place, index) for the `keep` first elements of a row, the place-th in ascending order, and
// work() once by every thread, before anything is visited. `scores` and `index` are of the CTA's part
// of the row, which is the `rank`-th and begins at `first`. `is_alone`: the CTA holds the whole row, and the
// others of its cluster do nothing. kTogether as above.
template <bool kTogether, int kThreads, int kVectors, int kCtas, bool kIsPlain, class Work, class Visit>
__device__ QSA_PASS void visit_first(const Selecting<kThreads, kVectors, kCtas, kIsPlain>& in,
                                     ScoreTiles<kThreads, kVectors, kIsPlain>& scores, uint32_t keep,
                                     bool is_alone, uint32_t rank, uint32_t first, const Work& work,
                                     const Visit& visit) {
  using Kept = typename Selecting<kThreads, kVectors, kCtas, kIsPlain>::Kept;
  Kept& kept = in.kept;
  Overlapping<typename Kept::Output, Work, kIsHidden<kVectors, kCtas>> output(kept.output(), work);
  if (is_alone) {
    LocalTeam<kThreads> team{in.workspace, in.list};
    select_first(team, scores, keep, output);
    __syncthreads();  // everything is kept before it is counted
    kept.template for_each<kTogether>(scores.count(), in.workspace, visit);
  } else if constexpr (kCtas > 1) {
    ClusterTeam<kThreads, kCtas, true> team{in.workspace, in.list, in.exchange, rank, first, scores.count()};
    select_first(team, scores, keep, output);
    __syncthreads();  // everything is kept before it is counted
    const uint32_t before = team.kept_before([&] { return kept.total(); });
    kept.template for_each<kTogether>(scores.count(), in.workspace,
                                      [&](uint32_t place, uint32_t index) { visit(before + place, index); });
  }
}

}  // namespace select
}  // namespace qsa
