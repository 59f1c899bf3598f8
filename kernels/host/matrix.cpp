// Tensor-core tiles and asynchronous copies.
#include <algorithm>
#include <string.h>

#include "host/bfloat16.h"
#include "host/checker.h"
#include "host/findings.h"
#include "host/runtime.h"

namespace qsa::host {

namespace {

// A lane's operands, on its own stack while it waits.
struct MmaOperands {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
};

struct LoadOperands {
  uint32_t* d;
  const unsigned char* row;
  uint32_t matrices;
  bool transposed;
};

double low(uint32_t pair) { return __bfloat162float(__nv_bfloat16{static_cast<uint16_t>(pair)}); }
double high(uint32_t pair) { return __bfloat162float(__nv_bfloat16{static_cast<uint16_t>(pair >> 16)}); }

template <class Operands>
Operands& operands(Warp& warp, uint32_t lane) {
  return *reinterpret_cast<Operands*>(warp.value[lane]);
}

}  // namespace

void mma(CallSite site, float* d, const uint32_t* a, const uint32_t* b, const float* c) {
  // Copies on this stack: the last lane to arrive reads and writes them, and the checker knows whose they
  // are.
  uint32_t a_copy[4] = {a[0], a[1], a[2], a[3]};
  uint32_t b_copy[2] = {b[0], b[1]};
  float c_copy[4] = {c[0], c[1], c[2], c[3]};
  float result[4];
  MmaOperands mine{result, a_copy, b_copy, c_copy};
  warp_collective(site, WarpOp::kMma, 0xffffffffu, reinterpret_cast<uintptr_t>(&mine), 0);
  memcpy(d, result, sizeof(result));
}

// PTX's layout of m16n8k16: with g = lane / 4 and t = lane % 4, a holds rows g and g + 8 of the 16x16 left
// tile at columns 2t, 2t + 1 and those plus 8; b holds column g of the 16x8 right tile at rows 2t, 2t + 1 and
// those plus 8; c and d hold rows g and g + 8 at columns 2t and 2t + 1. Products are exact and summed in
// double, rounded once: how a tensor core rounds on the way is not modelled.
void compute_mma(Warp& warp) {
  double left[16][16];
  double right[16][8];
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const MmaOperands& mine = operands<MmaOperands>(warp, lane);
    const uint32_t g = lane / 4;
    const uint32_t t = 2 * (lane % 4);
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = g + 8 * (i % 2);
      const uint32_t column = t + 8 * (i / 2);
      left[row][column] = low(mine.a[i]);
      left[row][column + 1] = high(mine.a[i]);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      right[t + 8 * i][g] = low(mine.b[i]);
      right[t + 8 * i + 1][g] = high(mine.b[i]);
    }
  }
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const MmaOperands& mine = operands<MmaOperands>(warp, lane);
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = lane / 4 + 8 * (i / 2);
      const uint32_t column = 2 * (lane % 4) + i % 2;
      double sum = mine.c[i];
      for (uint32_t k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
      mine.d[i] = static_cast<float>(sum);
    }
  }
}

void load_matrix(CallSite site, uint32_t* d, const void* row, uint32_t matrices, bool transposed) {
  uint32_t result[4];
  LoadOperands mine{result, static_cast<const unsigned char*>(row), matrices, transposed};
  const uint32_t kind = matrices * 2 + (transposed ? 1 : 0);
  // Lanes whose rows are not used may pass anything.
  if (current->lane < 8 * matrices) checker::load_row(site, row);
  warp_collective(site, WarpOp::kLoadMatrix, 0xffffffffu, reinterpret_cast<uintptr_t>(&mine), kind);
  memcpy(d, result, matrices * sizeof(uint32_t));
}

// Lane 8m + r names row r of matrix m. A lane receives two neighbours of a row, or of a column when
// transposed.
void compute_load_matrix(Warp& warp) {
  const LoadOperands first = operands<LoadOperands>(warp, 0);
  for (uint32_t m = 0; m < first.matrices; ++m) {
    uint16_t tile[8][8];
    for (uint32_t r = 0; r < 8; ++r)
      memcpy(tile[r], operands<LoadOperands>(warp, 8 * m + r).row, sizeof(tile[r]));
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const uint32_t g = lane / 4;
      const uint32_t t = 2 * (lane % 4);
      // The lane that names a row and the lanes that receive from it all read it: stores of other lanes need
      // a
      // __syncwarp before, which the collective itself is not.
      const auto receive = [&](uint32_t row, uint32_t word) {
        checker::receive(warp.first[lane], operands<LoadOperands>(warp, 8 * m + row).row + 4 * word);
      };
      if (first.transposed) {
        receive(t, g / 2);
        receive(t + 1, g / 2);
      } else {
        receive(g, t / 2);
      }
      const uint32_t low_half = first.transposed ? tile[t][g] : tile[g][t];
      const uint32_t high_half = first.transposed ? tile[t + 1][g] : tile[g][t + 1];
      operands<LoadOperands>(warp, lane).d[m] = low_half | (high_half << 16);
    }
  }
}

// --- asynchronous copies: nothing arrives before the wait, so a missing wait shows ---
void async_copy(CallSite site, void* shared, const void* global) {
  const uint32_t since = checker::copy_source(site, global);
  ThreadState& state = state_of(*current);
  state.copies.push_back(AsyncCopy{shared, global, state.copy_group, since, site});
}

void async_copy_commit() { ++state_of(*current).copy_group; }

void async_copy_wait(uint32_t groups_left) {
  ThreadState& state = state_of(*current);
  size_t done = 0;
  for (; done < state.copies.size() && state.copies[done].group + groups_left < state.copy_group; ++done) {
    const AsyncCopy& copy = state.copies[done];
    checker::copy_destination(copy.site, copy.shared, copy.since);
    memcpy(copy.shared, copy.global, 16);
  }
  state.copies.erase(state.copies.begin(), state.copies.begin() + static_cast<int64_t>(done));
}

}  // namespace qsa::host
