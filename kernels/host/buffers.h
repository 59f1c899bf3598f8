// The memory a kernel may touch: registered buffers, and the shared arrays of the resident CTAs.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

namespace qsa::host {

constexpr uint32_t kMaxClusterSize = 16;

struct Cell;

// The checker's bookkeeping of one piece of memory; see checker.cpp. Null where nothing has to be kept.
struct Shadow {
  Cell* words = nullptr;  // one cell for every aligned four bytes
  Cell* bytes = nullptr;  // and one for every byte, used where the bytes of a word differ
};

struct Buffer {
  uintptr_t begin;
  uintptr_t end;
  uint32_t flags;
  std::string name;
  Shadow shadow;
};

// In ascending order, never overlapping.
extern std::vector<Buffer> buffers;

void register_buffer(uintptr_t begin, uint64_t bytes, uint32_t flags, const char* name);
void forget_buffers();
// Changes whenever a buffer comes or goes; never zero.
uint64_t buffers_generation();
// The buffer that contains the address, or null.
Buffer* find_buffer(uintptr_t address);

// An address in words.
struct Place {
  std::string name;    // of the nearest buffer or array; empty: there is none at all
  int64_t offset = 0;  // from its start
  std::string text;    // "12 bytes past the end of scores", never empty
};
Place nearest_place(const void* address);

// --- the shared arena, one of equal size for every resident CTA ---
struct ArenaArray {
  const char* name;
  uint32_t offset;  // in the arena
  uint32_t bytes;
};

// The arena's bytes for one CTA. A block's largest, the gaps between arrays, and slack that absorbs a near
// miss.
constexpr uint64_t kArenaBytes = 512 * 1024;

constexpr uint32_t kArenaAlignment = 16;
constexpr uint32_t kMaxArenaArrays = 255;

struct Arena {
  unsigned char* space;  // one arena after another
  Shadow shadow;         // of all of them
  // The arrays of this launch, in ascending order; the dynamic region is the first.
  ArenaArray arrays[kMaxArenaArrays];
  uint32_t array_count;
  // 1 + index into arrays for every 16 bytes of an arena; 0: a gap.
  uint8_t array_at[kArenaBytes / kArenaAlignment];

  unsigned char* base(uint32_t rank) const { return space + rank * kArenaBytes; }
  // The rank of the CTA whose arena contains the address, or -1.
  int64_t owner(uintptr_t address) const {
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(space);
    return space == nullptr || offset >= kArenaBytes * kMaxClusterSize
               ? -1
               : static_cast<int64_t>(offset / kArenaBytes);
  }
  // The array that contains all these bytes, or null.
  const ArenaArray* find(uint64_t offset, uint64_t bytes) const {
    const uint8_t number = array_at[offset / kArenaAlignment];
    if (number == 0) return nullptr;
    const ArenaArray& array = arrays[number - 1];
    return offset + bytes <= uint64_t{array.offset} + array.bytes ? &array : nullptr;
  }
};
extern Arena arena;

}  // namespace qsa::host
