// How an engine calls the kernels: the public header, a library, and device memory.
//
// Selects one decoding row of 4,002 tokens, once as a mask and once as a list, and checks what comes back.
// On a GPU (the same file, with nvcc):
//   nvcc -x cu -std=c++17 -Ikernels/include tests/engine_caller/select_one_row.cpp qsa_select.so -o caller
// With a C++ compiler it takes host memory for device memory, as the library of the host target does.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "qsa.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace {

// Device memory of `count` elements.
template <class T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
#ifdef __CUDACC__
    if (cudaMalloc(&data_, count * sizeof(T)) != cudaSuccess) {
      std::abort();
    }
#else
    data_ = static_cast<T*>(std::malloc(count * sizeof(T)));
#endif
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
#ifdef __CUDACC__
    cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
#else
    std::memcpy(data_, host.data(), host.size() * sizeof(T));
#endif
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
#ifdef __CUDACC__
    cudaFree(data_);
#else
    std::free(data_);
#endif
  }
  T* get() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> host(count_);
#ifdef __CUDACC__
    cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
#else
    std::memcpy(host.data(), data_, count_ * sizeof(T));
#endif
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace

int main() {
  constexpr int64_t kTokens = 4096;  // the capacity; the row's own length comes from its position
  constexpr int64_t kScoreCols = kTokens / 4;
  constexpr int64_t kBudget = 2048;
  constexpr int32_t kPosition = 4001;  // 1,000 complete blocks and a tail of 2 tokens
  constexpr int32_t kBlocks = (kPosition + 1) / 4;

  // Every other block scores 1, so that 500 are above the rest and 12 of those tie for what is left.
  std::vector<float> scores(kScoreCols, 0.0f);
  for (int32_t block = 1; block < kBlocks; block += 2) {
    scores[block] = 1.0f;
  }
  const Device<float> device_scores(scores);
  const Device<int32_t> rows(std::vector<int32_t>{kPosition});
  const Device<uint8_t> mask(kTokens);
  const Device<int32_t> ids(kBudget + 3);
  const Device<int32_t> counts(1);

  int32_t status = qsa_select(device_scores.get(), rows.get(), nullptr, mask.get(), 1, kTokens, kScoreCols,
                              kBudget, nullptr);
  if (status == QSA_OK) {
    status = qsa_select_ids(device_scores.get(), rows.get(), nullptr, ids.get(), counts.get(), 1, kTokens,
                            kScoreCols, kBudget, nullptr);
  }
  if (status != QSA_OK) {
    std::fprintf(stderr, "selecting one row: the library answered %d\n", static_cast<int>(status));
    return 1;
  }

  // The odd blocks, the first twelve even ones, and the tail.
  const std::vector<uint8_t> marked = mask.read();
  const std::vector<int32_t> listed = ids.read();
  int32_t selected = 0;
  for (int32_t token = 0; token < kTokens; ++token) {
    const int32_t block = token / 4;
    const bool is_kept = block < kBlocks && (block % 2 == 1 || block < 24);
    const bool is_selected = is_kept || (token / 4 == kBlocks && token <= kPosition);
    if (marked[token] != (is_selected ? 1 : 0) || (is_selected && listed[selected] != token)) {
      std::fprintf(stderr, "token %d: mask %d, expected %d\n", static_cast<int>(token), marked[token],
                   is_selected);
      return 1;
    }
    selected += is_selected ? 1 : 0;
  }
  if (counts.read()[0] != selected || listed[selected] != -1) {
    std::fprintf(stderr, "the count is %d, expected %d\n", static_cast<int>(counts.read()[0]),
                 static_cast<int>(selected));
    return 1;
  }
  std::printf("%d of %d tokens selected\n", static_cast<int>(selected), static_cast<int>(kPosition + 1));
  return 0;
}
