// Everything a kernel file sees of CUDA when g++ compiles it for the CPU. Light on purpose: a mutant is
// compiled in well under half a second, so no heavy standard header comes in from here.
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "host/vector_types.h"
#include "host/intrinsics.h"
#include "host/bfloat16.h"
#include "host/collectives.h"
#include "host/atomics.h"
#include "host/shared.h"
#include "host/cluster.h"
#include "host/launch.h"

#define QSA_HOST 1

// `__shared__` is left undefined: shared memory is declared with QSA_SHARED and QSA_DYNAMIC_SHARED.
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// On a GPU it saves registers; here it would double what a mutant's compilation costs.
#define __forceinline__ inline
// As under nvcc, a standard header that spells `__attribute__((__noinline__))` must come before this one.
#define __noinline__ __attribute__((noinline))
