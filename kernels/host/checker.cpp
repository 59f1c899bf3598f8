// Which accesses of a kernel are wrong: races, uninitialised reads, writes to inputs, anything out of bounds.
//
// Two accesses to a byte, one of them a write, are a race unless both are atomic or one is ordered before the
// other:
//   - same thread;
//   - same CTA, with a __syncthreads between, or same cluster, with a cluster barrier between;
//   - same warp, with a __syncwarp between that names both lanes. Shuffles and ballots order nothing.
// CTAs of one launch are never ordered otherwise; a launch is ordered after those before it. Fences and flags
// order nothing either: a hand-over between CTAs inside one launch is reported, though a GPU may allow it.
#include "host/checker.h"

#if QSA_HOST_CHECKED

#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "host/access.h"
#include "host/crash.h"
#include "host/findings.h"
#include "host/overwritten.h"

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));

namespace qsa::host {

// What is remembered of a byte: its last write, and up to three reads since then that are not ordered with
// each other. A write is compared with all of them. Of a CTA three suffice: a fourth reader is forgotten only
// when the three already stand for two warps, or for three lanes of its own. Of a cluster's CTAs each has a
// place, up to three. A last atomic that is not ordered with those of other CTAs before it leaves them in
// these places too, with their kAtomic.
struct Cell {
  uint64_t write;
  uint64_t reads[3];
};

namespace checker {

namespace {

// In a word's cell in place of a write: the word's four bytes differ, look at their own cells.
constexpr Stamp kSplit = 1;

struct ThreadClock {
  Stamp now;          // the stamp of an access this thread makes now
  uint32_t acquired;  // accesses of its CTA with a smaller epoch are ordered before it
};

// known[i][j]: lane i is ordered after what lane j did at smaller clocks.
struct WarpClock {
  uint16_t known[kWarpSize][kWarpSize];
};

std::vector<ThreadClock> threads;  // by Fiber::stack
std::vector<WarpClock> warps;      // kMaxWarps for every rank
std::vector<uint64_t> blocks;      // the block of every CTA of this launch, by serial - launch_first
uint32_t next_serial = 1;
uint32_t launch_first;  // the first serial of this launch
uint32_t group_first;   // and of the resident CTAs
// The epoch from which on a thread's accesses were after its arrival at a cluster barrier, by barrier mod 4.
struct Released {
  uint32_t from[4];
};
std::vector<Released> released;  // by Fiber::stack
uint32_t cta_threads;

Overwritten overwritten;

WarpClock& clock_of_warp(const Fiber& fiber) {
  return warps[fiber.cta->rank * kMaxWarps + fiber.index / kWarpSize];
}

// Counters that ran out would make the checker wrong without a word.
[[noreturn]] void out_of_numbers(const char* what) {
  report(finding_here("launch-limit", format("too many %s for the checked mode: use a smaller case", what)));
  abandon_launch(QSA_HOST_LAUNCH_LIMIT);
}

void stamp_thread(const Fiber& fiber, uint32_t epoch, uint32_t clock) {
  if (epoch >= 1u << kEpochBits) out_of_numbers("barriers in a block");
  if (clock >= (1u << kClockBits) - 1) out_of_numbers("__syncwarps between two barriers");
  threads[fiber.stack].now = (Stamp{group_first + fiber.cta->rank} << kSerialShift) |
                             (Stamp{fiber.index} << kThreadShift) | (Stamp{epoch} << kEpochShift) |
                             (Stamp{clock} << kClockShift);
}

// The running thread, and what its accesses are compared with.
struct Self {
  Stamp now;
  uint32_t acquired;
  const Fiber* fiber;
  bool shared;  // the access is to shared memory: a CTA finds it fresh, whatever earlier ones did there

  bool after(Stamp other) const {
    const uint32_t serial = serial_of(other);
    if (serial == serial_of(now)) {
      if (epoch_of(other) < acquired) return true;
      const uint32_t thread = thread_of(other);
      if (thread == fiber->index && (other & kSeveral) == 0) return true;
      if (thread / kWarpSize == fiber->index / kWarpSize &&
          clock_of(other) < clock_of_warp(*fiber).known[fiber->lane][thread % kWarpSize])
        return true;
      return launch_state.shape.cluster > 1 && met(other);
    }
    if (serial < (shared ? group_first : launch_first)) return true;
    return serial >= group_first && met(other);
  }

  // Before its thread arrived at the last cluster barrier that this one has waited for.
  bool met(Stamp other) const {
    const uint32_t waits = launch_state.states[fiber->stack].cluster_waits;
    const uint32_t stack = (serial_of(other) - group_first) * cta_threads + thread_of(other);
    return waits != 0 && epoch_of(other) < released[stack].from[waits % 4];
  }
};

struct Conflict {
  Stamp with = 0;
  bool wrote = false;
};

uint32_t warp_of(Stamp stamp) { return static_cast<uint32_t>(stamp >> (kThreadShift + 5)); }  // CTA and warp

// Of places that are all taken: the last that a CTA has beside another, for one that has none yet.
Stamp* place_of_another(Cell& cell, Stamp now) {
  Stamp* place = nullptr;
  for (uint32_t i = 0; i < 3; ++i) {
    if (serial_of(cell.reads[i]) == serial_of(now)) return nullptr;
    for (uint32_t j = 0; j < i; ++j) {
      if (serial_of(cell.reads[i]) == serial_of(cell.reads[j])) place = &cell.reads[i];
    }
  }
  return place;
}

void remember_read(Cell& cell, const Self& self) {
  Stamp* place = nullptr;
  for (Stamp& read : cell.reads) {
    if ((read & kAtomic) != 0) continue;
    if (read == 0 || self.after(read)) {
      // What is ordered before this read adds nothing to it.
      read = 0;
      if (place == nullptr) place = &read;
    }
  }
  if (place == nullptr && launch_state.shape.cluster > 1) place = place_of_another(cell, self.now);
  if (place != nullptr) {
    *place = self.now;
    return;
  }
  const uint32_t warp = warp_of(cell.reads[0]);
  const bool one_warp = warp == warp_of(cell.reads[1]) && warp == warp_of(cell.reads[2]);
  if (one_warp && warp != warp_of(self.now)) cell.reads[2] = self.now;
}

// An array of shared memory is as good as never written until one of the resident CTAs has.
bool never_written(const Cell& cell, const Self& self) {
  return cell.write == 0 || (self.shared && serial_of(cell.write) < group_first);
}

Conflict read_cell(Cell& cell, const Self& self, bool& uninitialised) {
  if (cell.write == self.now || cell.reads[0] == self.now) return Conflict{};
  Conflict conflict;
  if (cell.write == 0 || (self.shared && serial_of(cell.write) < group_first)) {
    uninitialised = true;
  } else if (!self.after(cell.write)) {
    conflict = Conflict{cell.write, true};
  } else if ((cell.write & kSeveral) != 0) {
    for (const Stamp other : cell.reads) {
      if ((other & kAtomic) != 0 && !self.after(other)) conflict = Conflict{other, true};
    }
  }
  remember_read(cell, self);
  return conflict;
}

Conflict write_cell(Cell& cell, const Self& self, Access kind, bool& uninitialised) {
  const bool atomic = kind != Access::kWrite;
  if (!atomic && cell.write == self.now && (cell.reads[0] | cell.reads[1] | cell.reads[2]) == 0)
    return Conflict{};
  Conflict conflict;
  Stamp others[3] = {};  // atomics of other CTAs that are not ordered with this one
  uint32_t count = 0;
  for (const Stamp read : cell.reads) {
    if (read == 0 || self.after(read)) continue;
    if (atomic && (read & kAtomic) != 0) {
      if (serial_of(read) != serial_of(self.now)) others[count++] = read;
    } else {
      conflict = Conflict{read, (read & kAtomic) != 0};
    }
  }
  if (kind == Access::kAtomicUpdate && never_written(cell, self)) uninitialised = true;
  Stamp now = self.now | (atomic ? kAtomic : 0);
  if (cell.write != 0 && !self.after(cell.write)) {
    if (!atomic || (cell.write & kAtomic) == 0) {
      conflict = Conflict{cell.write, true};
    } else {
      now |= kSeveral;
      const bool is_resident = serial_of(cell.write) >= group_first;
      if (is_resident && serial_of(cell.write) != serial_of(self.now) && count < 3)
        others[count++] = cell.write;
    }
  }
  cell = Cell{now, {others[0], others[1], others[2]}};
  return conflict;
}

// An access inside one buffer or array. `offset` is the access's place in the shadow, `target` in the buffer.
void access_cells(const Shadow& shadow, uint64_t offset, uint64_t bytes, Access kind, const Self& self,
                  Target target, bool may_be_uninitialised, Origin origin) {
  bool uninitialised = false;
  Conflict conflict;
  const auto touch = [&](Cell& cell) {
    const Conflict found = kind == Access::kRead ? read_cell(cell, self, uninitialised)
                                                 : write_cell(cell, self, kind, uninitialised);
    if (found.with != 0) conflict = found;
  };
  const uint64_t end = offset + bytes;
  while (offset < end) {
    Cell& word = shadow.words[offset / 4];
    const uint64_t stop = std::min(end, (offset | 3) + 1);
    Cell* own = shadow.bytes + (offset & ~uint64_t{3});
    if (stop - offset == 4) {
      if (word.write != kSplit) {
        touch(word);
      } else {
        for (uint32_t i = 0; i < 4; ++i) touch(own[i]);
        if (kind != Access::kRead) word = own[0];  // the four bytes have one history again
      }
    } else {
      if (word.write != kSplit) {
        std::fill_n(own, 4, word);
        word.write = kSplit;
      }
      for (uint64_t i = offset; i < stop; ++i) touch(shadow.bytes[i]);
    }
    offset = stop;
  }
  if (uninitialised && may_be_uninitialised) report_uninitialised(target, bytes, origin);
  if (conflict.with != 0) report_race(target, bytes, kind, origin, conflict.with, conflict.wrote);
}

void outside(uintptr_t address, uint64_t bytes, Access kind, Origin origin, const char* what) {
  report_bounds(address, bytes, kind, origin, what);
  if (kind == Access::kRead) return;
  const Probe probe(origin.code);
  if (!overwritten.keep(address, bytes)) abandon_launch(QSA_HOST_TRAPPED);
}

void access_arena(int64_t owner, uintptr_t address, uint64_t bytes, Access kind, Origin origin) {
  const uint32_t rank = static_cast<uint32_t>(owner);
  const uint64_t offset = address - reinterpret_cast<uintptr_t>(arena.base(rank));
  const ArenaArray* array = rank < launch_state.shape.cluster ? arena.find(offset, bytes) : nullptr;
  if (array == nullptr) {
    report_bounds(address, bytes, kind, origin, "");  // the gap absorbs it
    return;
  }
  const Fiber& fiber = *current;
  if (rank != fiber.cta->rank) {
    const Cta& cta = launch_state.ctas[rank];
    if (cta.live == 0) report_bounds(address, bytes, kind, origin, ", of a block that has returned");
    if (!cta.started) report_bounds(address, bytes, kind, origin, ", of a block that has not started");
  }
  const ThreadClock& clock = threads[fiber.stack];
  access_cells(arena.shadow, rank * kArenaBytes + offset, bytes, kind,
               Self{clock.now, clock.acquired, &fiber, true},
               Target{array->name, static_cast<int64_t>(offset - array->offset)}, true, origin);
}

void access_buffer(const Buffer& buffer, uintptr_t address, uint64_t bytes, Access kind, Origin origin) {
  const Target target{buffer.name.c_str(), static_cast<int64_t>(address - buffer.begin)};
  if (kind != Access::kRead && (buffer.flags & QSA_HOST_READ_ONLY) != 0)
    report_read_only(target, bytes, origin);
  if (buffer.shadow.words == nullptr) return;
  const Fiber& fiber = *current;
  const ThreadClock& clock = threads[fiber.stack];
  access_cells(buffer.shadow, address - (buffer.begin & ~uintptr_t{3}), bytes, kind,
               Self{clock.now, clock.acquired, &fiber, false}, target,
               (buffer.flags & QSA_HOST_INITIALISED) == 0, origin);
}

// The runtime's own accesses: 16 bytes, aligned, and one side in the block's shared memory.
void access_wide(CallSite site, const void* pointer, Access kind, bool in_shared) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const Origin origin{nullptr, &site};
  const bool own_arena = arena.owner(address) == static_cast<int64_t>(current->cta->rank);
  if (own_arena != in_shared) {
    report_bounds(address, 16, kind, origin,
                  in_shared ? ", not in the block's shared memory" : ", not in global memory");
  } else if (address % 16 != 0) {
    report_misaligned(address, 16, kind, origin);
  } else {
    access(address, 16, kind, origin);
  }
}

uint64_t cells(uint64_t bytes) { return bytes / 4 * 4 + 8; }  // whole words, whatever the buffer's alignment

}  // namespace

void access(uintptr_t address, uint64_t bytes, Access kind, Origin origin) {
  const int64_t owner = arena.owner(address);
  if (owner >= 0) {
    access_arena(owner, address, bytes, kind, origin);
    return;
  }
  static const Buffer* last = nullptr;  // most accesses go where the one before went
  static uint64_t last_generation = 0;
  if (last_generation != buffers_generation() || address - last->begin >= last->end - last->begin) {
    last = find_buffer(address);
    last_generation = last == nullptr ? 0 : buffers_generation();
  }
  if (last_generation != 0) {
    if (address + bytes <= last->end) {
      access_buffer(*last, address, bytes, kind, origin);
    } else {
      outside(address, bytes, kind, origin, "");
    }
    return;
  }
  if (stacks.owner(reinterpret_cast<const void*>(address)) >= 0) {
    outside(address, bytes, kind, origin, ", in another thread's local memory");
    return;
  }
  if (address - reinterpret_cast<uintptr_t>(launch_state.arguments) < launch_state.argument_bytes) return;
  const uintptr_t image = reinterpret_cast<uintptr_t>(&__ehdr_start);
  if (address >= image && address < reinterpret_cast<uintptr_t>(&_end)) {
    if (kind == Access::kRead) return;  // constants
    outside(address, bytes, kind, origin, ", in a global variable of the library: keep state in buffers");
    return;
  }
  outside(address, bytes, kind, origin, "");
}

Shadow allocate(uint64_t bytes, const char* name) {
  const auto map = [](uint64_t count) {
    void* cells = mmap(nullptr, count * sizeof(Cell), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return cells == MAP_FAILED ? nullptr : static_cast<Cell*>(cells);
  };
  Shadow shadow{map(cells(bytes) / 4), map(cells(bytes))};
  if (shadow.words == nullptr || shadow.bytes == nullptr) {
    report(finding_here("launch-limit", format("no memory to check %s: use a smaller case", name)));
    release(shadow, bytes);
  }
  return shadow;
}

void release(Shadow& shadow, uint64_t bytes) {
  if (shadow.words != nullptr) munmap(shadow.words, cells(bytes) / 4 * sizeof(Cell));
  if (shadow.bytes != nullptr) munmap(shadow.bytes, cells(bytes) * sizeof(Cell));
  shadow = Shadow{};
}

void reset() {
  forget_reports();
  // Serial numbers go on, so that no older stamp can be taken for one of this run; halfway through them
  // everything starts afresh. (Buffers' bookkeeping went with the buffers.)
  if (next_serial >> (kSerialBits - 1) == 0) return;
  release(arena.shadow, kMaxClusterSize * kArenaBytes);
  next_serial = 1;
}

void start_launch() {
  launch_first = next_serial;
  blocks.clear();
  threads.resize(std::max<size_t>(threads.size(), launch_state.threads));
  warps.resize(size_t{kMaxClusterSize} * kMaxWarps);
  released.resize(threads.size());
  cta_threads = launch_state.threads / launch_state.shape.cluster;
}

void end_launch() { overwritten.put_back(); }

bool start_group(uint64_t first_block) {
  const uint32_t size = launch_state.shape.cluster;
  if ((next_serial + size - 1) >> kSerialBits != 0) {
    report(finding_here("launch-limit",
                        "too many blocks since the reset for the checked mode: use a smaller case"));
    return false;
  }
  group_first = next_serial;
  next_serial += size;
  for (uint32_t rank = 0; rank < size; ++rank) blocks.push_back(first_block + rank);
  if (size > 1) std::fill(released.begin(), released.end(), Released{});
  return true;
}

void start_cta(Cta& cta) {
  for (uint32_t i = 0; i < cta.threads; ++i) {
    threads[cta.fibers[i].stack].acquired = 0;
    stamp_thread(cta.fibers[i], 0, 0);
  }
  memset(&warps[cta.rank * kMaxWarps], 0, cta.warps.size() * sizeof(WarpClock));
}

uint3 block_of(uint32_t serial) {
  const uint64_t linear = blocks[serial - launch_first];
  const dim3 grid = launch_state.shape.grid;
  return uint3{static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
               static_cast<unsigned>(linear / grid.x / grid.y)};
}

// With a CTA goes its shared memory: whatever others did there must be ordered before its end.
void end_cta(const Cta& cta) {
  const ThreadClock& clock = threads[current->stack];
  const Self self{clock.now, clock.acquired, current, true};
  const auto is_late = [&](Stamp other) {
    return serial_of(other) >= group_first && serial_of(other) != serial_of(self.now) && !self.after(other);
  };
  for (uint32_t i = 0; i < arena.array_count; ++i) {
    const ArenaArray& array = arena.arrays[i];
    const auto judge = [&](const Cell& cell, uint32_t offset) {
      const Target target{array.name, offset};
      if (is_late(cell.write)) report_return(target, cell.write, true);
      for (const Stamp read : cell.reads) {
        if (is_late(read)) report_return(target, read, (read & kAtomic) != 0);
      }
    };
    const uint64_t begin = cta.rank * kArenaBytes + array.offset;
    for (uint32_t offset = 0; offset < array.bytes; offset += 4) {
      const Cell& word = arena.shadow.words[(begin + offset) / 4];
      if (word.write != kSplit) {
        judge(word, offset);
        continue;
      }
      for (uint32_t byte = 0; byte < 4; ++byte)
        judge(arena.shadow.bytes[begin + offset + byte], offset + byte);
    }
  }
}

void sync_cta(Cta& cta) {
  uint32_t epoch = 0;
  for (uint32_t i = 0; i < cta.threads; ++i) {
    epoch = std::max(epoch, epoch_of(threads[cta.fibers[i].stack].now) + 1);
  }
  for (uint32_t i = 0; i < cta.threads; ++i) {
    threads[cta.fibers[i].stack].acquired = epoch;
    stamp_thread(cta.fibers[i], epoch, 0);
  }
  // A barrier orders more than any __syncwarp before it did: the clocks start again.
  memset(&warps[cta.rank * kMaxWarps], 0, cta.warps.size() * sizeof(WarpClock));
}

void sync_warp(Warp& warp, uint32_t mask) {
  WarpClock& clock = clock_of_warp(*warp.first);
  uint16_t joined[kWarpSize] = {};
  for (uint32_t m = mask; m != 0; m &= m - 1) {
    const uint16_t* known = clock.known[__builtin_ctz(m)];
    for (uint32_t j = 0; j < kWarpSize; ++j) joined[j] = std::max(joined[j], known[j]);
  }
  for (uint32_t m = mask; m != 0; m &= m - 1) ++joined[__builtin_ctz(m)];
  for (uint32_t m = mask; m != 0; m &= m - 1) {
    const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(m));
    memcpy(clock.known[lane], joined, sizeof(joined));
    const Fiber& fiber = warp.first[lane];
    stamp_thread(fiber, epoch_of(threads[fiber.stack].now), joined[lane]);
  }
}

// What a thread does between arriving and waiting is ordered with nothing of this barrier: it counts as later
// than its arrival, and what it sees still as earlier than its wait.
void arrive_cluster(Fiber& fiber) {
  const Stamp now = threads[fiber.stack].now;
  stamp_thread(fiber, epoch_of(now) + 1, clock_of(now));
  released[fiber.stack].from[state_of(fiber).cluster_arrivals % 4] = epoch_of(now) + 1;
}

void load_row(CallSite site, const void* row) { access_wide(site, row, Access::kRead, true); }
void receive(Fiber& lane, const void* word) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(word);
  if (arena.owner(address) != static_cast<int64_t>(lane.cta->rank) || address % 4 != 0) return;
  Fiber* const computing = current;
  current = &lane;
  access(address, 4, Access::kRead, Origin{nullptr, &lane.site});
  current = computing;
}
uint32_t copy_source(CallSite site, const void* global) {
  access_wide(site, global, Access::kRead, false);
  return threads[current->stack].acquired;
}

// It may have arrived at any time since its issue: a barrier after that orders nothing before it.
void copy_destination(CallSite site, void* shared, uint32_t since) {
  uint32_t& acquired = threads[current->stack].acquired;
  const uint32_t now = acquired;
  acquired = since;
  access_wide(site, shared, Access::kWrite, true);
  acquired = now;
}

}  // namespace checker
}  // namespace qsa::host

#endif  // QSA_HOST_CHECKED
