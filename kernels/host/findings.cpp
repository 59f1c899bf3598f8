#include "host/findings.h"

#include <stdarg.h>
#include <stdio.h>

#include <vector>

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));

namespace qsa::host {

namespace {

// A broken kernel repeats itself: beyond this many distinct findings nobody learns more.
constexpr size_t kMaxFindings = 16;

struct Kept {
  std::string key;
  std::string json;
};
std::vector<Kept> kept;

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += format("\\u%04x", c);
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace

std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof(text), pattern, arguments);
  va_end(arguments);
  return text;
}

std::string name_of(const Fiber& fiber) {
  const uint3 t = fiber.thread;
  const uint3 b = fiber.cta->block;
  return format("thread (%u,%u,%u) of block (%u,%u,%u)", t.x, t.y, t.z, b.x, b.y, b.z);
}

std::string name_of(CallSite site) {
  return site.file == nullptr ? "an unknown place" : format("%s:%u", site.file, site.line);
}

uint64_t library_offset(const void* code) {
  return reinterpret_cast<uintptr_t>(code) - reinterpret_cast<uintptr_t>(&__ehdr_start);
}

Finding finding_about(const Fiber& fiber, const char* kind, std::string message, CallSite site) {
  Finding finding;
  finding.kind = kind;
  finding.message = std::move(message);
  finding.site = site;
  finding.block = fiber.cta->block;
  finding.thread = fiber.thread;
  return finding;
}

Finding finding_here(const char* kind, std::string message, CallSite site) {
  if (current != nullptr) return finding_about(*current, kind, std::move(message), site);
  Finding finding;
  finding.kind = kind;
  finding.message = std::move(message);
  finding.site = site;
  return finding;
}

std::string to_json(const Finding& finding) {
  const uint3 b = finding.block;
  const uint3 t = finding.thread;
  std::string json = "{\"kind\": " + quoted(finding.kind) + ", \"message\": " + quoted(finding.message);
  if (!finding.buffer.empty()) json += ", \"buffer\": " + quoted(finding.buffer);
  if (finding.has_offset) json += format(", \"offset\": %lld", static_cast<long long>(finding.offset));
  json += format(", \"block\": [%u, %u, %u], \"thread\": [%u, %u, %u]", b.x, b.y, b.z, t.x, t.y, t.z);
  if (finding.site.file != nullptr) {
    json += ", \"file\": " + quoted(finding.site.file) + format(", \"line\": %u", finding.site.line);
  }
  if (finding.address != 0) {
    json += format(", \"address\": \"0x%llx\"", static_cast<unsigned long long>(finding.address));
  }
  return json + "}";
}

void report(Finding finding) {
  if (findings_full()) return;
  const std::string key =
      finding.kind + '|' + finding.buffer + '|' + name_of(finding.site) +
      format("|%u|%llx", finding.site.id, static_cast<unsigned long long>(finding.address));
  for (const Kept& other : kept) {
    if (other.key == key) return;
  }
  kept.push_back(Kept{key, to_json(finding)});
}

bool findings_full() { return kept.size() >= kMaxFindings; }
void clear_findings() { kept.clear(); }
uint64_t finding_count() { return kept.size(); }
const std::string& finding_line(uint64_t index) { return kept[index].json; }

std::string findings_json() {
  std::string json = "[";
  for (const Kept& finding : kept) json += (json.size() > 1 ? ", " : "") + finding.json;
  return json + "]";
}

}  // namespace qsa::host
