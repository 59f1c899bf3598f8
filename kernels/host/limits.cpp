// What a device refuses to launch, by compute capability: the CUDA programming guide's table of technical
// specifications.
#include "host/findings.h"
#include "host/runtime.h"

namespace qsa::host {

namespace {

bool refuse(CallSite site, const std::string& message) {
  report(finding_here("launch-limit", message, site));
  return false;
}

uint32_t max_cluster_size() {
  if (options.compute_capability < 90) return 1;
  return options.compute_capability < 120 ? 16 : 8;  // above 8 is opt-in, which the launch asks for by itself
}

}  // namespace

// The opt-in maximum of a block: static and dynamic together.
uint64_t max_shared_bytes() {
  constexpr uint64_t kKibibyte = 1024;
  switch (options.compute_capability) {
    case 75:
      return 64 * kKibibyte;
    case 80:
    case 87:
      return 163 * kKibibyte;
    case 86:
    case 89:
    case 120:
    case 121:
      return 99 * kKibibyte;
    default:
      return 227 * kKibibyte;
  }
}

bool within_limits(CallSite site, const LaunchShape& shape) {
  const dim3 grid = shape.grid;
  const dim3 block = shape.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    return refuse(site, format("a grid of (%u,%u,%u) cannot be launched", grid.x, grid.y, grid.z));
  }
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || block.x > kMaxThreads || block.y > kMaxThreads || block.z > 64 ||
      threads > kMaxThreads) {
    return refuse(site,
                  format("a block of (%u,%u,%u) threads cannot be launched", block.x, block.y, block.z));
  }
  if (shape.dynamic_bytes > max_shared_bytes()) {
    return refuse(site,
                  format("%llu bytes of dynamic shared memory; compute capability %d has %llu a block",
                         static_cast<unsigned long long>(shape.dynamic_bytes), options.compute_capability,
                         static_cast<unsigned long long>(max_shared_bytes())));
  }
  if (shape.cluster == 0 || (shape.cluster > 1 && shape.cluster > max_cluster_size())) {
    return refuse(site, format("a cluster of %u; compute capability %d has %u at most", shape.cluster,
                               options.compute_capability, max_cluster_size()));
  }
  if (grid.x % shape.cluster != 0) {
    return refuse(
        site, format("a grid of %u blocks is not a multiple of the cluster of %u", grid.x, shape.cluster));
  }
  return true;
}

}  // namespace qsa::host
