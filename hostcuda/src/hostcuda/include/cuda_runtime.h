// device.h has what kernels use of it; these are for the headers of other libraries.
#pragma once
#if __has_include(<library_types.h>)
#include <library_types.h>
#else
enum libraryPropertyType { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL };
#endif
typedef struct CUstream_st *cudaStream_t;
