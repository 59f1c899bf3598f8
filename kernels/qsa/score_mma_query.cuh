// The query of one row as the tensor cores read it: one warp builds all four heads, as bf16.
//
// Lane 8h + t works on head h and holds its groups of four dims t, t + 8, t + 16 and t + 24. Against one head
// a warp (head_vector.cuh) this needs 3 exchanges a row instead of 24, since the halves of a rotated pair lie
// in the same lane.
//
// Numerics: operation by operation those of rms_norm() and rotate() in head_vector.cuh, so the bits are the
// same. The tree of the sum of squares is too: that butterfly adds groups 16 apart, then 8, both inside a
// lane here, then lanes 4, 2 and 1 apart.
#pragma once

#include <cstdint>

#include "common/portability.cuh"
#include "qsa/head_vector.cuh"
#include "qsa/score_row.cuh"

// What a thread holds stays in registers only if every function that sees it is inlined and every index into
// it is known when the code is compiled. On a CPU both would only cost compile time.
#if QSA_HOST
#define QSA_SCORE_PASS inline
#define QSA_SCORE_UNROLL
#define QSA_SCORE_ROLLED
#else
#define QSA_SCORE_PASS __forceinline__
#define QSA_SCORE_UNROLL _Pragma("unroll")
#define QSA_SCORE_ROLLED _Pragma("unroll 1")
#endif

namespace qsa {
namespace score_query {

constexpr int kHeadLanes = kWarpLanes / kQueryHeads;
constexpr int kGroupDims = kDimsPerLane;                       // 4: 8 bytes of bf16
constexpr int kGroups = kHeadDim / (kHeadLanes * kGroupDims);  // 4 groups of a head a lane
constexpr int kGroupStride = kHeadLanes * kGroupDims;          // 32 dims between a lane's groups
constexpr int kRotaryGroups = kRotaryDim / kGroupStride;       // the first two: the halves of the pairs
static_assert(kGroupStride == kRotaryHalf, "a lane holds both halves of its rotated pairs");

constexpr int kChunkDims = 8;  // bf16 in 16 bytes

// Four dims of two heads: one register of each left operand of m16n8k16. Word 2i + h is dims 2i, 2i + 1 of
// head h.
constexpr int kHeadPairs = kQueryHeads / 2;
constexpr int kHeadGroups = kHeadDim / kGroupDims;   // 32
constexpr int kRowUnits = kHeadPairs * kHeadGroups;  // 1 KB a row

// What a lane reads of a row before it computes.
struct RowWords {
  uint2 raw[kGroups];
  uint2 cosine[kRotaryGroups];
  uint2 sine[kRotaryGroups];
};

struct WeightWords {
  uint2 group[kGroups];
};

// 1 + w of the lane's dims.
struct Weights {
  LaneDims group[kGroups];
};

// `first` is where the lane's group 0 begins.
__device__ QSA_SCORE_PASS uint2 load_group(const uint16_t* first, int group) {
  return __ldg(reinterpret_cast<const uint2*>(first + group * kGroupStride));
}

__device__ QSA_SCORE_PASS int first_dim(int lane) { return lane % kHeadLanes * kGroupDims; }

__device__ QSA_SCORE_PASS WeightWords load_weights(const ScoreArguments& arguments, int lane) {
  WeightWords words;
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    words.group[k] = load_group(arguments.q_norm_weight + first_dim(lane), k);
  }
  return words;
}

// [norm.one-plus-weight] the stored weight is the distance from one.
__device__ QSA_SCORE_PASS Weights one_plus(const WeightWords& words) {
  Weights weights;
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    weights.group[k] = unpack(words.group[k]);
    QSA_SCORE_UNROLL
    for (int i = 0; i < kGroupDims; ++i) {
      weights.group[k].dim[i] = __fadd_rn(1.0f, weights.group[k].dim[i]);
    }
  }
  return weights;
}

// Only for a position that require_position() has passed.
__device__ QSA_SCORE_PASS RowWords load_row(const ScoreArguments& arguments, int64_t position, int lane) {
  const QueryPlace place = query_place(arguments, position);
  const int dim = first_dim(lane);
  const uint16_t* raw = place.heads + (lane / kHeadLanes * kHeadDim + dim);
  const uint16_t* cosine = place.cosine + dim;
  const uint16_t* sine = place.sine + dim;
  RowWords words;
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    words.raw[k] = load_group(raw, k);
  }
  QSA_SCORE_UNROLL
  for (int k = 0; k < kRotaryGroups; ++k) {
    words.cosine[k] = load_group(cosine, k);
    words.sine[k] = load_group(sine, k);
  }
  return words;
}

__device__ QSA_SCORE_PASS float inverse_root_mean_square(const LaneDims (&x)[kGroups], float eps) {
  // The square of a bf16 is exact in f32, so adding it by FMA rounds as adding it does.
  float group_sum[kGroups];
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    const float (&dim)[kGroupDims] = x[k].dim;
    const float front = __fmaf_rn(dim[1], dim[1], __fmul_rn(dim[0], dim[0]));
    const float back = __fmaf_rn(dim[3], dim[3], __fmul_rn(dim[2], dim[2]));
    group_sum[k] = __fadd_rn(front, back);
  }
  float sum = __fadd_rn(__fadd_rn(group_sum[0], group_sum[2]), __fadd_rn(group_sum[1], group_sum[3]));
  QSA_SCORE_UNROLL
  for (int distance = kHeadLanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
  }
  return inverse_root(sum, eps);
}

__device__ QSA_SCORE_PASS uint2 pack(const LaneDims& x) {
  return make_uint2(pack_bf16(x.dim[0], x.dim[1]), pack_bf16(x.dim[2], x.dim[3]));
}

// x * y and x + y, each element rounded once to bf16: two at a time where there are instructions for it. They
// give the bits of f32 arithmetic and a rounding: the product of two bf16 is exact in f32, and so is their
// sum unless one is too small beside the other to change its rounding.
__device__ QSA_SCORE_PASS uint32_t multiply_pair(uint32_t x, uint32_t y) {
#if QSA_HOST
  return pack_bf16(__fmul_rn(bf16_low_half(x), bf16_low_half(y)),
                   __fmul_rn(bf16_high_half(x), bf16_high_half(y)));
#else
  const __nv_bfloat162 product =
      __hmul2_rn(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(y));
  return reinterpret_cast<const uint32_t&>(product);
#endif
}

__device__ QSA_SCORE_PASS uint32_t add_pair(uint32_t x, uint32_t y) {
#if QSA_HOST
  return pack_bf16(__fadd_rn(bf16_low_half(x), bf16_low_half(y)),
                   __fadd_rn(bf16_high_half(x), bf16_high_half(y)));
#else
  const __nv_bfloat162 sum =
      __hadd2_rn(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(y));
  return reinterpret_cast<const uint32_t&>(sum);
#endif
}

__device__ QSA_SCORE_PASS uint32_t negate_pair(uint32_t x) { return x ^ 0x80008000u; }

// [rotation.three-roundings] both products and their sum are each rounded to bf16.
__device__ QSA_SCORE_PASS uint32_t rotate_pair(uint32_t x, uint32_t cosine, uint32_t half_turn,
                                               uint32_t sine) {
  return add_pair(multiply_pair(x, cosine), multiply_pair(half_turn, sine));
}

// The lane's part of a row's heads as bf16: groups lane % 8 + 8k of head lane / 8.
struct PackedRow {
  uint2 group[kGroups];
};

// The whole warp calls it.
// [score.query-norm-then-rotation] norm, bf16, then the rotation at the row's own position.
// [rotation.half-split] dim i pairs with dim i + 32; the first half takes the negated partner.
__device__ QSA_SCORE_PASS PackedRow build_row(const RowWords& words, const Weights& weights, float eps) {
  LaneDims x[kGroups];
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    x[k] = unpack(words.raw[k]);
  }
  const float inverse = inverse_root_mean_square(x, eps);
  PackedRow row;
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    QSA_SCORE_UNROLL
    for (int i = 0; i < kGroupDims; ++i) {
      x[k].dim[i] = __fmul_rn(__fmul_rn(x[k].dim[i], inverse), weights.group[k].dim[i]);
    }
    row.group[k] = pack(x[k]);
  }
  const uint2 front = row.group[0];
  const uint2 back = row.group[1];
  const uint2 negated = make_uint2(negate_pair(back.x), negate_pair(back.y));
  row.group[0] = make_uint2(rotate_pair(front.x, words.cosine[0].x, negated.x, words.sine[0].x),
                            rotate_pair(front.y, words.cosine[0].y, negated.y, words.sine[0].y));
  row.group[1] = make_uint2(rotate_pair(back.x, words.cosine[1].x, front.x, words.sine[1].x),
                            rotate_pair(back.y, words.cosine[1].y, front.y, words.sine[1].y));
  return row;
}

// A row of the launch as lanes hold it; nothing is known of a row that sees nothing.
struct LaneRow {
  int visible;
  int live;  // blocks
  int position;
};

// Row `row` after all checks; one past the last row sees nothing.
__device__ QSA_SCORE_PASS LaneRow load_lane_row(const ScoreArguments& arguments, int64_t row) {
  const bool exists = row < arguments.row_count;
  LaneRow lane_row;
  lane_row.visible = exists ? arguments.visible_len[row] : 0;
  // Loaded beside the length, not after it: either load waits 600 clocks.
  lane_row.position = exists ? arguments.rows[row] : 0;
  require_visible_len(arguments, lane_row.visible);
  // [score.zero-visible] a row that sees nothing is a padding row; its position is not looked at.
  if (lane_row.visible != 0) {
    require_position(arguments, lane_row.position);
  }
  lane_row.live = lane_row.visible / kRatio;
  return lane_row;
}

constexpr int kQuadLanes = 4;  // lanes that share a row or a column of an operand
constexpr int kGroupRows = 8;  // query rows of a pair of left operands: one a quad

// Row `row` of the group whose row g is that of quad g; the whole warp calls it.
__device__ QSA_SCORE_PASS RowWords load_group_row(const ScoreArguments& arguments, const LaneRow& lane_row,
                                                  int row, int lane) {
  const int position = __shfl_sync(kFullWarp, lane_row.position, row * kQuadLanes);
  const bool is_row = __shfl_sync(kFullWarp, lane_row.visible, row * kQuadLanes) != 0;
  // Of a row that sees nothing the query is zero, and nothing of it is written.
  return is_row ? load_row(arguments, position, lane) : RowWords{};
}

// Where a unit of row `row` stands in shared memory. Neighbours trade places in every other row and pair: the
// two rows, or the two pairs of a row, that lanes read together then lie in different banks.
__device__ QSA_SCORE_PASS int unit_place(int row, int pair, int group) {
  return row * kRowUnits + pair * kHeadGroups + (group ^ ((row + pair) & 1));
}

// One head by one warp, lane l holding dims 4l .. 4l + 3: the layout of head_vector.cuh. More work than a row
// by a warp, but a third of the instructions from the loads to the stores, which is what a single row waits
// for.
struct HeadWords {
  uint2 raw;
  uint2 weight;
  uint2 cosine;
  uint2 sine;
};

// Only for a position that require_position() has passed.
__device__ QSA_SCORE_PASS HeadWords load_head(const ScoreArguments& arguments, int64_t position, int head,
                                              int lane) {
  const QueryPlace place = query_place(arguments, position);
  const uint16_t* raw = place.heads + head * kHeadDim;
  // The lanes past the rotary dims load what they do not use.
  const int angle = lane % kRotaryLanes * kDimsPerLane;
  HeadWords words;
  words.raw = __ldg(reinterpret_cast<const uint2*>(raw + lane * kDimsPerLane));
  words.weight = __ldg(reinterpret_cast<const uint2*>(arguments.q_norm_weight + lane * kDimsPerLane));
  words.cosine = __ldg(reinterpret_cast<const uint2*>(place.cosine + angle));
  words.sine = __ldg(reinterpret_cast<const uint2*>(place.sine + angle));
  return words;
}

// The lane's four dims of the head; the whole warp calls it.
__device__ QSA_SCORE_PASS uint2 build_head(const HeadWords& words, float eps, int lane) {
  const LaneDims normed = rms_norm(unpack(words.raw), unpack(words.weight), eps);
  const uint2 x = pack(normed);
  // The exchange is outside the choice: every lane named by the mask has to take part.
  const uint2 partner = make_uint2(__shfl_xor_sync(kFullWarp, x.x, kPartnerLane),
                                   __shfl_xor_sync(kFullWarp, x.y, kPartnerLane));
  const bool is_front = lane < kPartnerLane;
  const uint2 half_turn = make_uint2(is_front ? negate_pair(partner.x) : partner.x,
                                     is_front ? negate_pair(partner.y) : partner.y);
  const uint2 rotated = make_uint2(rotate_pair(x.x, words.cosine.x, half_turn.x, words.sine.x),
                                   rotate_pair(x.y, words.cosine.y, half_turn.y, words.sine.y));
  return lane < kRotaryLanes ? rotated : x;
}

// Stores four dims of a head in the units of row `row` of `query`.
__device__ QSA_SCORE_PASS void store_group(uint2 packed, uint4* query, int row, int head, int group) {
  uint32_t* words = reinterpret_cast<uint32_t*>(query + unit_place(row, head / 2, group));
  words[head % 2] = packed.x;
  words[2 + head % 2] = packed.y;
}

// Stores a row as the units of row `row` of `query`.
__device__ QSA_SCORE_PASS void store_units(const PackedRow& packed, uint4* query, int row, int lane) {
  QSA_SCORE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    store_group(packed.group[k], query, row, lane / kHeadLanes, lane % kHeadLanes + k * kHeadLanes);
  }
}

}  // namespace score_query
}  // namespace qsa
