// How a kernel is launched on the host: its arguments are copied once, as CUDA does, and every CUDA thread
// calls it with that copy.
#pragma once

#include <stdint.h>

#include "host/collectives.h"
#include "host/vector_types.h"

namespace qsa::host {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  uint32_t cluster;
  uint64_t dynamic_bytes;
};

#pragma GCC visibility push(hidden)
// Every thread calls body(arguments); `argument_bytes` tells the checker what is no memory of the kernel's.
int32_t launch_erased(CallSite site, const LaunchShape& shape, void (*body)(const void*),
                      const void* arguments, uint64_t argument_bytes);
#pragma GCC visibility pop

template <class Function>
struct Body {
  // Not instrumented: reading the copied arguments is the launch's business, not the kernel's.
  __attribute__((no_sanitize("thread"))) static void call(const void* function) {
    (*static_cast<const Function*>(function))();
  }
};

template <class... Parameters, class... Arguments>
int32_t launch(CallSite site, void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned cluster,
               uint64_t dynamic_bytes, void* /*stream*/, Arguments... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "the kernel takes another number of arguments");
  const auto function = [kernel, arguments...]()
                            __attribute__((no_sanitize("thread"))) { kernel(arguments...); };
  return launch_erased(site, LaunchShape{grid, block, cluster, dynamic_bytes},
                       &Body<decltype(function)>::call, &function, sizeof(function));
}

// QSA_LAUNCH's arguments are in this order; a cluster launch names its cluster size after the block.
template <class... Parameters, class... Arguments>
int32_t launch_plain(CallSite site, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                     uint64_t dynamic_bytes, void* stream, Arguments... arguments) {
  return launch(site, kernel, grid, block, 1, dynamic_bytes, stream, arguments...);
}

}  // namespace qsa::host

#define QSA_LAUNCH(...) (::qsa::host::launch_plain(QSA_HOST_HERE, __VA_ARGS__))
#define QSA_LAUNCH_CLUSTER(...) (::qsa::host::launch(QSA_HOST_HERE, __VA_ARGS__))
#define QSA_TRAP(reason) QSA_HOST_HERE.trap(reason)
