# cython: auto_pickle=False
"""Compiled code on the devices: a loaded module, and a kernel of it."""

cimport cython
from libc.stdint cimport intptr_t, uint64_t
from libc.stdlib cimport calloc, free

from bridge.interop.contexts cimport abandoned, cuda_current, cuda_device
from bridge.interop.driver cimport *

import ctypes
import operator
import threading
from contextlib import contextmanager

import pycuda.driver as drv
from cupy.cuda import driver

from ..errors import named
from ..interop.driver import libcuda
from .launch_limits import REFUSALS, cuda_refusal

cdef enum:
    USUAL_SHARED = 48 << 10  # bytes that need no higher limit

cdef int SHARED_LIMIT = int(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
cdef object limit_lock = threading.RLock()  # several of our functions may share one CUfunction


@cython.final
cdef class LoadedModule:
    """A module loaded in the current context, and unloaded there on any thread."""

    cdef readonly intptr_t ptr
    cdef Handle context

    def __cinit__(self, bytes image):
        self.ptr = driver.moduleLoadData(image)
        self.context = cuda_current()

    def __dealloc__(self):
        cdef Handle current = cuda_current()
        if self.ptr and not abandoned:
            with nogil:  # CUDA may wait for the device
                cuCtxSetCurrent(self.context)
                cuModuleUnload(self.ptr)  # its failure after a failed kernel does no harm
                cuCtxSetCurrent(current)


# (capture, kernel): the address of a flag, which CUDA sets when the graph has ended.
cdef dict in_graphs = {}


cdef int keep_for_graph(Kernel kernel, Stream stream) except -1:
    """Keep a kernel loaded as long as the graph that a stream is captured into.

    CUDA crashes if a graph launches a kernel that was unloaded.  Its executables count, too.
    """
    cdef Handle graph = NULL, user_object = NULL
    cdef uint64_t capture = 0
    cdef int state = 0
    cuStreamGetCaptureInfo(stream, &state, &capture, &graph, NULL, NULL)
    if graph is NULL or (capture, kernel) in in_graphs:
        return 0
    release_captured()
    has_ended = calloc(1, sizeof(bint))  # of C: the flag may be set after Python's end
    if has_ended is NULL:
        raise MemoryError
    in_graphs[capture, kernel] = <intptr_t> has_ended
    # If CUDA refuses, the kernel stays loaded.
    if not cuUserObjectCreate(&user_object, has_ended, &set_flag, 1, NO_DESTRUCTOR_SYNC):
        cuGraphRetainUserObject(graph, user_object, 1, MOVE)
    return 0


cdef void set_flag(void *flag) noexcept nogil:
    """Note the end of a graph, on a thread of CUDA's, which must not call CUDA or Python."""
    (<bint *> flag)[0] = True


cdef int release_captured() except -1:
    """Release the kernels of graphs that have ended."""
    for key, flag in list(in_graphs.items()):
        if (<bint *> <intptr_t> flag)[0]:
            del in_graphs[key]
            free(<void *> <intptr_t> flag)
    return 0


cdef class Kernel:
    """A kernel of a `SourceModule`, which is loaded on each device at its first use there."""

    def __init__(self, module, name):
        self.module, self.name = module, name
        self.follows_pycuda, self.mismatch = module._policy
        self.resources = module._resources
        self.free_shared, self.warned = -1, set()

    cdef Handle handle(self, int device_id) except NULL:
        """Return the CUfunction on the current device."""
        if self.handles[device_id] is NULL:
            self.handles[device_id] = <Handle> <intptr_t> self.module._handle(self.name)
        return self.handles[device_id]

    cdef int raise_shared_limit(self, Py_ssize_t shared, int device_id) except -1:
        """Let the kernel have so many bytes of dynamic shared memory per block."""
        if self.free_shared < 0:
            self.free_shared = USUAL_SHARED - self.shared_size_bytes
        if shared > self.free_shared:
            handle = <intptr_t> self.handle(device_id)
            with limit_lock:
                if driver.funcGetAttribute(SHARED_LIMIT, handle) < shared:
                    driver.funcSetAttribute(handle, SHARED_LIMIT, shared)
        return 0

    @property
    def ptr(self):
        """The CUfunction on the current device, an int, as of a ``cupy.cuda.function.Function``."""
        return <intptr_t> self.handle(cuda_device())

    def get_attribute(self, attribute):
        """Return a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        with self._explained(f"attribute {named(attribute)}") as handle:
            return int(driver.funcGetAttribute(operator.index(attribute), handle))

    def set_attribute(self, attribute, value):
        """Set a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        with self._explained(
            f"attribute {named(attribute)} cannot be set to {named(value)}"
        ) as handle:
            driver.funcSetAttribute(handle, operator.index(attribute), operator.index(value))

    def set_cache_config(self, config):
        """Set the preferred split of L1 cache and shared memory, a ``pycuda.driver.func_cache``."""
        with self._explained(f"config {named(config)}") as handle:
            status = libcuda.cuFuncSetCacheConfig(ctypes.c_void_p(handle), operator.index(config))
            driver.check_status(status)

    @contextmanager
    def _explained(self, what):
        """Yield the CUfunction on the current device; errors say what was asked."""
        handle = <intptr_t> self.handle(cuda_device())
        try:
            yield handle
        except TypeError as error:
            raise TypeError(
                f"{self.name}: {what}: an int is accepted, or a member of pycuda.driver's "
                f"function_attribute and func_cache ({error})"
            ) from None
        except REFUSALS as error:
            what += f": CUDA refuses it on this device ({error})"
            raise cuda_refusal(self.name, what) from error

    def __getattr__(self, name):
        """Return an attribute of the compiled kernel, e.g. ``num_regs``."""
        attribute = getattr(drv.function_attribute, name.upper(), None)
        if attribute is None:
            from ..legacy.names import BEFORE_CUDA_4  # few programs have such a name

            advice = f"; {BEFORE_CUDA_4[name]}" if name in BEFORE_CUDA_4 else ""
            raise AttributeError(f"'Function' object has no attribute {name!r}{advice}")
        return self.get_attribute(attribute)
