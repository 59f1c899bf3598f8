// The live geometry of a launch: how many tokens there are now, and what follows from them.
//
// A launch that is captured in a CUDA graph keeps its scalars for good, so they are ceilings; what changes
// from step to step stands in five int32 on the device. They hang together, and a buffer in which they do
// not was never written, or written for another checkpoint: it traps [dsa.geometry-holds-together].
#pragma once

#include <cstdint>

#include "common/portability.cuh"

#if QSA_HOST
#define DSA_UNROLL
#define DSA_ROLLED
#else
#define DSA_UNROLL _Pragma("unroll")
#define DSA_ROLLED _Pragma("unroll 1")
#endif

namespace qsa {
namespace dsa {

constexpr int kLiveTokens = 0;
constexpr int kLivePools = 1;   // the incomplete one included
constexpr int kWholePools = 2;  // the complete ones
constexpr int kSelectTile = 3;  // scores of a row that are read in whole vectors of four
constexpr int kSelectK = 4;     // pools kept
constexpr int kGeometryWords = 5;

constexpr int32_t kTileScores = 4;

// 4 or 16 tokens a pool; everything else is refused.
inline bool serves_kpool(int64_t kpool) { return kpool == 4 || kpool == 16; }

// kpool is 2 to the power of this. A division would be what many a launch waits for longest after its loads.
__host__ __device__ __forceinline__ int32_t pool_shift_of(int32_t kpool) { return kpool == 4 ? 2 : 4; }

// Of a count that is not negative.
__host__ __device__ __forceinline__ int32_t whole_pools_of(int32_t tokens, int32_t kpool) {
  return tokens >> pool_shift_of(kpool);
}

__host__ __device__ __forceinline__ int32_t select_tile_of(int32_t whole_pools) {
  return (whole_pools + kTileScores - 1) & ~(kTileScores - 1);
}

// The five words, on their way at once: a launch waits for them once. Zeros where no geometry is given.
struct LiveWords {
  int32_t of[kGeometryWords];
};

__device__ __forceinline__ LiveWords load_words(const int32_t* geometry) {
  LiveWords words;
  DSA_UNROLL
  for (int word = 0; word < kGeometryWords; ++word) {
    words.of[word] = geometry != nullptr ? __ldg(geometry + word) : 0;
  }
  return words;
}

// The live token count: `ceiling` where no geometry is given. It lies in 0 .. ceiling whatever the words are,
// so that a launch can load by it first and call trap_if_wrong() while it waits: judged before that, the
// words held up a single row's scores for 250 clocks.
__device__ __forceinline__ int32_t live_tokens(const LiveWords& words, const int32_t* geometry,
                                               int32_t ceiling) {
  return geometry == nullptr ? ceiling : max(0, min(words.of[kLiveTokens], ceiling));
}

// Every kernel that reads the words calls it.
__device__ __forceinline__ void trap_if_wrong(const LiveWords& words, const int32_t* geometry,
                                              int32_t ceiling, int32_t kpool) {
  if (geometry == nullptr) {
    return;
  }
  const int32_t tokens = words.of[kLiveTokens];
  const int32_t whole = whole_pools_of(tokens, kpool);
  const int32_t partial = (tokens & (kpool - 1)) == 0 ? 0 : 1;
  if (tokens < 0 || tokens > ceiling) {
    QSA_TRAP("the geometry's tokens are outside 0 .. the launch's ceiling");
  }
  if (words.of[kWholePools] != whole || words.of[kLivePools] != whole + partial ||
      words.of[kSelectTile] != select_tile_of(whole)) {
    QSA_TRAP("the geometry's words contradict one another");
  }
}

}  // namespace dsa
}  // namespace qsa
