// A paged cache of keys and values, and where in it a token lies. Shared by what copies tokens out of it and
// by what attends to it, so that an address can't be computed by two rules.
//
// Keys and values are bf16 in NHD order: page, token of the page, KV head, dim. Both have the same strides.
// Page ids reach 2^31 - 1, so an offset is 64-bit from the page's id on.
#pragma once

#include <cstdint>

#include "common/portability.cuh"

namespace qsa {

constexpr int kLeastPageTokens = 8;
constexpr int kVectorDims = 8;  // bf16 in 16 bytes

struct PagedCache {
  const uint16_t* keys;
  const uint16_t* values;
  const int32_t* block_table;  // [sequences, table_pages] page ids
  int64_t page_count;          // pages there are
  int64_t page_stride;         // elements from one page to the next
  int64_t table_pages;
  int32_t page_tokens;
  int32_t token_stride;  // elements from one token of a page to the next: all its KV heads
};

// Elements from the base of keys (and of values) to the token's first.
// Traps where the table has no entry for the token, or an entry that names no page.
__device__ __forceinline__ int64_t token_offset(const PagedCache& cache, int64_t sequence, int32_t token) {
  const int32_t slot = token / cache.page_tokens;
  if (token < 0 || slot >= cache.table_pages) {
    QSA_TRAP("a token behind the block table");
  }
  const int64_t page = __ldg(cache.block_table + sequence * cache.table_pages + slot);
  if (page < 0 || page >= cache.page_count) {
    QSA_TRAP("an entry of the block table names no page");
  }
  const int32_t within = token % cache.page_tokens;
  return page * cache.page_stride + static_cast<int64_t>(within) * cache.token_stride;
}

// Whether the extents can describe a cache; what the C entries refuse otherwise.
inline bool is_paged_cache(int64_t page_count, int64_t page_stride, int64_t page_tokens, int64_t table_pages,
                           int64_t kv_heads, int64_t head_dim) {
  constexpr int64_t kMostPages = int64_t{1} << 31;
  if (page_count < 0 || page_count > kMostPages || table_pages < 0 || table_pages > INT32_MAX ||
      page_tokens < kLeastPageTokens || page_tokens > INT32_MAX || kv_heads < 1 || head_dim < 1 ||
      kv_heads > INT32_MAX / head_dim) {
    return false;
  }
  return page_stride >= page_tokens * kv_heads * head_dim;
}

}  // namespace qsa
