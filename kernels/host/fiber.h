// Stacks and the switch between them: what makes 1,024 CUDA threads out of one OS thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace qsa::host {

constexpr size_t kPageBytes = 4096;
// A guard page, then the stack. CUDA's local memory is larger, but no kernel here keeps 60 KB a thread.
constexpr size_t kStackBytes = 64 * 1024;

// Saves the caller's registers on its stack, stores its stack pointer, and continues on the other stack.
// Returns when something switches back to the stored pointer.
extern "C" void qsa_host_switch_stack(void** save, void* load);

// A pool of stacks that grows to the largest launch and is reused by every CTA after it.
class Stacks {
 public:
  // Makes sure that stacks 0..count-1 exist. False when the system has no memory for them.
  bool reserve(uint32_t count);
  // A stack pointer that qsa_host_switch_stack can load: it calls `entry`, which must never return.
  void* prepare(uint32_t index, void (*entry)()) const;
  // The stack that contains the address, or -1.
  int64_t owner(const void* address) const;
  const unsigned char* begin(uint32_t index) const { return base_ + size_t{index} * kStackBytes; }

 private:
  unsigned char* base_ =
      nullptr;  // address space for the largest launch there is, made usable as it is needed
  uint32_t ready_ = 0;
};

}  // namespace qsa::host
