"""What the compiled modules share: CUDA's functions, contexts and constants."""

from libc.stdint cimport intptr_t, uint64_t

ctypedef void *Handle  # CUcontext, CUevent
ctypedef intptr_t Stream  # CUstream; 0 is the legacy default stream, -1 "do not order"

cdef enum:
    PER_THREAD = 2  # CU_STREAM_PER_THREAD: the calling thread's default stream
    NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
    DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
    POINTER_CONTEXT = 1  # CU_POINTER_ATTRIBUTE_CONTEXT
    POINTER_IS_MANAGED = 8  # CU_POINTER_ATTRIBUTE_IS_MANAGED
    POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    CAPTURE_ERRORS = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, the first of nine
    CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    MOST_DEVICES = 64

cdef int (*cuCtxGetCurrent)(Handle *) noexcept nogil
cdef int (*cuCtxSetCurrent)(Handle) noexcept nogil
cdef int (*cuCtxGetDevice)(int *) noexcept nogil
cdef int (*cuEventCreate)(Handle *, unsigned) noexcept nogil
cdef int (*cuEventDestroy)(Handle) noexcept nogil
cdef int (*cuEventRecord)(Handle, Stream) noexcept nogil
cdef int (*cuStreamWaitEvent)(Stream, Handle, unsigned) noexcept nogil
cdef int (*cuStreamIsCapturing)(Stream, int *) noexcept nogil
cdef int (*cuStreamGetCaptureInfo)(
    Stream, int *, uint64_t *, void *, void *, void *
) noexcept nogil
cdef int (*cuStreamGetFlags)(Stream, unsigned *) noexcept nogil
cdef int (*cuStreamGetCtx)(Stream, Handle *) noexcept nogil
cdef int (*cuPointerGetAttributes)(unsigned, int *, void **, uint64_t) noexcept nogil
cdef int (*cuModuleUnload)(intptr_t) noexcept nogil

cdef Handle primaries[MOST_DEVICES]  # each device's primary context; NULL: not met yet
cdef int device_count  # ids below this may have been met
cdef list primary_contexts  # the Context object that PyCUDA allocates under, of each device
cdef bint abandoned  # the process ends, or was forked: memory is left to CUDA
cdef bint forked
cdef object pycuda_current

cdef int find(const char *name, void *function) except -1
cdef Handle cuda_current() noexcept
cdef int device_of(Handle context) noexcept
cpdef int cuda_device() except -1
cpdef int current_device() except -1
cdef bint is_entered(int device_id) noexcept
cpdef int device_of_any(intptr_t context) except -2
cdef int enter(int device_id) except -1
cdef int leave(intptr_t current, top) except -1
cdef int go_back(intptr_t current, top) except -1
cdef bint is_in_primary_context(intptr_t pointer, int device_id) noexcept
