# cython: auto_pickle=False
"""The primary contexts that both libraries share, and the check at the beginning of every call.

CuPy works in a device's primary context.  PyCUDA works in the context on top of its stack, and each
thread has its own stack.  ``pycuda.autoinit`` puts a second context there.  Pointers are valid in
both contexts, but their default streams are not ordered, and each library can make the other's
context not current.  So bridge requires that the top of PyCUDA's stack and CUDA's current context
are the same primary context.

PyCUDA frees memory only under the ``Context`` object that it was allocated under.  So the process
has one ``Context`` object per device, `primary_contexts`, and the record of memory that was met
under a program's own object keeps that one.
"""

from bridge.interop.driver cimport *

import sys
import threading

import cupy
import pycuda.driver as drv
from cupy.cuda import driver

from . import patches
from .cuda_status import start_cuda
from ..errors import ContextError

cdef extern from *:
    """
    static __thread int last_shared_device = -1, last_is_exact;
    """
    int last_shared_device  # this thread's last `shared_device`
    bint last_is_exact  # PyCUDA's context was the object that the device's memory is freed under

# ---- contexts ------------------------------------------------------------------------------------

primary_contexts = [None] * MOST_DEVICES  # PyCUDA's Context objects, by device
pycuda_current = drv.Context.get_current
pycuda_push = drv.Context.push  # PyCUDA's own, whatever takes their place
pycuda_pop = drv.Context.pop
cdef object lock = threading.RLock()


cdef Handle cuda_current() noexcept:
    cdef Handle current = NULL
    cuCtxGetCurrent(&current)
    return current


cdef int device_of(Handle context) noexcept:
    """Return the device id of a primary context; -1 for any other or unknown context."""
    cdef int device_id
    if context is not NULL:
        for device_id in range(device_count):
            if primaries[device_id] == context:
                return device_id
    return -1


cpdef int device_of_context(intptr_t context) except -2:
    """Return the id of the device that a context is on, primary or not."""
    cdef int device_id = device_of(<Handle> context)
    cdef Handle current = cuda_current()
    if device_id < 0:
        cuCtxSetCurrent(<Handle> context)
        cuCtxGetDevice(&device_id)
        cuCtxSetCurrent(current)
    return device_id


def find_pointer(intptr_t pointer):
    """Return a pointer's device id, or -1, and whether it is outside of the primary context."""
    cdef bint is_foreign = False
    device = device_of_pointer(pointer, &is_foreign)
    return device, is_foreign


cdef bint is_in_primary_context(intptr_t pointer, int device_id) noexcept:
    """Tell whether a pointer is in a device's primary context; True for a null pointer."""
    cdef bint is_foreign = False
    return not pointer or (device_of_pointer(pointer, &is_foreign) == device_id and not is_foreign)


cdef int device_of_pointer(intptr_t pointer, bint *is_foreign) noexcept:
    cdef int attributes[2]
    cdef void *answers[2]
    cdef int device = -1
    cdef Handle context = NULL
    attributes[:] = [POINTER_DEVICE, POINTER_CONTEXT]
    answers[:] = [&device, &context]
    if cuPointerGetAttributes(2, attributes, answers, <uint64_t> pointer):
        return -1
    is_foreign[0] = context is not NULL and device_of(context) != device
    return device


cpdef int cuda_device() except -1:
    """Return the id of the device whose primary context is current for CUDA on this thread.

    PyCUDA's stack is not checked, and may be empty.  Raise ContextError for any other context.
    """
    cdef int device_id = device_of(cuda_current())
    return device_id if device_id >= 0 else accept_new_cuda_context()


cpdef int shared_device() except -1:
    """Return the id of the device whose primary context is current for both libraries.

    Raise ContextError if they do not share one on this thread.
    """
    global last_shared_device, last_is_exact
    cdef int device_id = device_of(cuda_current())
    if device_id >= 0 and device_id == last_shared_device:
        return device_id  # do not ask PyCUDA again, which takes 0.1 us
    if device_id >= 0:
        top = pycuda_current()
        home = primary_contexts[device_id]
        # PyCUDA may have two equal objects for one context, e.g. from pycuda.autoprimaryctx.
        if top is not home and (top is None or top != home):
            device_id = -1
    last_shared_device = -1
    if device_id < 0:
        device_id = accept_new_context()
    last_is_exact = pycuda_current() is primary_contexts[device_id]
    last_shared_device = device_id  # last: finalizers, which may run meanwhile, forget it
    return device_id


cdef bint can_free_here(int device_id) noexcept:
    """Tell whether memory of a device can be freed here; False if `shared_device` has not run."""
    return (
        last_shared_device == device_id and last_is_exact and primaries[device_id] == cuda_current()
    )


cdef own_context(int device_id):
    """Return PyCUDA's current object for a primary context, if the program made its own."""
    return pycuda_current() if last_shared_device == device_id and not last_is_exact else None


cdef void forget_shared_device() noexcept:
    """Let this thread's next `shared_device` look at PyCUDA's stack again."""
    global last_shared_device
    last_shared_device = -1


cdef void abandon_memory(bint is_forked) noexcept:
    """Free no memory from now on: the process ends, or was forked from one that used CUDA."""
    global abandoned, forked, device_count
    abandoned = True
    if is_forked:
        forked, device_count = True, 0


def forgetting_shared_device(function):
    """Return a function of PyCUDA's that changes its stack, and says so."""

    def changes_stack(*args, **keywords):
        forget_shared_device()
        return function(*args, **keywords)

    return changes_stack


WHY = "the thread's current context is looked up again afterwards"
patches.apply("contexts", WHY, drv.Context, {
    "push": forgetting_shared_device(drv.Context.push),
    "pop": staticmethod(forgetting_shared_device(drv.Context.pop)),
    "detach": forgetting_shared_device(drv.Context.detach),
})
patches.apply("contexts", WHY, drv.Device, {
    "make_context": forgetting_shared_device(drv.Device.make_context),
})


# ---- new contexts --------------------------------------------------------------------------------

ADVICE = (
    "on the main thread, `import bridge.autoinit` in place of pycuda.autoinit; on any thread, work "
    "under `with bridge.primary_context():`"
)


def accept_new_cuda_context():
    """Accept CUDA's new current context and return its device; raise if it is not primary."""
    start_cuda()
    device_id = cupy.cuda.runtime.getDevice()
    if not driver.ctxGetCurrent():
        cupy.cuda.Device(device_id).use()  # as CuPy's first allocation would
    if retain(device_id).handle != driver.ctxGetCurrent():
        raise not_primary()
    return device_id


def accept_new_context():
    """Accept a new context and return its device; raise if the libraries do not share it."""
    start_cuda()
    top = pycuda_current()
    if top is None:
        raise ContextError(f"PyCUDA has no context on this thread; {ADVICE}")
    device_id = accept_new_cuda_context()
    if top == primary_contexts[device_id]:
        return device_id
    of_pycuda = device_of_context(top.handle)
    if of_pycuda == device_id:
        raise not_primary()
    raise ContextError(
        f"PyCUDA's current context is on device {of_pycuda}, CuPy's current one is on device "
        f"{device_id}. Work with both on one device, e.g. under `with bridge.primary_context("
        f"{device_id}):`, or go back with `cupy.cuda.Device({of_pycuda}).use()` if it was another "
        "library that switched (JAX does when it starts)"
    )


def not_primary():
    by_hand = "pop the context made by hand, or work under `with bridge.primary_context():`"
    advice = by_hand if "bridge.autoinit" in sys.modules else ADVICE
    return ContextError(
        "the current context is not the primary context that CuPy uses, so work of the two "
        f"libraries would not be ordered; {advice}"
    )


def retain(int device_id, bint is_detached=False):
    """Return the ``Context`` object of a device's primary context; a new one after a detach."""
    global device_count
    with lock:
        context = primary_contexts[device_id]
        if context is None or is_detached:
            device = drv.Device(device_id)
            automatic = sys.modules.get("pycuda.autoprimaryctx")
            context = getattr(automatic, "context", None)  # PyCUDA may have allocated under it
            if is_detached or context is None or automatic.device != device:
                context = device.retain_primary_context()
            primary_contexts[device_id] = context
            primaries[device_id] = <Handle> <intptr_t> context.handle
            device_count = max(device_count, device_id + 1)
    return context
