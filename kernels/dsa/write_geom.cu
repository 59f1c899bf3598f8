// dsa_write_geom: the live geometry of one sequence, for launches that a CUDA graph holds.
//
// Computes   geometry = tokens, pools with the incomplete one, whole pools, select tile, select_k
//              [dsa.words] [dsa.this-steps-length]
//              select tile: the whole pools up to the next multiple of four, the scores that a row's search
//              reads
//                in whole vectors; select_k = min(topk / kpool, whole pools)
// Outputs    geometry [5] i32
// Requires   kpool 4 or 16, topk a multiple of it
// Launch     one warp. Launched before the graph, on its stream, with this step's length: a captured launch
//            would write the length of the capture for ever.
// Scratch    none.

#include "common/portability.cuh"
#include "common/status.h"
#include "dsa/geometry.cuh"

namespace qsa {
namespace dsa {
namespace {

constexpr int kThreads = 32;

__global__ void __launch_bounds__(kThreads)
    geometry_kernel(int32_t* geometry, int32_t tokens, int32_t kpool, int32_t most_kept) {
  const int32_t whole = whole_pools_of(tokens, kpool);
  const int32_t words[kGeometryWords] = {tokens, whole + (tokens % kpool == 0 ? 0 : 1), whole,
                                         select_tile_of(whole), min(most_kept, whole)};
  for (int word = 0; word < kGeometryWords; ++word) {
    if (static_cast<int>(threadIdx.x) == word) {
      geometry[word] = words[word];
    }
  }
}

}  // namespace
}  // namespace dsa
}  // namespace qsa

extern "C" int32_t dsa_write_geom(int32_t* geometry, int64_t tokens, int64_t topk, int64_t kpool,
                                  void* stream) {
  // The tile is rounded up within int32.
  if (tokens < 0 || tokens > INT32_MAX - qsa::dsa::kTileScores) {
    return QSA_BAD_EXTENT;
  }
  if (!qsa::dsa::serves_kpool(kpool) || topk < kpool || topk % kpool != 0 || topk > INT32_MAX) {
    return QSA_BAD_BUDGET;
  }
  if (geometry == nullptr) {
    return QSA_NULL_POINTER;
  }
  return QSA_LAUNCH(qsa::dsa::geometry_kernel, dim3(1), dim3(qsa::dsa::kThreads), 0, stream, geometry,
                    static_cast<int32_t>(tokens), static_cast<int32_t>(kpool),
                    static_cast<int32_t>(topk / kpool));
}
