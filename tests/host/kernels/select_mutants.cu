// A correct little select and the ways it goes wrong: `mutant` 0 is right, each other number breaks one
// thing. Keeps the `budget` highest of `tokens` scores in [0, 1), ties by ascending index, one row after
// another in a block.
#include "common/portability.cuh"

constexpr unsigned kThreads = 64;
constexpr unsigned kBins = 64;
constexpr unsigned kWords = 16;  // 512 tokens at most

enum Mutant : int64_t {
  kCorrect,
  kPlainBitmap,
  kNoBarrierAfterHistogram,
  kNoTrailingBarrier,
  kWritePastTheEnd,
  kReadPastTheEnd,
  kBitmapNotCleared,
  kPlainHistogram,
  kPlainCounter,
  kEarlyReturn,
  kBallotOfTwenty,
  kDivergentBarrier,
  kEndlessLoop,
  kNoRedundantBarrier,
};

__global__ void little_select_kernel(const float* scores, uint8_t* mask, int32_t* kept, int64_t rows,
                                     int64_t tokens, int64_t budget, int64_t mutant) {
  QSA_SHARED(int32_t, histogram, kBins);
  QSA_SHARED(uint32_t, bitmap, kWords);
  QSA_SHARED(int32_t, cut, 2);  // the bin of the last one kept, and how many of it
  const int64_t thread = threadIdx.x;
  if (mutant == kEarlyReturn && thread >= 50) return;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* mine = scores + row * tokens;
    const auto bin_of = [](float score) { return static_cast<int32_t>(score * kBins); };
    histogram[thread] = 0;
    if (thread < kWords && mutant != kBitmapNotCleared) bitmap[thread] = 0;
    __syncthreads();

    const int64_t last = mutant == kReadPastTheEnd && row == rows - 1 ? tokens + 1 : tokens;
    for (int64_t i = thread; i < last; i += kThreads) {
      const int32_t bin = bin_of(mine[i]) & static_cast<int32_t>(kBins - 1);  // @one-word-past
      if (mutant == kPlainHistogram) {
        histogram[bin] += i < tokens;  // @plain-histogram
      } else {
        atomicAdd(&histogram[bin], i < tokens);
      }
    }
    if (mutant == kBallotOfTwenty && thread < 20) {
      (void)__ballot_sync(0xffffffffu, 1);  // @ballot-of-twenty
    }
    if (mutant == kDivergentBarrier) {
      if (thread < 40) __syncthreads();  // @divergent-select
    } else if (mutant != kNoBarrierAfterHistogram) {
      __syncthreads();
    }

    if (thread == 0) {
      int32_t left = static_cast<int32_t>(budget);
      int32_t bin = kBins - 1;
      while (bin > 0 && histogram[bin] < left) {
        if (mutant != kEndlessLoop) left -= histogram[bin--];
      }
      cut[0] = bin;
      cut[1] = left;
    }
    __syncthreads();
    // Everything above the cut; of the bin itself the lowest indices.
    for (int64_t i = thread; i < tokens; i += kThreads) {
      const int32_t bin = bin_of(mine[i]);
      bool keep = bin > cut[0];
      if (bin == cut[0]) {
        int32_t before = 0;
        for (int64_t j = 0; j < i; ++j) before += bin_of(mine[j]) == bin;
        keep = before < cut[1];
      }
      if (!keep) continue;
      if (mutant == kPlainBitmap) {
        bitmap[i / 32] |= 1u << (i % 32);  // @plain-bitmap
      } else {
        atomicOr(&bitmap[i / 32], 1u << (i % 32));
      }
    }
    __syncthreads();
    if (mutant != kNoRedundantBarrier) __syncthreads();
    for (int64_t i = thread; i < tokens; i += kThreads) {
      mask[row * tokens + i] = static_cast<uint8_t>((bitmap[i / 32] >> (i % 32)) & 1u);
    }
    if (mutant == kWritePastTheEnd && row == rows - 1 && thread == 9)
      mask[rows * tokens] = 0;  // @one-byte-past
    if (thread == 0) {
      if (mutant == kPlainCounter) {
        kept[0] += static_cast<int32_t>(budget);  // @plain-counter
      } else {
        atomicAdd(kept, static_cast<int32_t>(budget));
      }
    }
    if (mutant != kNoTrailingBarrier) __syncthreads();
  }
}

extern "C" int32_t little_select(const float* scores, uint8_t* mask, int32_t* kept, int64_t rows,
                                 int64_t tokens, int64_t budget, int64_t mutant, void* stream) {
  return QSA_LAUNCH(little_select_kernel, 2, kThreads, 0, stream, scores, mask, kept, rows, tokens, budget,
                    mutant);
}
