// Where the pools of a sequence lie, and how many of them a position sees.
//
// A sequence without padding needs no list: pool j is tokens kpool * j .. kpool * j + kpool - 1. With `valid`
// the grid of slots begins at the sequence's first valid key [dsa.first-valid-key], a slot is a pool if all
// its keys are valid, and the pools are listed one after the other [dsa.compacted-list]:
//   first_keys  [batch]                         the first valid key; the live tokens where there is none
//   slots       [batch, pool_capacity + 1, 2]   entry s: the valid keys and the pools before slot s
//   pool_starts [batch, pool_capacity]          entry j: the first token of pool j
// dsa_kpool_compress writes them, every kernel after it reads them here and nowhere else.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "common/status.h"
#include "dsa/geometry.cuh"

namespace qsa {
namespace dsa {

constexpr int kSlotWords = 2;
constexpr int64_t kMostSequences = 65535;  // gridDim.y

struct PoolLists {
  const uint8_t* valid;  // null: every slot holds a key, and the other three are null too
  const int32_t* first_keys;
  const int32_t* slots;
  const int32_t* pool_starts;
  int64_t token_capacity;
  int64_t pool_capacity;
  int32_t kpool;

  __device__ __forceinline__ bool listed() const { return valid != nullptr; }

  __device__ __forceinline__ bool is_key(int64_t sequence, int32_t token) const {
    return valid == nullptr || valid[sequence * token_capacity + token] != 0;
  }

  __device__ __forceinline__ int32_t first_key(int64_t sequence) const {
    return listed() ? first_keys[sequence] : 0;
  }

  __device__ __forceinline__ const int32_t* slot(int64_t sequence, int32_t number) const {
    return slots + (sequence * (pool_capacity + 1) + number) * kSlotWords;
  }

  // Pools whose last token is `position` or before it [dsa.visible-by-last-token].
  __device__ __forceinline__ int32_t pools_seen(int64_t sequence, int32_t position) const {
    const int32_t span = position + 1 - first_key(sequence);
    if (span <= 0) {
      return 0;
    }
    const int32_t whole = whole_pools_of(span, kpool);
    if (!listed()) {
      return whole;
    }
    const int32_t pools = slot(sequence, whole)[1];
    if (pools < 0 || pools > pool_capacity) {
      QSA_TRAP("a sequence lists more pools than pool_capacity holds");
    }
    return pools;
  }

  // Valid keys at `position` and before it.
  __device__ __forceinline__ int32_t keys_seen(int64_t sequence, int32_t position) const {
    const int32_t first = first_key(sequence);
    const int32_t span = position + 1 - first;
    if (span <= 0) {
      return 0;
    }
    if (!listed()) {
      return span;
    }
    const int32_t whole = whole_pools_of(span, kpool);
    int32_t keys = slot(sequence, whole)[0];
    for (int32_t token = first + whole * kpool; token <= position; ++token) {
      keys += is_key(sequence, token) ? 1 : 0;
    }
    return keys;
  }

  __device__ __forceinline__ int32_t start_of(int64_t sequence, int32_t pool) const {
    return listed() ? pool_starts[sequence * pool_capacity + pool] : pool * kpool;
  }
};

// The lists of a kernel that is compiled for sequences with lists and for those without: the latter then have
// nothing of the lists' code to wait for, which a launch that runs its code once does.
template <bool kIsListed>
__device__ __forceinline__ PoolLists known(PoolLists lists) {
  if (!kIsListed) {
    lists.valid = nullptr;
  }
  return lists;
}

// What every entry refuses of a batch of sequences. `tokens` is the live length, or its ceiling.
inline int32_t refuse_sequences(int64_t batch, int64_t tokens, int64_t token_capacity, int64_t pool_capacity,
                                int64_t kpool) {
  const int64_t extents[] = {batch, tokens, token_capacity, pool_capacity};
  for (const int64_t extent : extents) {
    if (extent < 0 || extent > INT32_MAX) {
      return QSA_BAD_EXTENT;
    }
  }
  if (batch > kMostSequences || tokens > token_capacity) {
    return QSA_BAD_EXTENT;
  }
  if (!serves_kpool(kpool)) {
    return QSA_BAD_BUDGET;
  }
  return pool_capacity < tokens / kpool ? QSA_BAD_EXTENT : QSA_OK;
}

// Vectors of 128 bf16 are read in 8 or 16 byte words.
inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace dsa
}  // namespace qsa
