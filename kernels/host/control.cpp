#include "host/control.h"

#include <string.h>

#include "host/buffers.h"
#include "host/checker.h"
#include "host/findings.h"
#include "host/runtime.h"

#define QSA_HOST_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

uint64_t fuel_given = qsa::host::kDefaultFuel;

}  // namespace

QSA_HOST_EXPORT void qsa_host_reset(const qsa_host_options* given) {
  using namespace qsa::host;
  options = Options{};
  if (given != nullptr) {
    options.schedule = given->schedule;
    options.seed = given->seed;
    if (given->compute_capability != 0) options.compute_capability = given->compute_capability;
    if (given->multiprocessors != 0) options.multiprocessors = given->multiprocessors;
    if (given->fuel != 0) options.fuel = given->fuel < INT64_MAX ? given->fuel : INT64_MAX;
  }
  fuel_given = options.fuel;
  fuel_left = static_cast<int64_t>(fuel_given);
  launch_state.number_since_reset = 0;
  arena_reset();
  forget_buffers();
  clear_findings();
  checker::reset();
}

QSA_HOST_EXPORT void qsa_host_register(const void* base, uint64_t bytes, uint32_t flags, const char* name) {
  qsa::host::register_buffer(reinterpret_cast<uintptr_t>(base), bytes, flags, name);
}

QSA_HOST_EXPORT uint64_t qsa_host_findings(char* json, uint64_t capacity) {
  const std::string text = qsa::host::findings_json();
  if (json != nullptr && text.size() < capacity) memcpy(json, text.c_str(), text.size() + 1);
  return text.size();
}

QSA_HOST_EXPORT uint64_t qsa_host_fuel_used(void) {
  const int64_t left = qsa::host::fuel_left < 0 ? 0 : qsa::host::fuel_left;
  return fuel_given - static_cast<uint64_t>(left);
}

QSA_HOST_EXPORT int32_t qsa_host_mode(void) { return qsa::host::kChecked ? 1 : 0; }
