#include "host/fiber.h"

#include <sys/mman.h>

#include "host/runtime.h"

// Only what the ABI lets a callee keep is saved; the caller of this function keeps nothing else. The
// floating-point control words are the same in every fiber. Left by `ret`, not by a jump: the processor
// predicts returns from a stack of its own, and threads that wait in the same collective return along the
// same chain of calls.
asm(R"(
  .text
  .p2align 4
  .globl qsa_host_switch_stack
  .hidden qsa_host_switch_stack
  .type qsa_host_switch_stack, @function
qsa_host_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size qsa_host_switch_stack, .-qsa_host_switch_stack
)");

namespace qsa::host {

bool Stacks::reserve(uint32_t count) {
  if (base_ == nullptr) {
    void* space = mmap(nullptr, size_t{kMaxClusterSize} * kMaxThreads * kStackBytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return false;
    base_ = static_cast<unsigned char*>(space);
  }
  for (; ready_ < count; ++ready_) {
    unsigned char* stack = base_ + size_t{ready_} * kStackBytes;
    if (mprotect(stack + kPageBytes, kStackBytes - kPageBytes, PROT_READ | PROT_WRITE) != 0) return false;
  }
  return true;
}

void* Stacks::prepare(uint32_t index, void (*entry)()) const {
  // Stacks are a power of two apart: without a shift the hot lines of all threads would share a few cache
  // sets.
  const size_t shift = (size_t{index} * 192) % 8192;
  uintptr_t top = reinterpret_cast<uintptr_t>(begin(index) + kStackBytes - shift);
  top &= ~uintptr_t{63};
  void** frame = reinterpret_cast<void**>(top);
  // The ABI wants the stack 8 bytes off a multiple of 16 when a function starts: as if its caller had pushed
  // this.
  *--frame = nullptr;
  *--frame = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--frame = nullptr;
  return frame;
}

int64_t Stacks::owner(const void* address) const {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(base_);
  if (base_ == nullptr || offset >= size_t{ready_} * kStackBytes) return -1;
  return static_cast<int64_t>(offset / kStackBytes);
}

}  // namespace qsa::host
