// Tiles of keys and values on their way from a paged cache to the tensor cores: a ring of them in shared
// memory, a warp's own.
//
// A tile is 16 tokens of one KV head, 512 bytes each. Attention over selected tokens is limited by how many
// bytes are under way: while a warp works on one tile, the next two are being copied. Eight lanes ask for a
// whole 128-byte line of a token, so nothing is requested twice.
//
// A token's 32 vectors of 16 bytes stand swizzled within each eight of them, so that no two lanes that read
// at once meet in a bank, neither the rows g of a key tile nor the tokens 2t of a value tile.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/paged_cache.cuh"

namespace qsa {
namespace attention {

constexpr int kDims = 256;
constexpr int kTileTokens = 16;
constexpr int kTokenVectors = kDims / kVectorDims;  // of 16 bytes
constexpr int kTileVectors = kTileTokens * kTokenVectors;
constexpr int kRingTiles = 3;
constexpr int kLineVectors = 8;  // 128 bytes
constexpr int kTokensAtOnce = kWarpLanes / kLineVectors;

// A warp's tiles in shared memory.
struct Ring {
  uint4 tile[kRingTiles][kTileVectors];
};

// Where vector v of a tile's token stands.
__device__ __forceinline__ int place_of(int token, int vector) {
  const int swizzle = (token / 2 * 2 ^ token * 4) & 6;
  return token * kTokenVectors + (vector ^ swizzle);
}

// The elements at which the tokens of the list from `first` on begin, for this KV head: lane i holds token
// i's. Past the list it is the last token's: it is copied again and counts for nothing.
template <class Tokens>
__device__ __forceinline__ int64_t tile_offsets(const PagedCache& cache, const Tokens& tokens,
                                                int64_t sequence, int32_t first, int kv_head, int lane) {
  const int32_t index = min(first + lane % kTileTokens, tokens.count - 1);
  return token_offset(cache, sequence, tokens.at(index)) + kv_head * kDims;
}

__device__ __forceinline__ int64_t offset_of(int64_t offsets, int token) {
  const uint32_t low = __shfl_sync(kFullWarp, static_cast<uint32_t>(offsets), token);
  const uint32_t high = __shfl_sync(kFullWarp, static_cast<uint32_t>(offsets >> 32), token);
  return static_cast<int64_t>((static_cast<uint64_t>(high) << 32) | low);
}

// Begins the copy of a tile; it is there once the warp has waited for its group and met at a __syncwarp.
__device__ __forceinline__ void copy_tile(uint4* tile, const uint16_t* base, int64_t offsets, int lane) {
  const int vector = lane % kLineVectors;
  for (int first = 0; first < kTileTokens; first += kTokensAtOnce) {
    const int token = first + lane / kLineVectors;
    const uint16_t* from = base + offset_of(offsets, token) + vector * kVectorDims;
    uint4* to = tile + place_of(token, vector);
    for (int line = 0; line < kTokenVectors; line += kLineVectors) {
      async_copy16(to + line, from + line * kVectorDims);
    }
  }
}

}  // namespace attention
}  // namespace qsa
