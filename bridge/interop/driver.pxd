"""CUDA's driver in C: its types, constants and functions."""

from libc.stdint cimport intptr_t, uint64_t

ctypedef void *Handle  # CUcontext, CUevent, CUfunction, CUgraph, CUgraphNode
ctypedef intptr_t Stream  # CUstream; 0 is the legacy default stream, -1 "do not order"

cdef enum:
    PER_THREAD = 2  # CU_STREAM_PER_THREAD: the calling thread's default stream
    NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
    DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
    POINTER_CONTEXT = 1  # CU_POINTER_ATTRIBUTE_CONTEXT
    POINTER_IS_MANAGED = 8  # CU_POINTER_ATTRIBUTE_IS_MANAGED
    POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    CAPTURE_INVALIDATED = 2  # CU_STREAM_CAPTURE_STATUS_INVALIDATED
    INVALID_HANDLE = 400  # CUDA_ERROR_INVALID_HANDLE
    CAPTURE_ERRORS = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, the first of nine
    CAPTURE_ISOLATION = 905  # CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    BUFFER_POINTER = 1  # CU_LAUNCH_PARAM_BUFFER_POINTER
    BUFFER_SIZE = 2  # CU_LAUNCH_PARAM_BUFFER_SIZE
    COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    NO_DESTRUCTOR_SYNC = 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
    MOVE = 1  # CU_GRAPH_USER_OBJECT_MOVE

cdef struct CUlaunchAttribute:
    int id
    int padding
    unsigned value[16]

cdef struct CUlaunchConfig:
    unsigned extents[6]  # of the grid, in blocks, and of a block, in threads
    unsigned shared  # bytes
    Stream stream
    CUlaunchAttribute *attributes
    unsigned attribute_count

cdef struct CUDA_KERNEL_NODE_PARAMS:  # _v2
    Handle function
    unsigned extents[6]
    unsigned shared
    void **params
    void **extra
    void *kernel
    void *context

cdef int (*cuCtxGetCurrent)(Handle *) noexcept nogil
cdef int (*cuCtxSetCurrent)(Handle) noexcept nogil
cdef int (*cuCtxGetDevice)(int *) noexcept nogil
cdef int (*cuEventCreate)(Handle *, unsigned) noexcept nogil
cdef int (*cuEventDestroy)(Handle) noexcept nogil
cdef int (*cuEventRecord)(Handle, Stream) noexcept nogil
cdef int (*cuFuncGetParamInfo)(Handle, size_t, size_t *, size_t *) noexcept nogil
cdef int (*cuGraphExecKernelNodeSetParams)(Handle, Handle, CUDA_KERNEL_NODE_PARAMS *) noexcept nogil
cdef int (*cuGraphRetainUserObject)(Handle, Handle, unsigned, unsigned) noexcept nogil
cdef int (*cuLaunchKernel)(
    Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
    void **
) noexcept nogil
cdef int (*cuLaunchKernelEx)(CUlaunchConfig *, Handle, void **, void **) noexcept nogil
cdef int (*cuModuleUnload)(intptr_t) noexcept nogil
cdef int (*cuPointerGetAttributes)(unsigned, int *, void **, uint64_t) noexcept nogil
cdef int (*cuStreamGetCaptureInfo)(Stream, int *, uint64_t *, void *, void *, void *) noexcept nogil
cdef int (*cuStreamGetCtx)(Stream, Handle *) noexcept nogil
cdef int (*cuStreamGetFlags)(Stream, unsigned *) noexcept nogil
cdef int (*cuStreamIsCapturing)(Stream, int *) noexcept nogil
cdef int (*cuStreamWaitEvent)(Stream, Handle, unsigned) noexcept nogil
cdef int (*cuUserObjectCreate)(
    Handle *, void *, void (*)(void *) noexcept nogil, unsigned, unsigned
) noexcept nogil
