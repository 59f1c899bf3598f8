// Mailboxes between the CTAs of a cluster. A marker after an at sign names a line for the tests.
#include "common/portability.cuh"

// Two rounds, in each of which every CTA sends its part, plus the round, to the next one.
// value: 1 announces a word too few, 2 announces nothing, 3 waits for the other parity, 4 reads before it
// waits, 5 writes its part again after it was sent.
__global__ void mail_kernel(const int32_t* in, int32_t* out, int64_t value) {
  QSA_SHARED(int32_t, got, 32);
  QSA_SHARED(qsa::Mailbox, box, 1);
  const unsigned next = (qsa::cluster_rank() + 1) % qsa::cluster_size();
  if (threadIdx.x == 0) box->open(1);
  __syncthreads();
  qsa::cluster_arrive_relaxed();
  qsa::cluster_wait();
  int32_t sum = 0;
  for (uint32_t round = 0; round < 2; ++round) {
    if (threadIdx.x == 0 && value != 2) {
      box->expect(qsa::cluster_rank(), value == 1 ? 124u : 128u);
    }
    const int32_t own = in[blockIdx.x * 32 + threadIdx.x] + static_cast<int32_t>(round);
    box->send(next, got + threadIdx.x, own);
    box->sent();
    if (value == 4) sum += got[threadIdx.x];                             // @mail-early-read
    box->wait(value == 3 ? 1 - round : round);                           // @mail-wait
    sum += got[31 - threadIdx.x];                                        // @mail-read
    if (value == 5) qsa::map_shared_rank(got, next)[threadIdx.x] = own;  // @mail-late-write
    qsa::cluster_sync();
  }
  out[blockIdx.x * 32 + threadIdx.x] = sum;
}
extern "C" int32_t mail(const int32_t* in, int32_t* out, int64_t value, void* stream) {
  return QSA_LAUNCH_CLUSTER(mail_kernel, 4, 32, 4, 0, stream, in, out, value);
}
