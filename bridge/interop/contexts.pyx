# cython: auto_pickle=False
"""The primary contexts that both libraries share, and the check at the beginning of every call.

CuPy works in a device's primary context.  PyCUDA works in the context on top of its stack, and each
thread has its own stack.  ``pycuda.autoinit`` puts a second context there.  Pointers are valid in
both contexts, but their default streams are not ordered, and each library can make the other's
context not current.  So bridge requires that the top of PyCUDA's stack and CUDA's current context
are the same primary context.

PyCUDA frees memory only under the ``Context`` object that it was allocated under.  So the process
has one ``Context`` object per device: `primary_contexts`.
"""

cimport cython

from bridge.interop.driver cimport *

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from operator import index

import cupy
import pycuda.driver as drv
from cupy.cuda import driver
from pycuda import tools

from . import patches
from .failures import start_cuda
from ..errors import ContextError, named

cdef extern from *:
    """
    static __thread int last_shared_device = -1, last_is_exact;
    """
    int last_shared_device  # this thread's last `shared_device`
    bint last_is_exact  # PyCUDA's context was the object that the device's memory is freed under

# ---- contexts ------------------------------------------------------------------------------------

primary_contexts = [None] * MOST_DEVICES  # PyCUDA's Context objects, by device
pycuda_current = drv.Context.get_current
cdef object pycuda_push = drv.Context.push  # PyCUDA's own, whatever takes their place
cdef object pycuda_pop = drv.Context.pop
cdef bint PYCUDA_POPS_LAST = "pycuda.autoprimaryctx" in sys.modules  # in its handler at exit
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
    return device_id if device_id >= 0 else accept_cuda_context()


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
    last_shared_device = device_id if device_id >= 0 else accept_context()
    last_is_exact = pycuda_current() is primary_contexts[last_shared_device]
    return last_shared_device


cdef bint can_free_here(int device_id) noexcept:
    """Tell whether memory of a device can be freed here; False if `shared_device` has not run."""
    return (
        last_shared_device == device_id and last_is_exact and primaries[device_id] == cuda_current()
    )


def forgetting(function):
    """Return a function that changes PyCUDA's stack, so that `shared_device` looks at it again."""

    def switch(*args, **keywords):
        global last_shared_device
        last_shared_device = -1
        return function(*args, **keywords)

    return switch


WHY = "the thread's current context is looked up again afterwards"
patches.apply("contexts", WHY, drv.Context, {
    "push": forgetting(drv.Context.push),
    "pop": staticmethod(forgetting(drv.Context.pop)),
    "detach": forgetting(drv.Context.detach),
})
patches.apply("contexts", WHY, drv.Device, {"make_context": forgetting(drv.Device.make_context)})


# ---- new contexts --------------------------------------------------------------------------------

ADVICE = (
    "on the main thread, `import bridge.autoinit` in place of pycuda.autoinit; on any thread, work "
    "under `with bridge.primary_context():`"
)


def accept_cuda_context():
    """Accept CUDA's new current context and return its device; raise if it is not primary."""
    start_cuda()
    device_id = cupy.cuda.runtime.getDevice()
    if not driver.ctxGetCurrent():
        cupy.cuda.Device(device_id).use()  # as CuPy's first allocation would
    if retain(device_id).handle != driver.ctxGetCurrent():
        raise not_primary(driver.ctxGetCurrent())
    return device_id


def accept_context():
    """Accept a new context and return its device; raise if the libraries do not share it."""
    start_cuda()
    top = pycuda_current()
    if top is None:
        raise ContextError(f"PyCUDA has no context on this thread; {ADVICE}")
    device_id = accept_cuda_context()
    if top == primary_contexts[device_id]:
        return device_id
    of_pycuda = device_of_context(top.handle)
    if of_pycuda == device_id:
        raise not_primary(top.handle)
    raise ContextError(
        f"PyCUDA's current context is on device {of_pycuda}, CuPy's current one is on device "
        f"{device_id}. Work with both on one device, e.g. under `with bridge.primary_context("
        f"{device_id}):`, or go back with `cupy.cuda.Device({of_pycuda}).use()` if it was another "
        "library that switched (JAX does when it starts)"
    )


def not_primary(context):
    return ContextError(
        f"the current context (0x{context:x}) is not the primary context that CuPy uses, so work "
        f"of the two libraries would not be ordered; {ADVICE}"
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


def push_primary(device):
    """Make a device's primary context PyCUDA's current one on this thread, and return it.

    `device` is an id, a ``pycuda.driver.Device``, or None for CuPy's current device.
    """
    global last_shared_device
    last_shared_device = -1
    start_cuda()
    scopes_here()  # pops it when the thread ends
    count = drv.Device.count()
    if device is None:
        device = cupy.cuda.runtime.getDevice()
    elif isinstance(device, drv.Device):
        device = next(i for i in range(count) if drv.Device(i) == device)
    if not 0 <= device < count:
        raise ValueError(
            f"primary_context: there is no device {device}; this process sees {count} "
            f"device{'s' * (count != 1)}, numbered from 0"
        )
    context = retain(device)
    pycuda_push(context)
    if pycuda_current() is not context:  # it was detached
        context = retain(device, is_detached=True)
        pycuda_push(context)
    return context


def run_under(context, function, ended):
    """Call a function that raises nothing under a PyCUDA context, or None; release a lock.

    To begin a thread, without a Python frame outside of the context: where there is one, the
    garbage collector may run, and PyCUDA would lose the memory that is freed.
    """
    global last_shared_device
    last_shared_device = -1
    try:
        if context is not None:
            pycuda_push(context)
        function()
        if context is not None:
            pycuda_pop()
    finally:
        ended.release()


# ---- entering and leaving ------------------------------------------------------------------------


cdef int enter_context(int device_id) except -1:
    """Make a device's primary context current for PyCUDA, without a Python frame.

    In a Python frame, a signal handler could raise, and leave the context or leak the memory.
    """
    global last_shared_device
    last_shared_device = -1
    home = primary_contexts[device_id]
    if home is not None:
        pycuda_push(home)
    if home is None or pycuda_current() is not home:  # it was detached
        push_primary(device_id)
    return 0


cdef class Scope:
    """Entering and leaving a device's primary context: `bridge.primary_context`."""

    # An id, a pycuda.driver.Device, or None for CuPy's current device.  It is looked up on entry,
    # since a decorator must not initialize CUDA.
    cdef readonly object device

    def __init__(self, device=None):
        if isinstance(device, cupy.cuda.Device):
            device = device.id
        elif device is not None and not isinstance(device, drv.Device):
            try:
                if isinstance(device, bool):
                    raise TypeError
                device = index(device)
            except TypeError:
                hint = "; as a decorator, write @bridge.primary_context()"
                raise TypeError(
                    f"primary_context: device is {named(device)}; an int, a cupy.cuda.Device, a "
                    f"pycuda.driver.Device or None is accepted{hint if callable(device) else ''}"
                ) from None
        self.device = device

    def __reduce__(self):
        """Pickle the device, since decorated functions are sent between processes."""
        return type(self), (self.device,)

    def __enter__(self):
        cdef Handle current = cuda_current()
        cdef int current_device = device_of(current), wanted = current_device
        if self.device is not None:
            is_id = type(self.device) is int and 0 <= self.device < MOST_DEVICES
            wanted = self.device if is_id else -1
        top = context = pycuda_current()
        # Do not push a context that is current already.
        cdef bint pushed = (
            current_device < 0 or wanted != current_device
            or context is not primary_contexts[current_device]
        )
        if pushed and 0 <= wanted < device_count:
            enter_context(wanted)
            context = primary_contexts[wanted]
        elif pushed:
            context = push_primary(self.device)
        scopes_here().append((context, pushed, top, <intptr_t> current))
        return context

    def __exit__(self, *error):
        if forked:
            return
        scopes = scopes_here()
        context, pushed, top, current = scopes.pop() if scopes else (None, False, None, 0)
        if context is None or pycuda_current() is not context:
            raise ContextError(
                "primary_context: PyCUDA's current context is not the one that was entered last on "
                "this thread, so it is left as it is; within the block, pop only what you pushed "
                "there, and leave blocks in the reverse order of entering them"
            )
        if pushed:
            leave_context(current, top)
        else:
            restore_context(current, top)


@cython.final
@cython.no_gc  # the deallocator needs the list
cdef class Entered:
    """A thread's scopes.  At its end, contexts are popped: PyCUDA would abort the process."""

    cdef list scopes

    def __cinit__(self):
        self.scopes = []

    def __dealloc__(self):
        while not abandoned and (top := pycuda_current()) is not None and top in primary_contexts:
            pycuda_pop()


cdef object local = threading.local()


cdef list scopes_here():
    try:
        return (<Entered> local.entered).scopes
    except AttributeError:
        local.entered = Entered()
        return (<Entered> local.entered).scopes


cdef int leave_context(intptr_t current, top) except -1:
    """Pop the context that was entered, and restore CUDA's current context."""
    global last_shared_device
    pycuda_pop()
    last_shared_device = -1
    return restore_context(current, top)


cdef int restore_context(intptr_t current, top) except -1:
    """Restore CUDA's current context, unless the top of PyCUDA's stack has changed."""
    if <intptr_t> cuda_current() != current and pycuda_current() is top:
        cuCtxSetCurrent(<Handle> current)
    return 0


# ---- the end of the process ----------------------------------------------------------------------


def forget_after_fork():
    global abandoned, forked, device_count
    if device_count:  # a child of a process that has not used CUDA may use it
        abandoned, forked, device_count = True, True, 0
        atexit.unregister(finish_at_exit)


os.register_at_fork(after_in_child=forget_after_fork)


@atexit.register
def finish_at_exit():
    """Empty PyCUDA's pools and context stack: otherwise PyCUDA aborts the process.

    And wait for kernels: what they print appears then, since the primary context is not destroyed.
    """
    global abandoned
    known = [device_id for device_id in range(device_count) if primary_contexts[device_id]]
    abandoned = True
    for device_id in known:
        with suppress(drv.Error, ContextError), Scope(device_id) as primary:
            with suppress(drv.Error):
                drv.Context.synchronize()
            for function in tools.context_dependent_memoized_functions:
                # PyCUDA warns if its kernels are unloaded elsewhere.
                with suppress(AttributeError):
                    function._pycuda_ctx_dep_memoize_dic.pop(primary, None)
            if len(known) == 1:  # a pool does not report its device
                for found in gc.get_objects():
                    if type(found) is drv.DeviceMemoryPool:
                        found.stop_holding()  # or a block that returns later aborts the process
    last = None
    while (top := pycuda_current()) in [primary_contexts[device_id] for device_id in known]:
        pycuda_pop()
        last = top
    if last is not None and PYCUDA_POPS_LAST:
        pycuda_push(last)
