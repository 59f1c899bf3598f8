// Adds what the warps of a CTA, or of a cluster of CTAs, saw of one list, and writes the context.
//
// Within a CTA warps are added in turn; then each CTA of a cluster is told of the heads that it writes what
// the others found, and adds them in turn. A cluster meets once: whatever is told lies before that barrier,
// and after it a CTA reads its own memory alone.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/attention_row.cuh"
#include "qsa/attention_tiles.cuh"
#include "qsa/head_vector.cuh"

namespace qsa {
namespace attention {

constexpr int kContextFloats = kDims * kGroupHeads;

// Peaks and sums of kShares shares of a list, and the context of some heads.
template <int kShares>
struct Peaks {
  float peak[kShares][kGroupHeads];
  float sum[kShares][kGroupHeads];
};

template <int kCtas>
struct Told {
  static_assert(kGroupHeads % kCtas == 0, "a CTA writes whole heads");
  static constexpr int kPart = kContextFloats / kCtas;
  Peaks<kCtas> peaks;
  float context[kCtas][kPart];
};
template <>
struct Told<1> {
  static constexpr int kPart = kContextFloats;
};

// Shared memory of a CTA. A warp's share of the context takes the place of its ring.
template <int kWarps, int kCtas>
struct Workspace {
  Ring ring[kWarps];
  Peaks<kWarps> peaks;
  Told<kCtas> told;

  __device__ __forceinline__ float* share_of(int warp) { return reinterpret_cast<float*>(&ring[warp]); }
};

// Where an element of the context stands in a share: two words more every two heads, so that lanes of
// different heads do not meet in a bank.
__device__ __forceinline__ int share_place(int element) { return element + element / (2 * kDims) * 2; }
static_assert(sizeof(Ring) >= sizeof(float) * (kContextFloats + kGroupHeads), "a share fits its warp's ring");

// Nothing but NaN and minus infinity: any finite peak gives what they are worth.
__device__ __forceinline__ float base_of(float peak) { return peak == kNothing ? 0.0f : peak; }

struct Total {
  float peak;
  float sum;  // relative to base_of(peak)
};

template <int kShares>
__device__ __forceinline__ Total total_of(const Peaks<kShares>& peaks, int head) {
  Total total{kNothing, 0.0f};
  for (int share = 0; share < kShares; ++share) {
    total.peak = fmaxf(total.peak, peaks.peak[share][head]);
  }
  for (int share = 0; share < kShares; ++share) {
    const float scale = exp2f(__fsub_rn(peaks.peak[share][head], base_of(total.peak)));
    total.sum = __fadd_rn(total.sum, __fmul_rn(peaks.sum[share][head], scale));
  }
  return total;
}

// Writes a warp's context of 8 heads to its share, relative to the peaks of the CTA.
template <int kWarps, int kCtas>
__device__ __forceinline__ void write_share(const WarpState& state, Workspace<kWarps, kCtas>* shared,
                                            int warp, int lane) {
  const int group = lane / 4;
  const int pair = 2 * (lane % 4);
  for (int head = 0; head < 2; ++head) {
    const Total total = total_of(shared->peaks, pair + head);
    const float scale = exp2f(__fsub_rn(state.peak[head], base_of(total.peak)));
    float* share = shared->share_of(warp) + share_place((pair + head) * kDims);
    for (int tile = 0; tile < kContextTiles; ++tile) {
      const int dim = (tile / 4) * 64 + group * kVectorDims + (tile % 4) * 2;
      const float low = __fmul_rn(state.context[tile][head], scale);
      const float high = __fmul_rn(state.context[tile][2 + head], scale);
      *reinterpret_cast<float2*>(share + dim) = make_float2(low, high);
    }
  }
}

__device__ __forceinline__ void write_pair(uint16_t* context, float low, float high, float sum) {
  *reinterpret_cast<uint32_t*>(context) = pack_bf16(__fdiv_rn(low, sum), __fdiv_rn(high, sum));
}

// Adds what all CTAs told of this CTA's heads, and writes them.
template <int kThreads, int kCtas>
__device__ __forceinline__ void write_told(const Told<kCtas>& told, uint16_t* context, int rank) {
  constexpr int kPart = Told<kCtas>::kPart;
  for (int at = 2 * static_cast<int>(threadIdx.x); at < kPart; at += 2 * kThreads) {
    const int head = (rank * kPart + at) / kDims;
    const Total total = total_of(told.peaks, head);
    float low = 0.0f;
    float high = 0.0f;
    for (int cta = 0; cta < kCtas; ++cta) {
      const float2 part = *reinterpret_cast<const float2*>(&told.context[cta][at]);
      const float scale = exp2f(__fsub_rn(told.peaks.peak[cta][head], base_of(total.peak)));
      low = __fadd_rn(low, __fmul_rn(part.x, scale));
      high = __fadd_rn(high, __fmul_rn(part.y, scale));
    }
    write_pair(context + rank * kPart + at, low, high, total.sum);
  }
}

// Writes the context of 8 heads, bf16 [8, 256], CTA `rank` its heads. All threads of all CTAs call it, once
// every CTA of the cluster has begun.
template <int kWarps, int kCtas>
__device__ __forceinline__ void merge(const WarpState& state, Workspace<kWarps, kCtas>* shared,
                                      uint16_t* context, int rank, int warp, int lane) {
  constexpr int kThreads = kWarps * kWarpLanes;
  constexpr int kPart = Told<kCtas>::kPart;
  if (lane < 4) {
    for (int head = 0; head < 2; ++head) {
      shared->peaks.peak[warp][2 * lane + head] = state.peak[head];
      shared->peaks.sum[warp][2 * lane + head] = state.sum[head];
    }
  }
  // [attention.merge-barrier] every warp's peak decides every warp's scale.
  __syncthreads();
  write_share(state, shared, warp, lane);
  __syncthreads();
  for (int at = 2 * static_cast<int>(threadIdx.x); at < kContextFloats; at += 2 * kThreads) {
    const int head = at / kDims;
    const Total total = total_of(shared->peaks, head);
    float low = 0.0f;
    float high = 0.0f;
    for (int other = 0; other < kWarps; ++other) {
      const float2 part = *reinterpret_cast<const float2*>(shared->share_of(other) + share_place(at));
      low = __fadd_rn(low, part.x);
      high = __fadd_rn(high, part.y);
    }
    if constexpr (kCtas == 1) {
      write_pair(context + at, low, high, total.sum);
    } else {
      Told<kCtas>* there = map_shared_rank(&shared->told, static_cast<unsigned>(at / kPart));
      *reinterpret_cast<float2*>(&there->context[rank][at % kPart]) = make_float2(low, high);
      if (at % kDims == 0) {
        there->peaks.peak[rank][head] = total.peak;
        there->peaks.sum[rank][head] = total.sum;
      }
    }
  }
  if constexpr (kCtas > 1) {
    // [attention.told-barrier] everything is told before anything is added.
    cluster_sync();
    write_told<kThreads>(shared->told, context, rank);
  }
}

}  // namespace attention
}  // namespace qsa
