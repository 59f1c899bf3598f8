// qsa_ingest, qsa_ingest_step: a sequence's new tokens, and the keys of the blocks they complete.
//
// Computes   qsa_ingest, for the rows of tokens first_position .. first_position + row_count - 1:
//              the raw keys of the rows into raw_keys, bit by bit                  [ingest.keeps-raw-keys]
//              for every block whose fourth token is among them, and no other, its key as qsa_pool gives it;
//              tokens before first_position come from raw_keys                    [ingest.completed-blocks]
//            qsa_ingest_step: the same for the one row of the token at position[0], which lies on the device,
//              and what the launches behind it in a captured step read there      [ingest.step-words]
//                step = {tokens visible, 1, position, 0}
//                cos_row, sin_row = the tables' row of the position               [ingest.step-tables]
//              With these the score reads one fused row as row 0 of tables of one row, so that nothing a
//              graph holds depends on the position. A position of -1 is an empty slot: step = {0, 0, 0, 0}
//              and nothing else is written                                           [ingest.empty-slot]
// Inputs     fused_qk [row_count, 640] bf16 (the step's: [1, 640]), the raw key in columns 512 .. 639
//            k_norm_weight [128] bf16; cos, sin [tokens, 64] bf16, by absolute position
//            raw_keys [tokens, 128] bf16: read before first_position, within the block that it begins in
// Outputs    raw_keys, block_keys [tokens / 4, 128] bf16; rows of other tokens and blocks keep every bit
//                                                                                [ingest.nothing-else]
// Requires   base pointers of bf16 buffers aligned to 16 bytes; fused_stride 640; rotary_dim 64;
//            first_position + row_count <= tokens.
// Traps      a position outside -1 .. tokens - 1                                 [ingest.position-traps]
// Succeeds   with nothing to do for no rows.
// Numerics   as qsa_pool, by the same code: how tokens are split into calls changes no bit.
// Launch     a warp a block that the rows touch.
// Scratch    none.
// Not for    rows out of order: what raw_keys hold before first_position is taken as it is. A
//            rewound sequence goes on from its new end; the block it ends in is pooled again when it is
//            complete again.

#include "common/portability.cuh"
#include "common/status.h"
#include "qsa/block_mean.cuh"
#include "qsa/head_vector.cuh"

#ifndef QSA_INGEST_THREADS
#define QSA_INGEST_THREADS 128
#endif

namespace qsa {
namespace {

constexpr int kIngestThreads = QSA_INGEST_THREADS;
constexpr int kBlocksPerCta = kIngestThreads / kWarpLanes;
static_assert(kIngestThreads % kWarpLanes == 0 && kIngestThreads >= kWarpLanes && kIngestThreads <= 1024,
              "QSA_INGEST_THREADS is a whole number of warps, 32 to 1024");

struct IngestArguments {
  const uint16_t* fused_qk;
  const uint16_t* k_norm_weight;
  const uint16_t* cos;
  const uint16_t* sin;
  uint16_t* raw_keys;
  uint16_t* block_keys;
  int64_t tokens;
  float eps;
};

// What a launch behind this one reads: how many tokens its row sees, whether there is a row, the row's
// position, and the number of the only row that it is given.
struct StepOutputs {
  const int32_t* position;
  int32_t* step;
  uint16_t* cos_row;
  uint16_t* sin_row;
};

// The warp takes the tokens of `block` that lie in first .. end - 1 and, if they complete it, pools it.
__device__ __forceinline__ void ingest_block(const IngestArguments& arguments, int64_t block, int64_t first,
                                             int64_t end, int lane) {
  const int64_t first_token = block * kRatio;
  LaneDims key[kRatio];
  for (int i = 0; i < kRatio; ++i) {
    const int64_t token = first_token + i;
    uint2* kept = reinterpret_cast<uint2*>(arguments.raw_keys + token * kHeadDim) + lane;
    if (token < first) {
      const uint2 packed = *kept;
      key[i] = unpack(packed);
    } else if (token < end) {
      const uint16_t* fresh = arguments.fused_qk + (token - first) * kFusedStride + kKeyColumn;
      const uint2 packed = reinterpret_cast<const uint2*>(fresh)[lane];
      key[i] = unpack(packed);
      *kept = packed;  // [ingest.keeps-raw-keys] a NaN's payload too
    }
  }
  // [ingest.completed-blocks] an incomplete block has no key: its mean would be another one.
  if (first_token + kRatio > end) {
    return;
  }
  const LaneDims weight = load_lane_dims(arguments.k_norm_weight, lane);
  const LaneDims normed = rms_norm(mean_of_keys(key), weight, arguments.eps);
  const uint16_t* cos_row = arguments.cos + first_token * kRotaryDim;
  const uint16_t* sin_row = arguments.sin + first_token * kRotaryDim;
  store_lane_dims(arguments.block_keys + block * kHeadDim, lane, rotate(normed, cos_row, sin_row, lane));
}

__global__ void __launch_bounds__(kIngestThreads)
    ingest_kernel(IngestArguments arguments, int64_t first, int64_t end) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t block = first / kRatio + static_cast<int64_t>(blockIdx.x) * kBlocksPerCta + warp;
  // A whole warp leaves or stays: the norm is a collective.
  if (block * kRatio >= end) {
    return;
  }
  ingest_block(arguments, block, first, end, lane);
}

// [ingest.step-tables] 16 bytes a lane, the tables' row in eight lanes.
__device__ __forceinline__ void copy_table_row(const uint16_t* table, int64_t position, uint16_t* row,
                                               int lane) {
  constexpr int kDimsPerVector = 8;
  if (lane < kRotaryDim / kDimsPerVector) {
    const uint4* from = reinterpret_cast<const uint4*>(table + position * kRotaryDim);
    reinterpret_cast<uint4*>(row)[lane] = from[lane];
  }
}

__global__ void __launch_bounds__(kWarpLanes) step_kernel(IngestArguments arguments, StepOutputs outputs) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t position = __ldg(outputs.position);
  if (position < -1 || position >= arguments.tokens) {
    QSA_TRAP("a position outside -1 .. tokens - 1");
  }
  // [ingest.empty-slot] visible tokens 0 and no live row: the launches behind this one then do nothing
  // either.
  const bool live = position >= 0;
  if (lane == 0) {
    outputs.step[0] = static_cast<int32_t>(position) + 1;
    outputs.step[1] = live ? 1 : 0;
    outputs.step[2] = live ? static_cast<int32_t>(position) : 0;
    outputs.step[3] = 0;
  }
  if (!live) {
    return;
  }
  copy_table_row(arguments.cos, position, outputs.cos_row, lane);
  copy_table_row(arguments.sin, position, outputs.sin_row, lane);
  ingest_block(arguments, position / kRatio, position, position + 1, lane);
}

int32_t refuse(const IngestArguments& arguments, int64_t first_position, int64_t row_count,
               int64_t fused_stride, int64_t rotary_dim) {
  if (arguments.tokens < 0 || arguments.tokens > INT32_MAX || first_position < 0 || row_count < 0 ||
      first_position > arguments.tokens || row_count > arguments.tokens - first_position) {
    return QSA_BAD_EXTENT;
  }
  if (fused_stride != kFusedStride) {
    return QSA_BAD_STRIDE;
  }
  if (rotary_dim != kRotaryDim) {
    return QSA_BAD_ROTARY;
  }
  // Written so that a NaN is refused too.
  return arguments.eps >= 0.0f ? QSA_OK : QSA_BAD_EPS;
}

int32_t refuse_pointers(const void* const* buffers, int count) {
  for (int i = 0; i < count; ++i) {
    if (buffers[i] == nullptr) {
      return QSA_NULL_POINTER;
    }
    if (!is_aligned16(buffers[i])) {
      return QSA_UNSUPPORTED;
    }
  }
  return QSA_OK;
}

}  // namespace
}  // namespace qsa

extern "C" int32_t qsa_ingest(const uint16_t* fused_qk, const uint16_t* k_norm_weight, const uint16_t* cos,
                              const uint16_t* sin, uint16_t* raw_keys, uint16_t* block_keys,
                              int64_t first_position, int64_t row_count, int64_t tokens, int64_t fused_stride,
                              int64_t rotary_dim, float eps, void* stream) {
  const qsa::IngestArguments arguments{fused_qk, k_norm_weight, cos, sin, raw_keys, block_keys, tokens, eps};
  const int32_t refusal = qsa::refuse(arguments, first_position, row_count, fused_stride, rotary_dim);
  if (refusal != QSA_OK || row_count == 0) {
    return refusal;
  }
  // block_keys may be null where no block can be complete.
  const void* buffers[] = {fused_qk, k_norm_weight, cos, sin, raw_keys, block_keys};
  const int32_t pointers = qsa::refuse_pointers(buffers, tokens < qsa::kRatio ? 5 : 6);
  if (pointers != QSA_OK) {
    return pointers;
  }
  const int64_t end = first_position + row_count;
  const int64_t touched = (end + qsa::kRatio - 1) / qsa::kRatio - first_position / qsa::kRatio;
  const dim3 grid(static_cast<unsigned>((touched + qsa::kBlocksPerCta - 1) / qsa::kBlocksPerCta));
  const dim3 block(qsa::kIngestThreads);
  return QSA_LAUNCH(qsa::ingest_kernel, grid, block, 0, stream, arguments, first_position, end);
}

extern "C" int32_t qsa_ingest_step(const uint16_t* fused_qk, const uint16_t* k_norm_weight,
                                   const uint16_t* cos, const uint16_t* sin, const int32_t* position,
                                   uint16_t* raw_keys, uint16_t* block_keys, int32_t* step, uint16_t* cos_row,
                                   uint16_t* sin_row, int64_t tokens, int64_t fused_stride,
                                   int64_t rotary_dim, float eps, void* stream) {
  const qsa::IngestArguments arguments{fused_qk, k_norm_weight, cos, sin, raw_keys, block_keys, tokens, eps};
  const int32_t refusal = qsa::refuse(arguments, 0, 0, fused_stride, rotary_dim);
  if (refusal != QSA_OK) {
    return refusal;
  }
  if (position == nullptr || step == nullptr) {
    return QSA_NULL_POINTER;
  }
  const void* buffers[] = {fused_qk, k_norm_weight, cos, sin, raw_keys, cos_row, sin_row, block_keys};
  const int32_t pointers = qsa::refuse_pointers(buffers, tokens < qsa::kRatio ? 7 : 8);
  if (pointers != QSA_OK) {
    return pointers;
  }
  const qsa::StepOutputs outputs{position, step, cos_row, sin_row};
  return QSA_LAUNCH(qsa::step_kernel, dim3(1), dim3(qsa::kWarpLanes), 0, stream, arguments, outputs);
}
