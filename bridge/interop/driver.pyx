# cython: auto_pickle=False
"""CUDA's driver: the functions that neither library offers, or only at a conversion's cost.

The compiled modules pass CUDA's status codes on as numbers; `bridge.interop.ordering` turns them
into errors that say what to do.

Source: CUDA Driver API (docs.nvidia.com/cuda/cuda-driver-api), and its header cuda.h.
"""

import ctypes

import pycuda.driver as drv

cdef extern from "<dlfcn.h>" nogil:
    void *dlsym(void *, const char *)

libcuda = ctypes.CDLL("libcuda.so.1")  # PyCUDA has already loaded it; its attributes are for Python
cdef void *library = <void *> <intptr_t> libcuda._handle


cdef int find(const char *name, void *function) except -1:
    """Look up a function of the driver."""
    (<void **> function)[0] = dlsym(library, name)
    if (<void **> function)[0] is NULL:
        version = drv.get_driver_version()
        raise ImportError(
            f"bridge: libcuda.so.1 has no function {name.decode()}: this driver is for CUDA "
            f"{version // 1000}.{version % 1000 // 10}; install a driver for CUDA 12.4 or later"
        )
    return 0


find("cuCtxGetCurrent", &cuCtxGetCurrent)
find("cuCtxSetCurrent", &cuCtxSetCurrent)
find("cuCtxGetDevice", &cuCtxGetDevice)
find("cuEventCreate", &cuEventCreate)
find("cuEventDestroy_v2", &cuEventDestroy)
find("cuEventRecord", &cuEventRecord)
find("cuFuncGetParamInfo", &cuFuncGetParamInfo)
find("cuGraphExecKernelNodeSetParams_v2", &cuGraphExecKernelNodeSetParams)
find("cuGraphRetainUserObject", &cuGraphRetainUserObject)
find("cuLaunchKernel", &cuLaunchKernel)
find("cuLaunchKernelEx", &cuLaunchKernelEx)
find("cuModuleUnload", &cuModuleUnload)
find("cuPointerGetAttributes", &cuPointerGetAttributes)
find("cuStreamGetCaptureInfo_v2", &cuStreamGetCaptureInfo)
find("cuStreamGetCtx", &cuStreamGetCtx)
find("cuStreamGetFlags", &cuStreamGetFlags)
find("cuStreamIsCapturing", &cuStreamIsCapturing)
find("cuStreamWaitEvent", &cuStreamWaitEvent)
find("cuUserObjectCreate", &cuUserObjectCreate)
