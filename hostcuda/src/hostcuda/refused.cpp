// Entry points that PyCUDA and CuPy link to and that this driver politely refuses.
// <cuda.h> is not included: it maps some of these names to others and declares their parameters.
#define REFUSE(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 801; }  // NOT_SUPPORTED

// Texture and surface references, which CUDA 12 removed
REFUSE(cuModuleGetTexRef) REFUSE(cuModuleGetSurfRef) REFUSE(cuTexRefCreate) REFUSE(cuTexRefDestroy)
REFUSE(cuTexRefGetAddress_v2) REFUSE(cuTexRefGetAddressMode) REFUSE(cuTexRefGetArray)
REFUSE(cuTexRefGetFilterMode) REFUSE(cuTexRefGetFlags) REFUSE(cuTexRefGetFormat)
REFUSE(cuTexRefSetAddress_v2) REFUSE(cuTexRefSetAddress2D_v3) REFUSE(cuTexRefSetAddressMode)
REFUSE(cuTexRefSetArray) REFUSE(cuTexRefSetBorderColor) REFUSE(cuTexRefSetFilterMode)
REFUSE(cuTexRefSetFlags) REFUSE(cuTexRefSetFormat) REFUSE(cuTexRefSetMaxAnisotropy)
REFUSE(cuSurfRefGetArray) REFUSE(cuSurfRefSetArray) REFUSE(cuParamSetTexRef)
// Launches of CUDA 3, linking
REFUSE(cuLaunch) REFUSE(cuLaunchGrid) REFUSE(cuLaunchGridAsync) REFUSE(cuParamSetSize)
REFUSE(cuParamSeti) REFUSE(cuParamSetf) REFUSE(cuParamSetv) REFUSE(cuLinkCreate_v2)
REFUSE(cuLinkAddData_v2) REFUSE(cuLinkAddFile_v2) REFUSE(cuLinkComplete) REFUSE(cuLinkDestroy)
// Other processes, the rest
REFUSE(cuIpcCloseMemHandle) REFUSE(cuIpcGetEventHandle) REFUSE(cuIpcGetMemHandle)
REFUSE(cuIpcOpenEventHandle) REFUSE(cuIpcOpenMemHandle_v2) REFUSE(cuStreamAttachMemAsync)
REFUSE(cuCtxGetSharedMemConfig) REFUSE(cuCtxSetSharedMemConfig) REFUSE(cuProfilerInitialize)
REFUSE(cuMemAdvise) REFUSE(cuMemPrefetchAsync) REFUSE(cuPointerSetAttribute)
