// What the compiler's instrumentation calls. These stand in for the compiler's own runtimes, which are not
// linked.
#include <string.h>

#include "host/access.h"
#include "host/atomics.h"
#include "host/runtime.h"

#define QSA_HOST_HOOK extern "C" __attribute__((visibility("hidden")))

namespace qsa::host {

// The instruction that called the hook: its return address lies behind it, perhaps on the next line already.
#define QSA_HOST_CALLER (static_cast<const unsigned char*>(__builtin_return_address(0)) - 1)

// -fsanitize-coverage=trace-pc: at the start of every basic block, so a loop without a single call ends as
// well.
QSA_HOST_HOOK void __sanitizer_cov_trace_pc() {
  if (--fuel_left < 0 && current != nullptr) out_of_fuel(library_offset(QSA_HOST_CALLER));
}

namespace {

#if QSA_HOST_CHECKED
// Most accesses are to the thread's own stack, which is nobody else's business; they leave first. Code that
// runs outside a launch (the C entry) is instrumented as well, and of no interest.
inline bool ignored(uintptr_t address) { return address - current_stack < kStackBytes || current == nullptr; }

inline void hook(const void* pointer, uint64_t bytes, checker::Access kind, const void* code) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (ignored(address)) return;
  checker::access(address, bytes, kind, checker::Origin{code, nullptr});
}

// The compiler uses these where it knows the address to be a multiple of the size; a GPU faults where it is
// not.
inline void aligned_hook(const void* pointer, uint64_t bytes, checker::Access kind, const void* code) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (ignored(address)) return;
  if (address % bytes != 0) checker::report_misaligned(address, bytes, kind, checker::Origin{code, nullptr});
  checker::access(address, bytes, kind, checker::Origin{code, nullptr});
}

inline void index_hook(const char* file, uint32_t line, intptr_t index) {
  if (current != nullptr) checker::report_index(index, CallSite{file, line, 0});
}
inline void shift_hook(const char* file, uint32_t line, intptr_t count) {
  if (current != nullptr) checker::report_shift(count, CallSite{file, line, 0});
}
#else
// A plain run looks at no access; the kernel's object is the same.
inline void hook(const void*, uint64_t, checker::Access, const void*) {}
inline void aligned_hook(const void*, uint64_t, checker::Access, const void*) {}
inline void index_hook(const char*, uint32_t, intptr_t) {}
inline void shift_hook(const char*, uint32_t, intptr_t) {}
#endif  // QSA_HOST_CHECKED

}  // namespace

#define QSA_HOST_ACCESS_HOOKS(bytes)                                        \
  QSA_HOST_HOOK void __tsan_read##bytes(const void* address) {              \
    aligned_hook(address, bytes, checker::Access::kRead, QSA_HOST_CALLER);  \
  }                                                                         \
  QSA_HOST_HOOK void __tsan_write##bytes(const void* address) {             \
    aligned_hook(address, bytes, checker::Access::kWrite, QSA_HOST_CALLER); \
  }                                                                         \
  QSA_HOST_HOOK void __tsan_unaligned_read##bytes(const void* address) {    \
    hook(address, bytes, checker::Access::kRead, QSA_HOST_CALLER);          \
  }                                                                         \
  QSA_HOST_HOOK void __tsan_unaligned_write##bytes(const void* address) {   \
    hook(address, bytes, checker::Access::kWrite, QSA_HOST_CALLER);         \
  }
QSA_HOST_ACCESS_HOOKS(1)
QSA_HOST_ACCESS_HOOKS(2)
QSA_HOST_ACCESS_HOOKS(4)
QSA_HOST_ACCESS_HOOKS(8)
QSA_HOST_ACCESS_HOOKS(16)

QSA_HOST_HOOK void __tsan_read_range(const void* address, uint64_t bytes) {
  hook(address, bytes, checker::Access::kRead, QSA_HOST_CALLER);
}
QSA_HOST_HOOK void __tsan_write_range(const void* address, uint64_t bytes) {
  hook(address, bytes, checker::Access::kWrite, QSA_HOST_CALLER);
}
QSA_HOST_HOOK void* qsa_host_memcpy(void* to, const void* from, size_t bytes) {
  if (bytes != 0) {
    hook(from, bytes, checker::Access::kRead, QSA_HOST_CALLER);
    hook(to, bytes, checker::Access::kWrite, QSA_HOST_CALLER);
  }
  return memcpy(to, from, bytes);
}
QSA_HOST_HOOK void* qsa_host_memmove(void* to, const void* from, size_t bytes) {
  if (bytes != 0) {
    hook(from, bytes, checker::Access::kRead, QSA_HOST_CALLER);
    hook(to, bytes, checker::Access::kWrite, QSA_HOST_CALLER);
  }
  return memmove(to, from, bytes);
}
QSA_HOST_HOOK void* qsa_host_memset(void* to, int value, size_t bytes) {
  if (bytes != 0) hook(to, bytes, checker::Access::kWrite, QSA_HOST_CALLER);
  return memset(to, value, bytes);
}

// What follows the calls is the access, or the shift, itself.
struct SourceAt {
  const char* file;
  uint32_t line;
  uint32_t column;
};
// -fsanitize=bounds-strict: an index outside an array whose size the compiler knows, a thread's own included.
QSA_HOST_HOOK void __ubsan_handle_out_of_bounds(const SourceAt* at, intptr_t index) {
  index_hook(at->file, at->line, index);
}
// -fsanitize=shift-exponent: a count below zero or of all the word's bits. This processor takes it modulo the
// width, a GPU shifts everything out.
QSA_HOST_HOOK void __ubsan_handle_shift_out_of_bounds(const SourceAt* at, uintptr_t, intptr_t count) {
  shift_hook(at->file, at->line, static_cast<int32_t>(count));
}

QSA_HOST_HOOK void __tsan_init() {}
QSA_HOST_HOOK void __tsan_func_entry(void*) {}
QSA_HOST_HOOK void __tsan_func_exit() {}
QSA_HOST_HOOK void __tsan_vptr_update(void**, void*) {}
// The guard of a function's static variable, in host code.
QSA_HOST_HOOK uint8_t __tsan_atomic8_load(const uint8_t* address, int) { return *address; }

uint32_t atomic_load(const uint32_t* address) {
  aligned_hook(address, 4, checker::Access::kAtomicUpdate, QSA_HOST_CALLER);
  return *address;
}
uint64_t atomic_load(const uint64_t* address) {
  aligned_hook(address, 8, checker::Access::kAtomicUpdate, QSA_HOST_CALLER);
  return *address;
}
void atomic_store(uint32_t* address, uint32_t value) { *address = value; }
void atomic_store(uint64_t* address, uint64_t value) { *address = value; }
uint32_t atomic_swap(uint32_t* address, uint32_t value) {
  aligned_hook(address, 4, checker::Access::kAtomicWrite, QSA_HOST_CALLER);
  const uint32_t old = *address;
  *address = value;
  return old;
}
uint64_t atomic_swap(uint64_t* address, uint64_t value) {
  aligned_hook(address, 8, checker::Access::kAtomicWrite, QSA_HOST_CALLER);
  const uint64_t old = *address;
  *address = value;
  return old;
}

}  // namespace qsa::host
