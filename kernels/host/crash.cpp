#include "host/crash.h"

#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "host/buffers.h"
#include "host/findings.h"
#include "host/runtime.h"

namespace qsa::host {

namespace {

const void* probed_code = nullptr;

// A fault on a fiber's stack may be that stack's overflow, so the handler runs on one of its own.
alignas(16) unsigned char handler_stack[64 * 1024];

void print_line(const char* mark, const std::string& json) {
  const std::string line = mark + json + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

std::string describe(int signal, const siginfo_t& info, const ucontext_t& context) {
  if (signal == SIGFPE) return "an integer division by zero, or one that overflows";
  if (signal == SIGILL) return "an instruction the processor does not have, or code that cannot be reached";
  if (info.si_code == SI_KERNEL) return "a misaligned vector access, or an address no memory can have";
  const bool writes = probed_code != nullptr || (context.uc_mcontext.gregs[REG_ERR] & 2) != 0;
  const char* verb = writes ? "writes" : "reads";
  if (stacks.owner(info.si_addr) >= 0) return std::string(verb) + " past the end of a thread's stack";
  return std::string(verb) + " memory that is not there";
}

// Kernel code holds no lock of the C library's, so formatting and allocating here are safe enough for a
// process that ends in the next line.
void handle(int signal, siginfo_t* info, void* raw_context) {
  const ucontext_t& context = *static_cast<const ucontext_t*>(raw_context);
  for (uint64_t i = 0; i < finding_count(); ++i) print_line("QSA_HOST_FINDING ", finding_line(i));
  Finding finding =
      finding_here("crash", std::string(strsignal(signal)) + ": " + describe(signal, *info, context));
  const auto* code = reinterpret_cast<const void*>(context.uc_mcontext.gregs[REG_RIP]);
  finding.address = library_offset(probed_code == nullptr ? code : probed_code);
  if (signal == SIGSEGV || signal == SIGBUS) {
    if (info->si_code != SI_KERNEL) {
      const Place place = nearest_place(info->si_addr);
      if (!place.name.empty()) {
        finding.buffer = place.name;
        finding.offset = place.offset;
        finding.has_offset = true;
      }
      finding.message += ", " + place.text;
    }
  }
  print_line("QSA_HOST_CRASH ", to_json(finding));
  _exit(QSA_HOST_CRASH_EXIT_CODE);
}

}  // namespace

Probe::Probe(const void* code) { probed_code = code; }
Probe::~Probe() { probed_code = nullptr; }

CrashHandler::CrashHandler() {
  stack_t stack = {};
  stack.ss_sp = handler_stack;
  stack.ss_size = sizeof(handler_stack);
  sigaltstack(&stack, &stack_before_);
  struct sigaction action = {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &action, &before_[i]);
}

CrashHandler::~CrashHandler() {
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &before_[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
}

}  // namespace qsa::host
