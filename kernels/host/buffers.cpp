#include "host/buffers.h"

#include <algorithm>

#include "host/checker.h"
#include "host/findings.h"
#include "host/runtime.h"

namespace qsa::host {

std::vector<Buffer> buffers;

namespace {

// Linux maps nothing below this address.
constexpr uintptr_t kNullBytes = 64 * 1024;

uint64_t generation = 1;

// How far outside [begin, end) an address is; 0 inside.
uint64_t distance(uintptr_t address, uintptr_t begin, uintptr_t end) {
  if (address < begin) return begin - address;
  return address < end ? 0 : address - end + 1;
}

Place place_of(uintptr_t address, const std::string& name, uintptr_t begin, uintptr_t end) {
  Place place;
  place.name = name;
  place.offset = static_cast<int64_t>(address - begin);
  if (address < begin) {
    place.text =
        format("%llu bytes before %s", static_cast<unsigned long long>(begin - address), name.c_str());
  } else if (address < end) {
    place.text = format("byte %lld of %s", static_cast<long long>(place.offset), name.c_str());
  } else {
    place.text =
        format("%llu bytes past the end of %s", static_cast<unsigned long long>(address - end), name.c_str());
  }
  return place;
}

}  // namespace

void register_buffer(uintptr_t begin, uint64_t bytes, uint32_t flags, const char* name) {
  ++generation;
  const uintptr_t end = begin + bytes;
  const auto overlaps = [begin, end](Buffer& other) {
    const bool hit = begin == other.begin || (begin < other.end && other.begin < end);
    if (hit) checker::release(other.shadow, other.end - other.begin);
    return hit;
  };
  buffers.erase(std::remove_if(buffers.begin(), buffers.end(), overlaps), buffers.end());
  const auto later =
      std::find_if(buffers.begin(), buffers.end(), [begin](const Buffer& b) { return b.begin > begin; });
  Buffer buffer{begin, end, flags, name == nullptr ? "unnamed" : name, Shadow{}};
  // An input that is only read has nothing to keep: every write to it is a finding by itself.
  const uint32_t nothing_to_keep = QSA_HOST_READ_ONLY | QSA_HOST_INITIALISED;
  if ((flags & nothing_to_keep) != nothing_to_keep)
    buffer.shadow = checker::allocate(bytes, buffer.name.c_str());
  buffers.insert(later, buffer);
}

void forget_buffers() {
  ++generation;
  for (Buffer& buffer : buffers) checker::release(buffer.shadow, buffer.end - buffer.begin);
  buffers.clear();
}

uint64_t buffers_generation() { return generation; }

Buffer* find_buffer(uintptr_t address) {
  const auto after = std::upper_bound(buffers.begin(), buffers.end(), address,
                                      [](uintptr_t a, const Buffer& b) { return a < b.begin; });
  if (after == buffers.begin()) return nullptr;
  Buffer* buffer = &*(after - 1);
  return address < buffer->end ? buffer : nullptr;
}

Place nearest_place(const void* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  Place nearest;
  // What lies there is no buffer's neighbour, and how far from one differs from run to run.
  if (address < kNullBytes) {
    nearest.text = format("%llu bytes from a null pointer", static_cast<unsigned long long>(address));
    return nearest;
  }
  nearest.text = "an address near no buffer";
  uint64_t least = UINT64_MAX;
  const auto consider = [&](const std::string& name, uintptr_t begin, uintptr_t end) {
    const uint64_t far = distance(address, begin, end);
    if (far >= least) return;
    least = far;
    nearest = place_of(address, name, begin, end);
  };
  const int64_t owner = arena.owner(address);
  if (owner >= 0) {
    const uintptr_t base = reinterpret_cast<uintptr_t>(arena.base(static_cast<uint32_t>(owner)));
    for (uint32_t i = 0; i < arena.array_count; ++i) {
      const ArenaArray& array = arena.arrays[i];
      consider(array.name, base + array.offset, base + array.offset + array.bytes);
    }
    return nearest;
  }
  for (const Buffer& buffer : buffers) consider(buffer.name, buffer.begin, buffer.end);
  return nearest;
}

}  // namespace qsa::host
