// What a kernel's C entry returns: the public statuses, and those of the host emulation.
#pragma once

#include "include/qsa.h"

// Host emulation only: a GPU would have lost its context, hung, or refused the launch.
#define QSA_HOST_TRAPPED 100
#define QSA_HOST_DIVERGED 101      // a collective was misused, or nothing could run any more
#define QSA_HOST_OUT_OF_FUEL 102   // the launch ran longer than the fuel it was given
#define QSA_HOST_LAUNCH_LIMIT 103  // the launch asked for more than the device has
