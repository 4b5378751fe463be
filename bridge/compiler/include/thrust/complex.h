// thrust/complex.h: CuPy's port of it for NVRTC, since Thrust's own needs the host's headers.
#pragma once
#include <cupy/complex/namespace.h>
// To other compilers, CuPy 13 declares constants with the names of macros in float.h.
#define _MSC_VER
#include <cupy/complex/math_private.h>
#undef _MSC_VER
#include <cupy/complex/complex.h>
