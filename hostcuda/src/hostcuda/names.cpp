// Entry points that this driver politely refuses, and those that do what another does.
// <cuda.h> is not included: it maps some of these names to others and declares their parameters.
#define EXPORT extern "C" __attribute__((visibility("default"))) int
#define REFUSE(name) EXPORT name() { return 801; }  // NOT_SUPPORTED
#define SAME(name, other)                        \
  EXPORT other(long a, long b, long c, long d); \
  EXPORT name(long a, long b, long c, long d) { return other(a, b, c, d); }

// Libraries of kernels are modules of the context that loads them: loading.cpp
SAME(cuLibraryLoadFromFile, cuModuleLoad) SAME(cuLibraryUnload, cuModuleUnload)
SAME(cuLibraryGetKernel, cuModuleGetFunction) SAME(cuLibraryGetGlobal, cuModuleGetGlobal_v2)
SAME(cuKernelGetParamInfo, cuFuncGetParamInfo) SAME(cuKernelGetAttribute, cuFuncGetAttribute)
SAME(cuKernelSetCacheConfig, cuFuncSetCacheConfig)
// A name of CUDA 13's, and another call before a launch that PyCUDA makes for nothing
SAME(cuEventElapsedTime_v2, cuEventElapsedTime) SAME(cuFuncSetSharedSize, cuFuncSetBlockShape)
// Surfaces are textures here
SAME(cuSurfObjectDestroy, cuTexObjectDestroy)

// Texture and surface references, which CUDA 12 removed
REFUSE(cuModuleGetTexRef) REFUSE(cuModuleGetSurfRef) REFUSE(cuTexRefCreate) REFUSE(cuTexRefDestroy)
REFUSE(cuTexRefGetAddress_v2) REFUSE(cuTexRefGetAddressMode) REFUSE(cuTexRefGetArray)
REFUSE(cuTexRefGetFilterMode) REFUSE(cuTexRefGetFlags) REFUSE(cuTexRefGetFormat)
REFUSE(cuTexRefSetAddress_v2) REFUSE(cuTexRefSetAddress2D_v3) REFUSE(cuTexRefSetAddressMode)
REFUSE(cuTexRefSetArray) REFUSE(cuTexRefSetBorderColor) REFUSE(cuTexRefSetFilterMode)
REFUSE(cuTexRefSetFlags) REFUSE(cuTexRefSetFormat) REFUSE(cuTexRefSetMaxAnisotropy)
REFUSE(cuSurfRefGetArray) REFUSE(cuSurfRefSetArray) REFUSE(cuParamSetTexRef)
// Launches of CUDA 3
REFUSE(cuLaunch) REFUSE(cuLaunchGrid) REFUSE(cuLaunchGridAsync) REFUSE(cuParamSetSize)
REFUSE(cuParamSeti) REFUSE(cuParamSetf) REFUSE(cuParamSetv)
// Other processes, the rest
REFUSE(cuIpcCloseMemHandle) REFUSE(cuIpcGetEventHandle) REFUSE(cuIpcGetMemHandle)
REFUSE(cuIpcOpenEventHandle) REFUSE(cuIpcOpenMemHandle_v2) REFUSE(cuStreamAttachMemAsync)
REFUSE(cuCtxGetSharedMemConfig) REFUSE(cuCtxSetSharedMemConfig) REFUSE(cuProfilerInitialize)
REFUSE(cuMemAdvise) REFUSE(cuMemPrefetchAsync) REFUSE(cuPointerSetAttribute)
