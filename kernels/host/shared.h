// Shared memory as kernels see it. It lives in an arena of the runtime's, not in static arrays: that is what
// allows junk in fresh memory, exact bounds, and another CTA's copy of an array (distributed shared memory).
#pragma once

#include <stdint.h>

#include "host/intrinsics.h"

namespace qsa::host {

// One QSA_SHARED in the source. Its place in the arena is decided at its first use in a launch and is the
// same for every CTA of that launch.
struct SharedArray {
  const char* name;
  uint32_t bytes;
  uint32_t offset;
  uint64_t launch;  // the launch `offset` belongs to
};

#pragma GCC visibility push(hidden)
void* shared_array(SharedArray* array);
void* dynamic_shared(const char* name);
#pragma GCC visibility pop

}  // namespace qsa::host

#define QSA_SHARED(T, name, count)                                      \
  static_assert(__is_trivial(T), "shared memory is never constructed"); \
  static ::qsa::host::SharedArray qsa_host_array_of_##name{             \
      #name, static_cast<uint32_t>(sizeof(T) * (count)), 0, 0};         \
  T* const name = static_cast<T*>(::qsa::host::shared_array(&qsa_host_array_of_##name))

#define QSA_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::qsa::host::dynamic_shared(#name))
