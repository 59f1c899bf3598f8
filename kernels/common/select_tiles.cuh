// One row of scores as a CTA holds it: tiles of kThreads * kVectors vectors of four scores, one tile at a
// time in registers. A row of at most one tile is read from global memory once, whatever is done with it; a
// longer row is read again by every pass, except for the tile that the pass before ended on.
//
// Vectors lie on 16-byte boundaries of global memory, not of the row, so rows of any stride are read with
// 16-byte loads. A vector that begins before the row or ends past it is read one score at a time, and only
// the scores inside the row are read: what lies outside may belong to nobody.
#pragma once

#include <cstdint>

#include "common/float_order.cuh"
#include "common/portability.cuh"

// What a thread holds stays in registers only if every function that sees it is inlined and every index into
// it is known when the code is compiled. A CPU has no such registers, and there both would only double the
// compile time. Loops of few turns or of nothing but stores stay rolled: their copies only fill the
// instruction cache.
#if QSA_HOST
#define QSA_PASS inline
#define QSA_UNROLL
#define QSA_ROLLED
#else
#define QSA_PASS __forceinline__
#define QSA_UNROLL _Pragma("unroll")
#define QSA_ROLLED _Pragma("unroll 1")
#endif

namespace qsa {

constexpr uint32_t kVectorScores = 4;

// Takes one mark out of a set that has one.
__device__ __forceinline__ uint32_t take_mark(uint32_t& marks) {
  const uint32_t place = 31u - static_cast<uint32_t>(__clz(static_cast<int>(marks)));
  marks ^= 1u << place;
  return place;
}

// What a vector holds where the row has no score. It is finite and never above a score; that it is no member
// of the row follows from its index, which is not below the row's count.
constexpr float kNoScore = kLowestFinite;

// kIsPlain: the row begins on such a boundary and is one tile at most. Most rows do and are; nothing is then
// tested twice or read again, and there is less code to fetch.
template <int kThreads, int kVectors, bool kIsPlain = false>
class ScoreTiles {
 public:
  // Reads nothing yet. `scores` is the row's first score, `count` the number of scores in the row.
  __device__ __forceinline__ ScoreTiles(const float* scores, uint32_t count)
      : scores_(scores),
        count_(count),
        lead_(kIsPlain ? 0u
                       : static_cast<uint32_t>(reinterpret_cast<uintptr_t>(scores) / sizeof(float)) %
                             kVectorScores),
        vectors_((lead_ + count + kVectorScores - 1) / kVectorScores),
        loaded_(kNone) {}

  __device__ __forceinline__ uint32_t count() const { return count_; }
  __device__ __forceinline__ bool is_aligned() const { return lead_ == 0; }
  __device__ __forceinline__ bool has(uint32_t index) const { return index < count_; }
  static constexpr uint32_t kHeldVectors = static_cast<uint32_t>(kVectors);

  // Calls visit(score[4], index of score[0]) for every vector of the row. Indices are modulo 2^32: an element
  // belongs to the row if and only if its index is below count().
  template <class Visit>
  __device__ __forceinline__ void for_each_vector(Visit visit) {
    for_each_tile([&] { for_each_held(visit); });
  }

  // Calls visit() once for every tile, while it is held; all threads do so together.
  template <class Visit>
  __device__ __forceinline__ void for_each_tile(Visit visit) {
    if constexpr (kIsPlain) {
      if (loaded_ == kNone) {
        load(0);
      }
      visit();
      return;
    }
    const uint32_t tiles = (vectors_ + kTileVectors - 1) / kTileVectors;
    const bool downwards = is_next_downwards();
    QSA_ROLLED
    for (uint32_t turn = 0; turn < tiles; ++turn) {
      const uint32_t tile = downwards ? tiles - 1u - turn : turn;
      if (tile != loaded_) {
        load(tile);
      }
      visit();
    }
  }

  // Whether the next pass visits the last tile first: the pass before ended on it and it is still held, so
  // passes run back and forth.
  __device__ __forceinline__ bool is_next_downwards() const {
    return !kIsPlain && loaded_ + 1u == (vectors_ + kTileVectors - 1) / kTileVectors;
  }

  // The index of a score of the tile held, from its place in the marks of marks_above().
  __device__ __forceinline__ uint32_t index_of_mark(uint32_t place) const {
    const uint32_t v = place / kVectorScores;
    const uint32_t e = kVectorScores - 1u - place % kVectorScores;
    return first_index_of(loaded_ * kTileVectors + v * kThreads + threadIdx.x) + e;
  }

  // Whether a vector lies in the row as a whole, given the index of its first element.
  __device__ __forceinline__ bool is_whole(uint32_t first_index) const {
    return first_index < count_ && count_ - first_index >= kVectorScores;
  }

  // Marks of the scores held that the row has, as marks_above() places them.
  __device__ __forceinline__ uint32_t marks_in_row() const {
    const bool is_inside =
        lead_ == 0 && kVectorScores * kTileVectors <= count_ - kVectorScores * kTileVectors * loaded_;
    return is_inside ? 0xffffffffu : marks_before(count_) & ~marks_before(0);
  }

  // Marks of the scores held whose index is below `end`, as marks_above() places them.
  __device__ __forceinline__ uint32_t marks_before(uint32_t end) const {
    uint32_t marks = 0;
    QSA_ROLLED
    for (uint32_t v = 0; v < static_cast<uint32_t>(kVectors); ++v) {
      const int32_t first = static_cast<int32_t>(index_of_mark(kVectorScores * v + kVectorScores - 1u));
      const int32_t before = min(max(static_cast<int32_t>(end) - first, 0), 4);
      marks |= (0xf0u >> before & 0xfu) << (kVectorScores * v);
    }
    return marks;
  }

  // Marks of the scores held that are above `bar`, which is not -0.0. Element e of vector v has bit
  // 4 * v + 3 - e. The sign of bar - score tells: a subtraction and a funnel shift a score are half the
  // integer work of a comparison whose predicate becomes a bit.
  __device__ __forceinline__ uint32_t marks_above(float bar) const {
    static_assert(kVectors * kVectorScores <= 32, "a bit a score");
    uint32_t marks = 0;
    QSA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if (vector_of(loaded_, v) < vectors_) {
        uint32_t four = 0;
        QSA_UNROLL
        for (uint32_t e = 0; e < kVectorScores; ++e) {
          four = __funnelshift_l(__float_as_uint(__fsub_rn(bar, held_[v][e])), four, 1);
        }
        marks |= four << (static_cast<uint32_t>(v) * kVectorScores);
      }
    }
    return marks;
  }

  // Marks of the scores held from `lowest` to `highest`, as marks_above() places them, whether the row has
  // them or not. `greatest_mark` becomes the score of the greatest mark, the one that take_mark() takes
  // first.
  __device__ __forceinline__ uint32_t marks_within(float lowest, float highest, float& greatest_mark) const {
    uint32_t marks = 0;
    QSA_UNROLL
    for (uint32_t v = 0; v < static_cast<uint32_t>(kVectors); ++v) {
      QSA_UNROLL
      for (uint32_t e = kVectorScores; e-- > 0;) {
        if (held_[v][e] >= lowest && held_[v][e] <= highest) {
          marks |= 1u << (kVectorScores * v + kVectorScores - 1u - e);
          greatest_mark = held_[v][e];
        }
      }
    }
    return marks;
  }

  // The score of a mark. Choosing among few registers is faster than the first cache, among many it isn't.
  __device__ __forceinline__ float score_of_mark(uint32_t place) const {
    if (kVectors > 2) {
      return __ldg(scores_ + index_of_mark(place));
    }
    float score = 0.0f;
    QSA_UNROLL
    for (uint32_t v = 0; v < static_cast<uint32_t>(kVectors); ++v) {
      QSA_UNROLL
      for (uint32_t e = 0; e < kVectorScores; ++e) {
        score = place == kVectorScores * v + kVectorScores - 1u - e ? held_[v][e] : score;
      }
    }
    return score;
  }

  // Calls visit(score[4], index of score[0]) for every vector held, whether the row has it or not.
  template <class Visit>
  __device__ __forceinline__ void for_each_place(Visit visit) const {
    QSA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      visit(held_[v], first_index_of(vector_of(loaded_, v)));
    }
  }

  // As for_each_vector(), for the vectors of the tile that is held.
  template <class Visit>
  __device__ __forceinline__ void for_each_held(Visit visit) const {
    QSA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t vector = vector_of(loaded_, v);
      if (vector < vectors_) {
        visit(held_[v], first_index_of(vector));
      }
    }
  }

 private:
  static constexpr uint32_t kTileVectors = static_cast<uint32_t>(kThreads) * kVectors;
  static constexpr uint32_t kNone = 0xffffffffu;

  // All reads of a tile are under way before the first is waited for.
  __device__ __forceinline__ void load(uint32_t tile) {
    loaded_ = tile;
    // A test for each of many vectors takes longer than one for all of them. (65536 x 64 rows: 11.3 us, not
    // 10.9.)
    if constexpr (kIsPlain && kVectors <= 4) {
      load_whole_vectors();
      load_last_scores();
      return;
    }
    if (lead_ == 0 && kVectorScores * kTileVectors <= count_ - kVectorScores * kTileVectors * tile) {
      // The whole tile lies in the row, as most do: nothing to test for each vector.
      const float4* const at = reinterpret_cast<const float4*>(scores_) + vector_of(tile, 0);
      QSA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        hold(v, __ldg(at + v * kThreads));
      }
      return;
    }
    QSA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      load_vector(vector_of(tile, v), v);
    }
  }

  __device__ __forceinline__ void load_whole_vectors() {
    QSA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t vector = vector_of(0, v);
      float4 four = make_float4(kNoScore, kNoScore, kNoScore, kNoScore);
      if (vector < count_ / kVectorScores) {
        four = __ldg(reinterpret_cast<const float4*>(scores_) + vector);
      }
      hold(v, four);
    }
  }
  // Those behind the whole vectors: fewer than four, and one thread's.
  __device__ __forceinline__ void load_last_scores() {
    const uint32_t last = count_ / kVectorScores;
    if (count_ % kVectorScores == 0 || threadIdx.x != last % kThreads) {
      return;
    }
    QSA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      QSA_UNROLL
      for (uint32_t e = 0; e + 1 < kVectorScores; ++e) {
        if (vector_of(0, v) == last && e < count_ % kVectorScores) {
          held_[v][e] = __ldg(scores_ + last * kVectorScores + e);
        }
      }
    }
  }

  // Consecutive threads hold consecutive vectors.
  __device__ __forceinline__ uint32_t vector_of(uint32_t tile, int v) const {
    return tile * kTileVectors + static_cast<uint32_t>(v) * kThreads + threadIdx.x;
  }

  // Wraps below zero for the elements of the first vector that lie before the row.
  __device__ __forceinline__ uint32_t first_index_of(uint32_t vector) const {
    return vector * kVectorScores - lead_;
  }

  __device__ __forceinline__ void load_vector(uint32_t vector, int v) {
    const uint32_t first = first_index_of(vector);
    if (is_whole(first)) {
      // Signed, so that the four scores are addressed from one register.
      hold(v, __ldg(reinterpret_cast<const float4*>(scores_ + static_cast<int32_t>(first))));
    } else {
      QSA_UNROLL
      for (uint32_t e = 0; e < kVectorScores; ++e) {
        const uint32_t index = first + e;
        held_[v][e] = index < count_ ? __ldg(scores_ + index) : kNoScore;
      }
    }
  }

  __device__ __forceinline__ void hold(int v, const float4& four) {
    held_[v][0] = four.x;
    held_[v][1] = four.y;
    held_[v][2] = four.z;
    held_[v][3] = four.w;
  }

  const float* scores_;
  uint32_t count_;
  uint32_t lead_;  // scores between the 16-byte boundary at or below the row and its first score
  uint32_t vectors_;
  uint32_t loaded_;  // the tile in held_
  float held_[kVectors][kVectorScores];
};

}  // namespace qsa
