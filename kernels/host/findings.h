// What a run has found wrong, kept until the next reset and handed out as JSON.
#pragma once

#include <stdint.h>

#include <string>

#include "host/runtime.h"

namespace qsa::host {

struct Finding {
  std::string kind;
  std::string message;
  std::string buffer;
  bool has_offset = false;
  int64_t offset = 0;
  uint3 block{0, 0, 0};
  uint3 thread{0, 0, 0};
  CallSite site{nullptr, 0, 0};
  uint64_t address = 0;  // in the library's code; 0: none
};

// Keeps the finding unless one of its kind, buffer and place is there already, or there are enough of them.
void report(Finding finding);
bool findings_full();
void clear_findings();
std::string findings_json();
std::string to_json(const Finding& finding);
const std::string& finding_line(uint64_t index);
uint64_t finding_count();

// A finding about the running thread, or about `fiber`.
Finding finding_here(const char* kind, std::string message, CallSite site = CallSite{nullptr, 0, 0});
Finding finding_about(const Fiber& fiber, const char* kind, std::string message, CallSite site);

// "thread (3,0,0) of block (0,0,0)", "qsa/select.cu:17"
std::string name_of(const Fiber& fiber);
std::string name_of(CallSite site);
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace qsa::host
