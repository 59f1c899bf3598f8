// Faults inside a launch: one line that says where, then the process ends.
#pragma once

#include <signal.h>

namespace qsa::host {

// Catches faults while it lives; what was installed before is back afterwards.
class CrashHandler {
 public:
  CrashHandler();
  ~CrashHandler();
  CrashHandler(const CrashHandler&) = delete;
  CrashHandler& operator=(const CrashHandler&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  struct sigaction before_[4];
  stack_t stack_before_;
};

// While it lives, a fault is not the runtime's own: it looks at memory the kernel is about to write, at
// `code`.
class Probe {
 public:
  explicit Probe(const void* code);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
};

}  // namespace qsa::host
