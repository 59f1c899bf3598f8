// Shared memory: one arena for every resident CTA, with the dynamic region and each static array at the same
// offset in all of them. Gaps lie between the arrays, so an access past one of them is past the end, not in
// the next.
#include <sys/mman.h>

#include <algorithm>

#include "host/buffers.h"
#include "host/checker.h"
#include "host/findings.h"
#include "host/runtime.h"

namespace qsa::host {

namespace {

constexpr uint32_t kGap = 256;                   // between arrays
constexpr uint32_t kSlack = 64 * 1024;           // before the first one; behind the last one is more
constexpr uint64_t kMaxStaticBytes = 48 * 1024;  // ptxas refuses more

uint32_t next_offset;
uint64_t static_bytes;
uint64_t cta_number;  // since the reset

uint32_t round_up(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment);
}

// Fresh shared memory holds what was there before. Different for every CTA, so that nothing left over is ever
// right.
void fill_with_junk(unsigned char* begin, uint64_t bytes) {
  uint64_t value = mix(mix(options.seed) + cta_number);
  for (uint64_t i = 0; i < round_up(bytes); i += 8) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    __builtin_memcpy(begin + i, &value, 8);
  }
}

void add_array(const char* name, uint64_t bytes) {
  arena.arrays[arena.array_count] = ArenaArray{name, next_offset, static_cast<uint32_t>(bytes)};
  ++arena.array_count;
  std::fill_n(arena.array_at + next_offset / kArenaAlignment, round_up(bytes) / kArenaAlignment,
              static_cast<uint8_t>(arena.array_count));
  next_offset += round_up(bytes) + kGap;
}

}  // namespace

Arena arena;

void arena_reset() { cta_number = 0; }

bool arena_prepare() {
  constexpr uint64_t kBytes = kMaxClusterSize * kArenaBytes;
  if (arena.space == nullptr) {
    void* mapped =
        mmap(nullptr, kBytes + 2 * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return false;
    if (mprotect(static_cast<unsigned char*>(mapped) + kPageBytes, kBytes, PROT_READ | PROT_WRITE) != 0)
      return false;
    arena.space = static_cast<unsigned char*>(mapped) + kPageBytes;
  }
  if (kChecked && arena.shadow.words == nullptr) {
    arena.shadow = checker::allocate(kBytes, "shared memory");
    if (arena.shadow.words == nullptr) return false;
  }
  std::fill_n(arena.array_at, next_offset / kArenaAlignment, uint8_t{0});
  arena.array_count = 0;
  static_bytes = 0;
  next_offset = kSlack;
  add_array("dynamic shared memory", launch_state.shape.dynamic_bytes);
  return true;
}

void arena_start(Cta& cta) {
  cta.arena = arena.base(cta.rank);
  ++cta_number;
  for (uint32_t i = 0; i < arena.array_count; ++i) {
    fill_with_junk(cta.arena + arena.arrays[i].offset, arena.arrays[i].bytes);
  }
}

void* shared_array(SharedArray* array) {
  if (array->launch != launch_state.number) {
    // First use in this launch: every resident CTA gets the array, at the same place.
    static_bytes += round_up(array->bytes);
    const uint64_t dynamic = launch_state.shape.dynamic_bytes;
    if (static_bytes > kMaxStaticBytes || static_bytes + dynamic > max_shared_bytes() ||
        arena.array_count == kMaxArenaArrays) {
      report(finding_here("launch-limit",
                          format("%llu bytes of static shared memory, with %s, and %llu of dynamic",
                                 static_cast<unsigned long long>(static_bytes), array->name,
                                 static_cast<unsigned long long>(dynamic))));
      abandon_launch(QSA_HOST_LAUNCH_LIMIT);
    }
    array->launch = launch_state.number;
    array->offset = next_offset;
    add_array(array->name, array->bytes);
    for (uint32_t rank = 0; rank < launch_state.shape.cluster; ++rank) {
      fill_with_junk(arena.base(rank) + array->offset, array->bytes);
    }
  }
  return current->cta->arena + array->offset;
}

void* dynamic_shared(const char* name) {
  arena.arrays[0].name = name;
  return current->cta->arena + arena.arrays[0].offset;
}

}  // namespace qsa::host
