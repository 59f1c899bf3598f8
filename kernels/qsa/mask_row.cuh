// One row of the token mask, or the part of it that is one CTA's, [tokens] u8, as that CTA writes it: zeros
// while it waits for scores and counts them, then ones over them.
//
// [select.every-byte-written] The row is cut at 16-byte boundaries of global memory. Thread t writes chunks
// t, t + kThreads, .. and byte t of what lies before the first boundary and after the last. So the zeros take
// one store for 16 bytes whatever `tokens` is, and a chunk that its owner writes twice needs no barrier
// between.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/select_tiles.cuh"

namespace qsa {

constexpr uint32_t kBlockTokens = 4;  // tokens a block
constexpr uint32_t kFourOnes = 0x01010101u;

// Four mask bytes of which the first `ones` are one.
__device__ __forceinline__ uint32_t leading_ones(int32_t ones) {
  if (ones <= 0) {
    return 0;
  }
  return ones >= 4 ? kFourOnes : kFourOnes >> (8 * (4 - ones));
}

// kWritesVectors: a row of many scores a thread is written once instead, after the threshold is known.
// kIsPlain: the row begins on such a boundary.
template <int kThreads, bool kWritesVectors = false, bool kIsPlain = false>
class MaskRow {
 public:
  __device__ __forceinline__ MaskRow(uint8_t* row, int32_t tokens)
      : row_(row),
        tokens_(tokens),
        lead_(kIsPlain ? 0 : min(tokens, static_cast<int32_t>(-reinterpret_cast<uintptr_t>(row) % kChunk))),
        chunk_(reinterpret_cast<uint4*>(row + lead_)),
        chunks_((tokens - lead_) / kChunk),
        next_(static_cast<int32_t>(threadIdx.x)),
        vectors_(0),
        tail_first_(0),
        tail_(0) {}

  // Before the engine sees this row: settle() sets those of the `count` < 4 tokens from `first` on that lie
  // in this part of it.
  __device__ __forceinline__ void expect_tail(int32_t first, int32_t count) {
    tail_first_ = first;
    tail_ = count;
  }

  // With kWritesVectors, before the engine sees `scores`, those of this row: where every vector of them is a
  // chunk, keep_above() alone writes these, zeros and ones together, and must be called for every tile.
  template <class Scores>
  __device__ __forceinline__ void follow(const Scores& scores) {
    const int32_t vectors = static_cast<int32_t>((scores.count() + kVectorScores - 1) / kVectorScores);
    if (kWritesVectors && lead_ == 0 && scores.is_aligned() && vectors <= chunks_) {
      vectors_ = vectors;
      next_ += (max(vectors - next_, 0) + kThreads - 1) / kThreads * kThreads;
    }
  }

  // What follows up to finish_overlap() is the engine's Output; an element is a block of four tokens.
  // Few blocks are kept one by one, so bytes, which serve every alignment, are as good as words.
  __device__ __forceinline__ void keep(uint32_t block) {
    if (has_whole_words()) {
      set_word(static_cast<int32_t>(block));
    } else {
      set_bytes(static_cast<int32_t>(block));
    }
  }

  template <class Scores>
  __device__ __forceinline__ void keep_above(const Scores& scores, float bar) {
    if (kWritesVectors && vectors_ > 0) {
      scores.for_each_place([&](const float (&score)[kVectorScores], uint32_t first_index) {
        const int32_t vector = static_cast<int32_t>(first_index / kVectorScores);
        if (vector < vectors_) {
          chunk_[vector] = make_uint4(score[0] > bar ? kFourOnes : 0u, score[1] > bar ? kFourOnes : 0u,
                                      score[2] > bar ? kFourOnes : 0u, score[3] > bar ? kFourOnes : 0u);
        }
      });
      return;
    }
    if (kWritesVectors || !has_whole_words()) {
      keep_marked(scores, scores.marks_above(bar));
      return;
    }
    // A comparison and a store under its predicate for every score: no branch.
    const uint32_t ones = in_register(kFourOnes);
    scores.for_each_place([&](const float (&score)[kVectorScores], uint32_t first_index) {
      uint32_t* const words = reinterpret_cast<uint32_t*>(row_) + static_cast<int32_t>(first_index);
      QSA_UNROLL
      for (uint32_t e = 0; e < kVectorScores; ++e) {
        if (score[e] > bar) {
          words[e] = ones;
        }
      }
    });
  }

  template <class Scores>
  __device__ __forceinline__ void keep_marked(const Scores& scores, uint32_t marks) {
    QSA_ROLLED
    while (marks != 0) {
      keep(scores.index_of_mark(take_mark(marks)));
    }
  }

  // Clears one more chunk. One SM stores about 33 bytes a clock, so 64 KB of zeros last longer than the
  // histogram of their scores: they are handed out a vector at a time, between its atomics and during waits
  // for loads.
  __device__ __forceinline__ void overlap() {
    if (next_ < chunks_) {
      clear_chunk(next_);
      next_ += kThreads;
    }
  }

  // Clears the other chunks.
  __device__ __forceinline__ void finish_overlap() {
    QSA_ROLLED
    for (; next_ < chunks_; next_ += kThreads) {
      clear_chunk(next_);
    }
  }

  // Clears what lies outside whole chunks.
  __device__ __forceinline__ void clear_ends() { write_ends(0); }

  // Writes the whole row: `ones` ones, then zeros.
  __device__ __forceinline__ void write(int32_t ones) {
    QSA_ROLLED
    for (int32_t chunk = static_cast<int32_t>(threadIdx.x); chunk < chunks_; chunk += kThreads) {
      if (chunk_begin(chunk) < ones) {
        store_leading_ones(chunk, ones - chunk_begin(chunk));
      } else {
        clear_chunk(chunk);
      }
    }
    write_ends(ones);
  }

  // Sets the tail, over zeros that a barrier stands behind.
  __device__ __forceinline__ void settle() {
    const int32_t i = static_cast<int32_t>(threadIdx.x);
    const int32_t token = tail_first_ + i;
    if (i < tail_ && token >= 0 && token < tokens_) {
      row_[token] = 1;
    }
  }

 private:
  static constexpr int32_t kChunk = 16;

  // Whether the four bytes of every block are one aligned word.
  __device__ __forceinline__ bool has_whole_words() const {
    return kIsPlain || reinterpret_cast<uintptr_t>(row_) % sizeof(uint32_t) == 0;
  }

  __device__ __forceinline__ void set_word(int32_t block) {
    reinterpret_cast<uint32_t*>(row_)[block] = kFourOnes;
  }

  __device__ __forceinline__ void set_bytes(int32_t block) {
    uint8_t* const first = row_ + static_cast<int64_t>(block) * kBlockTokens;
    QSA_UNROLL
    for (uint32_t token = 0; token < kBlockTokens; ++token) {
      first[token] = 1;
    }
  }

  __device__ __forceinline__ int32_t chunk_begin(int32_t chunk) const { return lead_ + chunk * kChunk; }

  __device__ __forceinline__ void clear_chunk(int32_t chunk) { chunk_[chunk] = make_uint4(0, 0, 0, 0); }

  __device__ __forceinline__ void store_leading_ones(int32_t chunk, int32_t ones) {
    chunk_[chunk] = make_uint4(leading_ones(ones), leading_ones(ones - 4), leading_ones(ones - 8),
                               leading_ones(ones - 12));
  }

  // The bytes outside whole chunks; both ends are shorter than a chunk.
  __device__ __forceinline__ void write_ends(int32_t ones) {
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    if (!kIsPlain && thread < lead_) {
      row_[thread] = thread < ones ? 1 : 0;
    }
    const int32_t token = chunk_begin(chunks_) + thread;
    if (token < tokens_) {
      row_[token] = token < ones ? 1 : 0;
    }
  }

  uint8_t* row_;
  int32_t tokens_;
  int32_t lead_;     // bytes before the first 16-byte boundary
  uint4* chunk_;     // the first whole chunk
  int32_t chunks_;   // whole chunks of 16 bytes from there on
  int32_t next_;     // the next chunk of this thread's to clear
  int32_t vectors_;  // chunks that keep_above() writes
  int32_t tail_first_;
  int32_t tail_;
};

}  // namespace qsa
