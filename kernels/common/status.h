// What a kernel's C entry returns. Zero is the only success; everything else launched nothing, or ended
// early. Plain C, so that an engine's bindings can include it.
#pragma once

// The arguments were refused before anything was launched.
#define QSA_OK 0
#define QSA_NULL_POINTER 1
#define QSA_BAD_EXTENT 2  // negative, zero where zero is refused, or beyond what the kernel serves
#define QSA_BAD_BUDGET 3
#define QSA_BAD_STRIDE 4
#define QSA_BAD_ROTARY 5
#define QSA_BAD_EPS 6

// The launch itself.
#define QSA_LAUNCH_FAILED 7  // the CUDA runtime refused the launch
#define QSA_UNSUPPORTED 8    // this device cannot run the kernel

// Host emulation only: a GPU would have lost its context, hung, or refused the launch.
#define QSA_HOST_TRAPPED 100
#define QSA_HOST_DIVERGED 101      // a collective was misused, or nothing could run any more
#define QSA_HOST_OUT_OF_FUEL 102   // the launch ran longer than the fuel it was given
#define QSA_HOST_LAUNCH_LIMIT 103  // the launch asked for more than the device has
