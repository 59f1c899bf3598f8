// The checker's findings in words. A broken kernel makes millions of them, so a repeated one is told apart
// before anything is formatted.
#include "host/checker.h"

#if QSA_HOST_CHECKED

#include "host/access.h"
#include "host/findings.h"

namespace qsa::host::checker {

namespace {

struct Known {
  const char* kind;
  const void* code;
  uint32_t line;
  uint32_t id;
  std::string name;
};
std::vector<Known> known;

CallSite site_of(Origin origin) { return origin.site == nullptr ? CallSite{nullptr, 0, 0} : *origin.site; }

// True the first time only. `kind` is a literal of this file.
bool is_new(const char* kind, const std::string& name, Origin origin) {
  if (findings_full()) return false;
  const CallSite site = site_of(origin);
  for (const Known& other : known) {
    if (other.kind == kind && other.code == origin.code && other.line == site.line && other.id == site.id &&
        other.name == name) {
      return false;
    }
  }
  known.push_back(Known{kind, origin.code, site.line, site.id, name});
  return true;
}

const char* now(Access kind) {
  return kind == Access::kRead ? "reads" : kind == Access::kWrite ? "writes" : "atomically updates";
}

const char* before(Stamp stamp, bool wrote) {
  return !wrote ? "read" : (stamp & kAtomic) != 0 ? "atomically updated" : "wrote";
}

std::string name_of(Stamp stamp) {
  const dim3 extent = launch_state.shape.block;
  const uint32_t thread = thread_of(stamp);
  const uint3 block = block_of(serial_of(stamp));
  return format("thread (%u,%u,%u) of block (%u,%u,%u)", thread % extent.x, thread / extent.x % extent.y,
                thread / extent.x / extent.y, block.x, block.y, block.z);
}

std::string bytes_text(uint64_t bytes) {
  return format("%llu byte%s", static_cast<unsigned long long>(bytes), bytes == 1 ? "" : "s");
}

void add(const char* kind, std::string message, const std::string& buffer, bool has_offset, int64_t offset,
         Origin origin) {
  Finding finding = finding_here(kind, std::move(message), site_of(origin));
  finding.buffer = buffer;
  finding.has_offset = has_offset;
  finding.offset = offset;
  if (origin.code != nullptr) finding.address = library_offset(origin.code);
  report(std::move(finding));
}

std::string accessed(Access kind, uint64_t bytes, Target target) {
  return name_of(*current) + " " + now(kind) + " " + bytes_text(bytes) +
         format(" at byte %lld of ", static_cast<long long>(target.offset)) + target.name;
}

}  // namespace

void forget_reports() { known.clear(); }

void report_race(Target target, uint64_t bytes, Access kind, Origin origin, Stamp other, bool other_wrote) {
  if (!is_new("race", target.name, origin)) return;
  add("race",
      accessed(kind, bytes, target) + "; " + name_of(other) + " " + before(other, other_wrote) +
          " it, and nothing orders the two",
      target.name, true, target.offset, origin);
}

void report_return(Target target, Stamp other, bool other_wrote) {
  const Origin origin{nullptr, &current->site};
  if (!is_new("return", target.name, origin)) return;
  const uint3 block = current->cta->block;
  add("race",
      format("block (%u,%u,%u) returns; ", block.x, block.y, block.z) + name_of(other) + " " +
          before(other, other_wrote) + format(" byte %lld of its ", static_cast<long long>(target.offset)) +
          target.name + ", and nothing orders the two: the memory may be gone",
      target.name, true, target.offset, origin);
}

void report_uninitialised(Target target, uint64_t bytes, Origin origin) {
  if (!is_new("uninitialised", target.name, origin)) return;
  add("uninitialised", accessed(Access::kRead, bytes, target) + ", which nobody has written", target.name,
      true, target.offset, origin);
}

void report_read_only(Target target, uint64_t bytes, Origin origin) {
  if (!is_new("read-only", target.name, origin)) return;
  add("read-only", accessed(Access::kWrite, bytes, target) + ", an input", target.name, true, target.offset,
      origin);
}

void report_index(int64_t index, CallSite site) {
  const std::string name = "an array";
  if (!is_new("index", name, Origin{nullptr, &site})) return;
  add("bounds",
      name_of(*current) + format(" uses index %lld of ", static_cast<long long>(index)) + name +
          " that has no such element",
      "", false, 0, Origin{nullptr, &site});
}

void report_shift(int64_t count, CallSite site) {
  if (!is_new("shift", "a word", Origin{nullptr, &site})) return;
  add("bounds",
      name_of(*current) +
          format(" shifts a word by %lld, which it has not the bits for", static_cast<long long>(count)),
      "", false, 0, Origin{nullptr, &site});
}

void report_misaligned(uintptr_t address, uint64_t bytes, Access kind, Origin origin) {
  const Place place = nearest_place(reinterpret_cast<const void*>(address));
  if (!is_new("misaligned", place.name, origin)) return;
  add("bounds",
      name_of(*current) + " " + now(kind) + " " + bytes_text(bytes) + ", misaligned, at " + place.text,
      place.name, !place.name.empty(), place.offset, origin);
}

void report_bounds(uintptr_t address, uint64_t bytes, Access kind, Origin origin, const char* what) {
  if (findings_full()) return;
  const Place place = nearest_place(reinterpret_cast<const void*>(address));
  if (!is_new("bounds", place.name, origin)) return;
  add("bounds", name_of(*current) + " " + now(kind) + " " + bytes_text(bytes) + " at " + place.text + what,
      place.name, !place.name.empty(), place.offset, origin);
}

}  // namespace qsa::host::checker

#endif  // QSA_HOST_CHECKED
