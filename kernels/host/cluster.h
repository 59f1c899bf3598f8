// The qsa:: device functions that CUDA itself spells in PTX: clusters, asynchronous copies, tensor cores.
#pragma once

#include <stdint.h>

#include "host/collectives.h"

namespace qsa::host {
// What was announced to a mailbox and what came. Its memory is shared memory, which only the runtime touches.
struct MailCounts {
  uint32_t senders;
  uint32_t announced;
  uint32_t expected;
  uint32_t came;
};

#pragma GCC visibility push(hidden)
uint32_t cluster_rank();
uint32_t cluster_size();
void cluster_arrive(CallSite site);
void cluster_wait(CallSite site);
void* map_shared_rank(CallSite site, const void* address, uint32_t rank);
void mail_open(MailCounts* box, uint32_t senders);
void mail_expect(CallSite site, MailCounts* box, uint32_t rank, uint32_t bytes);
void mail_came(CallSite site, MailCounts* box, uint32_t rank, uint32_t bytes);
void mail_wait(CallSite site, const MailCounts* box, uint32_t parity);
void async_copy(CallSite site, void* shared, const void* global);
void async_copy_commit();
void async_copy_wait(uint32_t groups_left);
void mma(CallSite site, float* d, const uint32_t* a, const uint32_t* b, const float* c);
// Loads `matrices` 8x8 matrices of 16-bit elements.
void load_matrix(CallSite site, uint32_t* d, const void* row, uint32_t matrices, bool transposed);
int32_t compute_capability();
int32_t multiprocessor_count();
#pragma GCC visibility pop
}  // namespace qsa::host

namespace qsa {

QSA_HOST_INLINE unsigned cluster_rank() { return host::cluster_rank(); }
QSA_HOST_INLINE unsigned cluster_size() { return host::cluster_size(); }
QSA_HOST_INLINE void cluster_arrive(host::CallSite site = host::CallSite::here()) {
  host::cluster_arrive(site);
}
QSA_HOST_INLINE void cluster_wait(host::CallSite site = host::CallSite::here()) { host::cluster_wait(site); }
QSA_HOST_INLINE void cluster_sync(host::CallSite site = host::CallSite::here()) {
  host::cluster_arrive(site);
  host::cluster_wait(site);
}
template <class T>
QSA_HOST_INLINE T* map_shared_rank(T* address, unsigned rank, host::CallSite site = host::CallSite::here()) {
  return static_cast<T*>(host::map_shared_rank(site, address, rank));
}

QSA_HOST_INLINE void cluster_arrive_relaxed(host::CallSite site = host::CallSite::here()) {
  host::cluster_arrive(site);
}

// A round is a barrier of the cluster here, and its bytes are counted: one too few would be waited for
// without end, one too many would end the wait too early.
class Mailbox {
 public:
  QSA_HOST_INLINE void open(uint32_t senders) { host::mail_open(&counts_, senders); }
  QSA_HOST_INLINE void expect(unsigned rank, uint32_t bytes, host::CallSite site = host::CallSite::here()) {
    host::mail_expect(site, &counts_, rank, bytes);
  }
  template <class T>
  QSA_HOST_INLINE void send(unsigned rank, T* here, const T& value,
                            host::CallSite site = host::CallSite::here()) {
    *static_cast<T*>(host::map_shared_rank(site, here, rank)) = value;
    host::mail_came(site, &counts_, rank, sizeof(T));
  }
  QSA_HOST_INLINE void sent(host::CallSite site = host::CallSite::here()) { host::cluster_arrive(site); }
  QSA_HOST_INLINE void wait(uint32_t parity, host::CallSite site = host::CallSite::here()) {
    host::cluster_wait(site);
    host::mail_wait(site, &counts_, parity);
  }

 private:
  host::MailCounts counts_;
};

QSA_HOST_INLINE void async_copy16(void* shared, const void* global,
                                  host::CallSite site = host::CallSite::here()) {
  host::async_copy(site, shared, global);
}
QSA_HOST_INLINE void async_copy_commit() { host::async_copy_commit(); }
template <int kGroupsLeft>
QSA_HOST_INLINE void async_copy_wait() {
  host::async_copy_wait(kGroupsLeft);
}

QSA_HOST_INLINE void mma_m16n8k16_bf16(float* d, const uint32_t* a, const uint32_t* b, const float* c,
                                       host::CallSite site = host::CallSite::here()) {
  host::mma(site, d, a, b, c);
}
QSA_HOST_INLINE void ldmatrix_x4(uint32_t* d, const void* row, host::CallSite site = host::CallSite::here()) {
  host::load_matrix(site, d, row, 4, false);
}
QSA_HOST_INLINE void ldmatrix_x4_trans(uint32_t* d, const void* row,
                                       host::CallSite site = host::CallSite::here()) {
  host::load_matrix(site, d, row, 4, true);
}
QSA_HOST_INLINE void ldmatrix_x2(uint32_t* d, const void* row, host::CallSite site = host::CallSite::here()) {
  host::load_matrix(site, d, row, 2, false);
}
QSA_HOST_INLINE void ldmatrix_x2_trans(uint32_t* d, const void* row,
                                       host::CallSite site = host::CallSite::here()) {
  host::load_matrix(site, d, row, 2, true);
}

QSA_HOST_INLINE uint32_t in_register(uint32_t value) { return value; }
template <class T>
QSA_HOST_INLINE T* in_register(T* pointer) {
  return pointer;
}
QSA_HOST_INLINE bool is_rare(bool condition) { return condition; }
QSA_HOST_INLINE void touch(const void*) {}

// shfl.sync looks at the lower five bits of a step alone: 32 lanes up is the lane itself.
inline uint32_t add_from_lane_above(uint32_t value, unsigned step) {
  step %= 32;
  const uint32_t higher = __shfl_down_sync(0xffffffffu, value, static_cast<int>(step));
  return threadIdx.x % 32 + step < 32 ? value + higher : value;
}

QSA_HOST_INLINE int compute_capability() { return host::compute_capability(); }
QSA_HOST_INLINE int multiprocessor_count() { return host::multiprocessor_count(); }

}  // namespace qsa
