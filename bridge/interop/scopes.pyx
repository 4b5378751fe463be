# cython: auto_pickle=False
"""Entering and leaving primary contexts, on any thread and in C, until the process ends.

Whoever enters restores what was current: PyCUDA's stack, and CUDA's current context.
"""

cimport cython

from bridge.interop.contexts cimport *

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from operator import index

import cupy
import pycuda.driver as drv
from pycuda import tools

from ..errors import ContextError, named
from .contexts import retain
from .cuda_status import start_cuda

cdef bint PYCUDA_POPS_LAST = "pycuda.autoprimaryctx" in sys.modules  # in its handler at exit


def push_primary(device):
    """Make a device's primary context PyCUDA's current one on this thread, and return it.

    `device` is an id, a ``pycuda.driver.Device``, or None for CuPy's current device.
    """
    forget_shared_device()
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
    forget_shared_device()
    try:
        if context is not None:
            pycuda_push(context)
        function()
        if context is not None:
            pycuda_pop()
    finally:
        ended.release()


# ---- entering and leaving ------------------------------------------------------------------------


cdef int enter_context(int device_id, context=None) except -1:
    """Make a device's primary context current for PyCUDA, without a Python frame.

    In a Python frame, a signal handler could raise, and leave the context or leak the memory.
    """
    forget_shared_device()
    home = primary_contexts[device_id] if context is None else context
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
    pycuda_pop()
    forget_shared_device()
    return restore_context(current, top)


cdef int restore_context(intptr_t current, top) except -1:
    """Restore CUDA's current context, unless the top of PyCUDA's stack has changed."""
    if <intptr_t> cuda_current() != current and pycuda_current() is top:
        cuCtxSetCurrent(<Handle> current)
    return 0


# ---- the end of the process ----------------------------------------------------------------------


def forget_after_fork():
    if device_count:  # a child of a process that has not used CUDA may use it
        abandon_memory(True)
        atexit.unregister(finish_at_exit)


os.register_at_fork(after_in_child=forget_after_fork)


@atexit.register
def finish_at_exit():
    """Empty PyCUDA's pools and context stack: otherwise PyCUDA aborts the process.

    And wait for kernels: what they print appears then, since the primary context is not destroyed.
    """
    known = [device_id for device_id in range(device_count) if primary_contexts[device_id]]
    abandon_memory(False)
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
