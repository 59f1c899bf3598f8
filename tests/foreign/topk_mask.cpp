// A selection kernel as a third party would write it: its own argument order, int sizes, no status, and
// nothing of this repository. Plain C++ here, so that it runs without a GPU; a CUDA library of the same entry
// maps alike.
//
// topk_mask   marks the tokens of each row's `top_k` best blocks and of its tail
// topk_list   lists the blocks alone, best first, then -1
//
// -DTIES_TO_HIGHEST   equal scores go to the highest index
// -DSIGNED_ZEROS      orders by the bits of the float, so that -0.0 lies below +0.0
// -DDROPS_THE_BEST    forgets the best block of a row that drops any
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

constexpr int kBlockTokens = 4;

// Ascending in the order that the floats have.
int64_t key_of(float score) {
#ifdef SIGNED_ZEROS
  int32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return bits < 0 ? static_cast<int64_t>(INT32_MIN) - bits : static_cast<int64_t>(bits) + 1;
#else
  const float value = score + 0.0f;  // -0.0 becomes +0.0
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits < 0 ? static_cast<int64_t>(INT32_MIN) - bits : static_cast<int64_t>(bits);
#endif
}

std::vector<int> best_blocks(const float* scores, int length, int top_k) {
  std::vector<int> order(static_cast<size_t>(length));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [scores](int left, int right) {
    const int64_t a = key_of(scores[left]), b = key_of(scores[right]);
#ifdef TIES_TO_HIGHEST
    return a != b ? a > b : left > right;
#else
    return a > b;
#endif
  });
  const int keep = std::min(length, top_k);
#ifdef DROPS_THE_BEST
  if (length > top_k) order.erase(order.begin());
#endif
  order.resize(static_cast<size_t>(keep));
  return order;
}

}  // namespace

extern "C" void topk_mask(unsigned char* out, const float* logits, const int* positions, const int* lengths,
                          int batch, int stride, int width, short* workspace, int top_k, float temperature) {
  workspace[0] = 1;  // what it is given to scribble on
  if (temperature != 1.0f) return;
  for (int row = 0; row < batch; ++row) {
    unsigned char* mask = out + static_cast<size_t>(row) * width;
    std::fill(mask, mask + width, 0);
    const float* scores = logits + static_cast<size_t>(row) * stride;
    for (const int block : best_blocks(scores, lengths[row], top_k)) {
      std::fill(mask + block * kBlockTokens, mask + (block + 1) * kBlockTokens, 1);
    }
    for (int token = lengths[row] * kBlockTokens; token <= positions[row]; ++token) mask[token] = 1;
  }
}

extern "C" int topk_list(const float* logits, const int* lengths, int* blocks, int64_t batch, int64_t stride,
                         int64_t top_k, void* /*stream*/) {
  for (int64_t row = 0; row < batch; ++row) {
    int* listed = blocks + row * top_k;
    std::fill(listed, listed + top_k, -1);
    const std::vector<int> best = best_blocks(logits + row * stride, lengths[row], static_cast<int>(top_k));
    std::copy(best.begin(), best.end(), listed);
  }
  return 0;
}
