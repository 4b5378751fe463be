"""The errors that users are promised: what they say, and that nothing has changed after them.

Each message names the function and the argument, says what came and what is accepted, and what
to do where there is something to do.  The texts here are whole; "..." stands for what differs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from conftest import ON_GPU, run_python
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool, PageLockedMemoryPool

import bridge
import bridge.__main__
from bridge import ContextError
from bridge.memory import OutOfMemoryError

N = 8
SOURCE = """
__constant__ float weights[3];
__global__ void fill(float *x, int n, float v)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = v;
}
"""


@pytest.fixture(scope="module")
def w(compile_kernel):
    """What the rows give to the functions, and what must be the same afterwards."""
    gc.collect()  # garbage of other tests would count as a change
    module = bridge.SourceModule(SOURCE)
    pool = DeviceMemoryPool()
    return SimpleNamespace(
        x=cupy.arange(N, dtype=np.float32),
        a=gpuarray.to_gpu(np.arange(N, dtype=np.float32)),
        pool=pool,
        pooled=gpuarray.to_gpu(np.arange(N, dtype=np.float32), allocator=pool.allocate),
        module=module,
        f=module.get_function("fill"),
        prepared=module.get_function("fill").prepare("Pif"),
        plain=compile_kernel(f'extern "C" {{ {SOURCE} }}', "fill"),
        stream=drv.Stream(),
        n=np.int32(N),
        v=np.float32(7),
    )


@contextlib.contextmanager
def unchanged(w):
    """Check that a block changes nothing that it could have touched."""

    def state():
        return {
            "CuPy's array": w.x.get().tolist(),
            "PyCUDA's array": w.a.get().tolist(),
            "the array in PyCUDA's pool": w.pooled.get().tolist(),
            "CuPy's pool": cupy.get_default_memory_pool().used_bytes(),
            "PyCUDA's pool": w.pool.active_bytes,
            "CuPy's stream": cupy.cuda.get_current_stream().ptr,
            "CuPy's device": cupy.cuda.runtime.getDevice(),
            "CUDA's context": cupy.cuda.driver.ctxGetCurrent(),
            "PyCUDA's context": drv.Context.get_current(),
        }

    before = state()
    yield
    after = state()
    if after != before:  # the frames of an exception may be a cycle
        gc.collect()
        after = state()
    assert after == before


def error_of(call, *args):
    """Return the type and the text of the error that a call raises; it and its frames are gone."""
    try:
        call(*args)
    except (Exception, SystemExit) as error:
        return type(error), str(error)
    return None, "no error"


def is_said(text, pattern):
    return re.fullmatch(re.escape(pattern).replace(re.escape("..."), ".*"), text, re.DOTALL)


def prepared(*args, method="prepared_call", **keywords):
    return lambda w: getattr(w.prepared, method)(1, 32, *(arg(w) for arg in args), **keywords)


def on_a_thread(call):
    """Call where PyCUDA has no context."""

    def run(w):
        found = []

        def work():
            try:
                call(w)
            except Exception as error:
                found.append((type(error), error.args))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for kind, arguments in found:
            raise kind(*arguments)

    return run


def under_a_second_context(call):
    """Call where PyCUDA has made a context of its own, as pycuda.autoinit does."""

    def run(w):
        second = drv.Device(0).make_context()
        try:
            call(w)
        finally:
            second.pop()
            second.detach()

    return run


class Interface:
    """An exporter of the array interface with something wrong."""

    def __init__(self, w, **changes):
        interface = {"shape": (N,), "typestr": "<f4", "version": 3}
        interface |= {"data": (w.x.data.ptr, False)} | changes
        self.__cuda_array_interface__ = {k: v for k, v in interface.items() if v is not ...}


class DLPack:
    """An exporter of DLPack on a device that is no GPU."""

    def __init__(self, device):
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        raise AssertionError("the device says that this is in vain")


class Stream:
    """A stream whose protocol answers something wrong."""

    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


def without_memory(w):
    array = gpuarray.zeros_like(w.a)
    array.gpudata = None
    return array


def repeated(_):
    return cupy.broadcast_to(cupy.zeros(1, np.float32), (N,))


def strided(_):
    return cupy.zeros((N, 2), np.float32)[:, 0]


def doubles(_):
    return cupy.zeros(N)


def of_dtype(w, dtype):
    array = gpuarray.GPUArray(N, np.complex128)
    array.dtype = np.dtype(dtype)
    return array


def freed(w):
    block = drv.mem_alloc(4 * N)
    address = int(block)
    block.free()
    return Interface(w, data=(address, False))


ARRAYS = (
    "a GPUArray, a cupy.ndarray or an object with __cuda_array_interface__ or __dlpack__ is "
    "accepted"
)
HOST = "; move it to the device first, e.g. cupy.asarray(a)"
HELD = (
    "(accepted: bool, integers, float16/32/64, bfloat16 with CuPy 14 and NumPy 2.1.2, "
    "complex64/128 and structured dtypes of these)"
)
CAI = "as_cupy: the argument's __cuda_array_interface__"
READ_ONLY = (
    "is marked read-only; neither library can keep it from being written to, so a view is refused: "
    "hand over a copy"
)

CONVERSIONS = {
    "as_cupy, text": (
        lambda w: bridge.as_cupy("array"),
        TypeError,
        f"as_cupy: argument is 'array'; {ARRAYS}",
    ),
    "as_cupy, long text": (
        lambda w: bridge.as_cupy("x" * 10_000),
        TypeError,
        f"as_cupy: argument is '{'x' * 99}... (a str); {ARRAYS}",
    ),
    "as_cupy, None": (
        lambda w: bridge.as_cupy(None),
        TypeError,
        f"as_cupy: argument is None; {ARRAYS}",
    ),
    "as_cupy, a class": (
        lambda w: bridge.as_cupy(gpuarray.GPUArray),
        TypeError,
        f"as_cupy: argument is the class pycuda.gpuarray.GPUArray; {ARRAYS}",
    ),
    "as_cupy, an allocation without shape": (
        lambda w: bridge.as_cupy(w.x.data),
        TypeError,
        f"as_cupy: argument is a cupy.cuda.memory.MemoryPointer; {ARRAYS}",
    ),
    "as_cupy, a host array": (
        lambda w: bridge.as_cupy(np.zeros(3)),
        TypeError,
        f"as_cupy: argument is a host numpy.ndarray{HOST}",
    ),
    "as_cupy, an address": (
        lambda w: bridge.as_cupy(4096),
        TypeError,
        "as_cupy: argument is the int 4096; if that is an address, it tells neither shape nor "
        "dtype: pass the array itself, or a GPUArray(shape, dtype, gpudata=address)",
    ),
    "as_cupy, a list": (
        lambda w: bridge.as_cupy([1, 2]),
        TypeError,
        f"as_cupy: argument is a host list{HOST}",
    ),
    "as_cupy, the other byte order": (
        lambda w: bridge.as_cupy(of_dtype(w, ">f4")),
        TypeError,
        "as_cupy: dtype >f4 is not in native byte order; convert it on the host first, e.g. "
        f"a.astype('<f4') {HELD}",
    ),
    "as_cupy, dates": (
        lambda w: bridge.as_cupy(of_dtype(w, "M8[s]")),
        TypeError,
        f"as_cupy: dtype datetime64[s] is not one that both PyCUDA and CuPy hold {HELD}",
    ),
    "as_cupy, no memory": (
        lambda w: bridge.as_cupy(without_memory(w)),
        ValueError,
        "as_cupy: the array has no memory: its gpudata is None, its shape (8,); a GPUArray whose "
        "gpudata is its memory is accepted",
    ),
    "as_cupy, a number for a stream": (
        lambda w: bridge.as_cupy(w.a, stream=7),
        TypeError,
        "as_cupy: stream is 7; None, -1, a pycuda.driver.Stream, a cupy.cuda.Stream or an object "
        "with __cuda_stream__ is accepted; give a raw handle as an object whose __cuda_stream__() "
        "returns (0, handle)",
    ),
    "as_cupy, a bool for a stream": (
        lambda w: bridge.as_cupy(w.a, stream=True),
        TypeError,
        "as_cupy: stream is True; None, -1, a pycuda.driver.Stream, a cupy.cuda.Stream or an "
        "object with __cuda_stream__ is accepted",
    ),
    "as_cupy, the class of streams": (
        lambda w: bridge.as_cupy(w.a, stream=drv.Stream),
        TypeError,
        "as_cupy: stream is the class pycuda._driver.Stream; None, -1, a pycuda.driver.Stream, ...",
    ),
    "as_cupy, an event for a stream": (
        lambda w: bridge.as_cupy(w.x, stream=drv.Event()),
        TypeError,
        "as_cupy: stream is a pycuda._driver.Event; None, -1, a pycuda.driver.Stream, ...",
    ),
    "as_cupy, a protocol to come": (
        lambda w: bridge.as_cupy(w.a, stream=Stream((1, 5))),
        TypeError,
        "as_cupy: stream is a test_errors.Stream whose __cuda_stream__() returns (1, 5); (0, "
        "handle) is accepted, for version 0 of the protocol",
    ),
    "as_cupy, an interface that is a list": (
        lambda w: bridge.as_cupy(SimpleNamespace(__cuda_array_interface__=[1])),
        TypeError,
        f"{CAI} is a list; a dict is accepted",
    ),
    "as_cupy, no typestr": (
        lambda w: bridge.as_cupy(Interface(w, typestr=...)),
        ValueError,
        f"{CAI} has no 'typestr' entry, which CAI requires",
    ),
    "as_cupy, a version to come": (
        lambda w: bridge.as_cupy(Interface(w, version=9)),
        ValueError,
        f"{CAI} has version 9; versions 0 to 3 are accepted",
    ),
    "as_cupy, a mask": (
        lambda w: bridge.as_cupy(Interface(w, mask=w.x)),
        BufferError,
        f"{CAI} has a mask; neither library has masked arrays: hand over the data without it",
    ),
    "as_cupy, read-only": (
        lambda w: bridge.as_cupy(Interface(w, data=(w.x.data.ptr, True))),
        BufferError,
        f"{CAI} {READ_ONLY}",
    ),
    "as_cupy, a shape that is a list": (
        lambda w: bridge.as_cupy(Interface(w, shape=[N])),
        TypeError,
        f"{CAI} has shape [8]; a tuple of ints is accepted",
    ),
    "as_cupy, a negative length": (
        lambda w: bridge.as_cupy(Interface(w, shape=(-N,))),
        ValueError,
        f"{CAI} has shape (-8,); lengths from 0 to 2**63 - 1 are accepted",
    ),
    "as_cupy, strides that are a list": (
        lambda w: bridge.as_cupy(Interface(w, strides=[4])),
        TypeError,
        f"{CAI} has strides [4]; None or a tuple of ints (bytes) is accepted",
    ),
    "as_cupy, strides for more axes": (
        lambda w: bridge.as_cupy(Interface(w, strides=(4, 4))),
        ValueError,
        f"{CAI} has strides (4, 4), 2 strides for 1 axes of shape (8,); None or one for each axis "
        "is accepted",
    ),
    "as_cupy, nonsense for a typestr": (
        lambda w: bridge.as_cupy(Interface(w, typestr="<q9")),
        ValueError,
        f"{CAI} has typestr '<q9', descr None: ...; what numpy.dtype takes is accepted, e.g. '<f4'",
    ),
    "as_cupy, a dtype for a typestr": (
        lambda w: bridge.as_cupy(Interface(w, typestr=np.dtype("f4"))),
        TypeError,
        f"{CAI} has typestr dtype('float32'); a str such as '<f4' is accepted",
    ),
    "as_cupy, no pointer": (
        lambda w: bridge.as_cupy(Interface(w, data=None)),
        TypeError,
        f"{CAI} has data None; a tuple (pointer, read-only) is accepted",
    ),
    "as_cupy, a null pointer": (
        lambda w: bridge.as_cupy(Interface(w, data=(0, False))),
        ValueError,
        f"{CAI} has pointer 0 for an array of shape (8,); the address of its memory is accepted",
    ),
    "as_cupy, a freed pointer": (
        lambda w: bridge.as_cupy(freed(w)),
        ValueError,
        "as_cupy: the array has the pointer 0x..., which is unknown to CUDA; device memory that "
        "has not been freed is accepted",
    ),
    "as_cupy, an exporter's stream 0": (
        lambda w: bridge.as_cupy(Interface(w, stream=0)),
        ValueError,
        f"{CAI} has stream 0, which CAI forbids (1 is the legacy default stream, 2 the per-thread "
        "one, None needs no ordering, and else it is a handle)",
    ),
    "as_cupy, DLPack of the host": (
        lambda w: bridge.as_cupy(DLPack((1, 0))),
        TypeError,
        f"as_cupy: argument is a host test_errors.DLPack{HOST}",
    ),
    "as_cupy, DLPack of another maker's GPU": (
        lambda w: bridge.as_cupy(DLPack((10, 0))),
        TypeError,
        "as_cupy: argument is on DLPack device type 10; CUDA (2) and CUDA managed memory (13) are "
        "accepted",
    ),
    "as_cupy, DLPack of no device": (
        lambda w: bridge.as_cupy(DLPack(7)),
        TypeError,
        "as_cupy: the argument's __dlpack_device__() returns 7; two ints, (type, id), are accepted",
    ),
    "as_pycuda, None": (
        lambda w: bridge.as_pycuda(None),
        TypeError,
        f"as_pycuda: argument is None; {ARRAYS}",
    ),
    "as_pycuda, a host array": (
        lambda w: bridge.as_pycuda(np.zeros(3)),
        TypeError,
        f"as_pycuda: argument is a host numpy.ndarray{HOST}",
    ),
    "as_pycuda, repeated elements": (
        lambda w: bridge.as_pycuda(repeated(w)),
        ValueError,
        "as_pycuda: the array repeats elements (shape (8,), strides (0,)), and PyCUDA would read "
        "and write past them; pass cupy.ascontiguousarray(a)",
    ),
    "as_pycuda, repeated elements of another library": (
        lambda w: bridge.as_pycuda(Interface(w, strides=(0,))),
        ValueError,
        "as_pycuda: the array repeats elements (shape (8,), strides (0,)), and PyCUDA would read "
        "and write past them; pass cupy.ascontiguousarray(a)",
    ),
    "as_pycuda, no memory": (
        lambda w: bridge.as_pycuda(without_memory(w)),
        ValueError,
        "as_pycuda: the array has no memory: its gpudata is None, its shape (8,); a GPUArray whose "
        "gpudata is its memory is accepted",
    ),
    "as_pycuda, text for a stream": (
        lambda w: bridge.as_pycuda(w.x, stream="null"),
        TypeError,
        "as_pycuda: stream is 'null'; None, -1, a pycuda.driver.Stream, a cupy.cuda.Stream or an "
        "object with __cuda_stream__ is accepted",
    ),
}

STREAM = "a pycuda.driver.Stream, a cupy.cuda.Stream or an object with __cuda_stream__ is accepted"
NO_ORDER = f"-1, which means 'do not order' and is no stream; None, {STREAM}"
RAW = "; give a raw handle as an object whose __cuda_stream__() returns (0, handle)"

STREAMS = {
    "wait_stream, no order for the first": (
        lambda w: bridge.wait_stream(-1, None),
        TypeError,
        f"wait_stream: waiter is {NO_ORDER}",
    ),
    "wait_stream, no order for the second": (
        lambda w: bridge.wait_stream(None, -1),
        TypeError,
        f"wait_stream: awaited is {NO_ORDER}",
    ),
    "wait_stream, a handle": (
        lambda w: bridge.wait_stream(w.stream, 5),
        TypeError,
        f"wait_stream: awaited is 5; None, {STREAM}{RAW}",
    ),
    "wait_stream, a negative handle": (
        lambda w: bridge.wait_stream(Stream((0, -5)), None),
        TypeError,
        "wait_stream: waiter is a test_errors.Stream whose __cuda_stream__() returns (0, -5); (0, "
        "handle) is accepted, for version 0 of the protocol",
    ),
    "wait_stream, a handle wider than any": (
        lambda w: bridge.wait_stream(None, Stream((0, 1 << 64))),
        TypeError,
        "wait_stream: awaited is a test_errors.Stream whose __cuda_stream__() returns (0, "
        "18446744073709551616); (0, handle) is accepted, for version 0 of the protocol",
    ),
    "wait_stream, one stream": (
        lambda w: bridge.wait_stream(w.stream),
        TypeError,
        "wait_stream() missing 1 required positional argument: 'awaited'",
    ),
    "as_cupy_stream, no order": (
        lambda w: bridge.as_cupy_stream(-1),
        TypeError,
        f"as_cupy_stream: stream is {NO_ORDER}",
    ),
    "as_cupy_stream, a float": (
        lambda w: bridge.as_cupy_stream(0.0),
        TypeError,
        f"as_cupy_stream: stream is 0.0; None, {STREAM}",
    ),
    "as_cupy_stream, the class of streams": (
        lambda w: bridge.as_cupy_stream(cupy.cuda.Stream),
        TypeError,
        f"as_cupy_stream: stream is the class cupy.cuda.stream.Stream; None, {STREAM}",
    ),
    "use_stream, no order": (
        lambda w: bridge.use_stream(-1),
        TypeError,
        f"use_stream: stream is {NO_ORDER}",
    ),
    "use_stream, an array": (
        lambda w: bridge.use_stream(w.x),
        TypeError,
        f"use_stream: stream is a cupy.ndarray; None, {STREAM}",
    ),
    "use_stream, a protocol that answers text": (
        lambda w: bridge.use_stream(Stream("00")),
        TypeError,
        "use_stream: stream is a test_errors.Stream whose __cuda_stream__() returns '00'; (0, "
        "handle) is accepted, for version 0 of the protocol",
    ),
}
UNKNOWN = (
    "stream 0xdead0 is unknown to CUDA; one of a device's primary context that has not been "
    "destroyed is accepted (...)"
)
if not ON_GPU:  # a GPU's driver may crash of such a handle
    STREAMS |= {
        "wait_stream, an unknown handle and another": (
            lambda w: bridge.wait_stream(cupy.cuda.Stream(), Stream((0, 0xDEAD0))),
            ValueError,
            UNKNOWN,
        ),
        "wait_stream, an unknown handle": (
            lambda w: bridge.wait_stream(None, Stream((0, 0xDEAD0))),
            ValueError,
            UNKNOWN,
        ),
        "as_cupy, an exporter's unknown stream": (
            lambda w: bridge.as_cupy(Interface(w, stream=0xDEAD0)),
            ValueError,
            UNKNOWN,
        ),
        "a launch on an unknown stream": (
            lambda w: w.f(w.x, w.n, w.v, block=32, stream=Stream((0, 0xDEAD0))),
            ValueError,
            UNKNOWN,
        ),
    }

DEVICE = "an int, a cupy.cuda.Device, a pycuda.driver.Device or None is accepted"
NO_CONTEXT = (
    "PyCUDA has no context on this thread. On the main thread, `import bridge.autoinit` (instead "
    "of pycuda.autoinit) before using PyCUDA; on any other thread, work under `with "
    "bridge.primary_context():`"
)
SECOND = (
    "PyCUDA's current context (0x...) is not the primary context that CuPy uses, so work of the "
    "two libraries would not be ordered (use `import bridge.autoinit`, or work under `with "
    "bridge.primary_context():`)"
)
NOT_PRIMARY = (
    "CUDA's current context (0x...) is not the primary one of device 0, in which CuPy works; work "
    "under `with bridge.primary_context():`"
)

CONTEXTS = {
    "primary_context, text": (
        lambda w: bridge.primary_context("0"),
        TypeError,
        f"primary_context: device is '0'; {DEVICE}",
    ),
    "primary_context, a float": (
        lambda w: bridge.primary_context(0.0),
        TypeError,
        f"primary_context: device is 0.0; {DEVICE}",
    ),
    "primary_context, a bool": (
        lambda w: bridge.primary_context(True),
        TypeError,
        f"primary_context: device is True; {DEVICE}",
    ),
    "primary_context, an array": (
        lambda w: bridge.primary_context(np.zeros(2, int)),
        TypeError,
        f"primary_context: device is a numpy.ndarray; {DEVICE}",
    ),
    "primary_context, a decorator without parentheses": (
        lambda w: bridge.primary_context(lambda: None),
        TypeError,
        f"primary_context: device is a function; {DEVICE}; as a decorator, write "
        "@bridge.primary_context()",
    ),
    "primary_context, no such device": (
        lambda w: bridge.primary_context(99).__enter__(),
        ValueError,
        "primary_context: there is no device 99; this process sees ... device..., numbered from 0",
    ),
    "primary_context, a negative device": (
        lambda w: bridge.primary_context(-1).__enter__(),
        ValueError,
        "primary_context: there is no device -1; this process sees ... device..., numbered from 0",
    ),
    "primary_context, no such device of CuPy's": (
        lambda w: bridge.primary_context(cupy.cuda.Device(99)).__enter__(),
        ValueError,
        "primary_context: there is no device 99; this process sees ... device..., numbered from 0",
    ),
    "as_cupy, a thread without context": (
        on_a_thread(lambda w: bridge.as_cupy(w.a)),
        ContextError,
        NO_CONTEXT,
    ),
    "as_pycuda, a thread without context": (
        on_a_thread(lambda w: bridge.as_pycuda(w.x)),
        ContextError,
        NO_CONTEXT,
    ),
    "wait_stream, a thread without context": (
        on_a_thread(lambda w: bridge.wait_stream(w.stream, None)),
        ContextError,
        NO_CONTEXT,
    ),
    "a launch of PyCUDA's array, a thread without context": (
        on_a_thread(lambda w: w.f(w.a, w.n, w.v, block=32)),
        ContextError,
        NO_CONTEXT,
    ),
    "as_cupy, a second context": (
        under_a_second_context(lambda w: bridge.as_cupy(w.a)),
        ContextError,
        SECOND,
    ),
    "launch, a second context": (
        under_a_second_context(lambda w: bridge.launch(w.plain, w.x, w.n, w.v, grid=1, block=32)),
        ContextError,
        SECOND,
    ),
    "a function, a second context": (
        under_a_second_context(lambda w: w.f(w.x, w.n, w.v, block=32)),
        ContextError,
        NOT_PRIMARY,
    ),
    "SourceModule, a second context": (
        under_a_second_context(lambda w: bridge.SourceModule(SOURCE)),
        ContextError,
        NOT_PRIMARY,
    ),
    "show_memory, a second context": (
        under_a_second_context(lambda w: bridge.show_memory()),
        ContextError,
        NOT_PRIMARY,
    ),
}

POOL = (
    "a cupy.cuda.MemoryPool or MemoryAsyncPool, a pycuda.tools.DeviceMemoryPool or None is accepted"
)
SIZE = "a number of bytes is accepted, an int"
OUT_OF_MEMORY = (
    "1,125,899,906,842,624 bytes cannot be allocated, also after the memory that no array uses was "
    "released.\ndevice 0: ..., of which ... are free\npool ...CuPy's default MemoryPool ..."
    "PyCUDA's DeviceMemoryPool 0x...\nDrop arrays, or work in smaller pieces."
)

ALLOCATORS = {
    "pycuda_allocator, text": (
        lambda w: bridge.pycuda_allocator("pool"),
        TypeError,
        f"pycuda_allocator: pool is 'pool'; {POOL}",
    ),
    "pycuda_allocator, a class": (
        lambda w: bridge.pycuda_allocator(cupy.cuda.MemoryPool),
        TypeError,
        f"pycuda_allocator: pool is the class cupy.cuda.memory.MemoryPool; {POOL}",
    ),
    "pycuda_allocator, a pool of the host's": (
        lambda w: bridge.pycuda_allocator(PageLockedMemoryPool()),
        TypeError,
        f"pycuda_allocator: pool is a pycuda._driver.PageLockedMemoryPool; {POOL}",
    ),
    "cupy_allocator, a pool's function": (
        lambda w: bridge.cupy_allocator(cupy.cuda.malloc_managed),
        TypeError,
        f"cupy_allocator: pool is a ...function...; {POOL}",
    ),
    "cupy_allocator, a pool of the host's": (
        lambda w: bridge.cupy_allocator(cupy.cuda.PinnedMemoryPool()),
        TypeError,
        f"cupy_allocator: pool is a cupy.cuda.pinned_memory.PinnedMemoryPool; {POOL}",
    ),
    "an allocator of CuPy's pool, None": (
        lambda w: bridge.pycuda_allocator()(None),
        TypeError,
        f"pycuda_allocator: size is None; {SIZE}",
    ),
    "an allocator of CuPy's pool, an array": (
        lambda w: bridge.pycuda_allocator()(np.zeros(2, int)),
        TypeError,
        f"pycuda_allocator: size is a numpy.ndarray; {SIZE}",
    ),
    "an allocator of CuPy's pool, negative": (
        lambda w: bridge.pycuda_allocator()(-4),
        ValueError,
        "pycuda_allocator: size is -4; 0 to 2**63 - 1 bytes are accepted",
    ),
    "an allocator of CuPy's pool, too large to be a number": (
        lambda w: bridge.pycuda_allocator()(1 << 63),
        ValueError,
        "pycuda_allocator: size is 9223372036854775808; 0 to 2**63 - 1 bytes are accepted",
    ),
    "an allocator of CuPy's pool, more than there is": (
        lambda w: bridge.pycuda_allocator()(1 << 50),
        OutOfMemoryError,
        f"pycuda_allocator: {OUT_OF_MEMORY}",
    ),
    "an allocator of PyCUDA's pool, a float": (
        lambda w: bridge.pycuda_allocator(w.pool)(8.0),
        TypeError,
        f"pycuda_allocator: size is 8.0; {SIZE}",
    ),
    "an allocator of PyCUDA's pool for CuPy, text": (
        lambda w: bridge.cupy_allocator(w.pool)("8"),
        TypeError,
        f"cupy_allocator: size is '8'; {SIZE}",
    ),
    "an allocator of PyCUDA's pool for CuPy, a list": (
        lambda w: bridge.cupy_allocator(w.pool)([8]),
        TypeError,
        f"cupy_allocator: size is [8]; {SIZE}",
    ),
    "an allocator of PyCUDA's pool for CuPy, negative": (
        lambda w: bridge.cupy_allocator(w.pool)(-1),
        ValueError,
        "cupy_allocator: size is -1; 0 to 2**63 - 1 bytes are accepted",
    ),
    "an allocator of PyCUDA's pool for CuPy, more than there is": (
        lambda w: bridge.cupy_allocator(w.pool)(1 << 50),
        OutOfMemoryError,
        f"cupy_allocator: {OUT_OF_MEMORY}",
    ),
    "an allocator of CuPy's pool for CuPy, too large to be a number": (
        lambda w: bridge.cupy_allocator()(1 << 70),
        ValueError,
        "cupy_allocator: size is 1180591620717411303424; 0 to 2**63 - 1 bytes are accepted",
    ),
    "an array out of PyCUDA's pool, more than there is": (
        lambda w: gpuarray.empty(1 << 50, np.uint8, allocator=bridge.pycuda_allocator(w.pool)),
        OutOfMemoryError,
        f"pycuda_allocator: {OUT_OF_MEMORY}",
    ),
}

NVRTC = "means nothing to NVRTC: it is for"
LEAVE = "leave it out, or compile with backend='nvcc'"
TEXTURES = (
    "texture and surface references are gone since CUDA 12; give the kernel a `cudaTextureObject_t`"
    " parameter and pass a cupy.cuda.texture.TextureObject"
)

MODULES = {
    "SourceModule, None": (
        lambda w: bridge.SourceModule(None),
        TypeError,
        "SourceModule: source is None; CUDA C in a str is accepted",
    ),
    "SourceModule, bytes": (
        lambda w: bridge.SourceModule(b"__global__ void f() {}"),
        TypeError,
        "SourceModule: source is b'__global__ void f() {}'; CUDA C in a str is accepted",
    ),
    "SourceModule, a path": (
        lambda w: bridge.SourceModule(Path("kernels.cu")),
        TypeError,
        "SourceModule: source is a pathlib...Path; CUDA C in a str is accepted; give the file's "
        "text, e.g. path.read_text()",
    ),
    "SourceModule, a wrong source": (
        lambda w: bridge.SourceModule("__global__ void f() { nonsense; }"),
        drv.CompileError,
        "NVRTC could not compile the source\n...kernel.cu...nonsense...",
    ),
    "SourceModule, another compiler": (
        lambda w: bridge.SourceModule(SOURCE, backend="clang"),
        ValueError,
        "SourceModule: backend is 'clang'; 'nvrtc' and 'nvcc' are accepted",
    ),
    "SourceModule, a compiler that is not there": (
        lambda w: bridge.SourceModule(SOURCE, nvcc="/nowhere/nvcc", backend="nvcc"),
        FileNotFoundError,
        "SourceModule: nvcc is '/nowhere/nvcc', which cannot be run (...); give the compiler's "
        "path, or leave out backend='nvcc' for NVRTC",
    ),
    "SourceModule, options in a str": (
        lambda w: bridge.SourceModule(SOURCE, options="-O3 -G"),
        TypeError,
        "SourceModule: options is the str '-O3 -G'; a list is accepted, e.g. ['-lineinfo']",
    ),
    "SourceModule, a number for options": (
        lambda w: bridge.SourceModule(SOURCE, options=3),
        TypeError,
        "SourceModule: options is 3; a list is accepted, e.g. ['-lineinfo']",
    ),
    "SourceModule, a number among the options": (
        lambda w: bridge.SourceModule(SOURCE, options=["-O", 3]),
        TypeError,
        "SourceModule: options[1] is 3, no str; a list is accepted, e.g. ['-lineinfo']",
    ),
    "SourceModule, an option of the host's compiler": (
        lambda w: bridge.SourceModule(SOURCE, options=["-Xcompiler", "-fPIC"]),
        ValueError,
        f"SourceModule: the option -Xcompiler {NVRTC} nvcc's host compiler; {LEAVE}",
    ),
    "SourceModule, an option without its value": (
        lambda w: bridge.SourceModule(SOURCE, options=["-D"]),
        ValueError,
        "SourceModule: the option -D has no value; give it one, in the same item of the list or in "
        "the next",
    ),
    "SourceModule, two architectures": (
        lambda w: bridge.SourceModule(SOURCE, options=["-arch=sm_80", "-arch=sm_90"]),
        ValueError,
        "SourceModule: code for sm_80 and sm_90 is asked for; NVRTC compiles for one architecture: "
        "name one, or none for the current device's",
    ),
    "SourceModule, a number for the architecture": (
        lambda w: bridge.SourceModule(SOURCE, arch=90),
        TypeError,
        "SourceModule: arch is 90; a str such as 'sm_90', or None for the current device's, is "
        "accepted",
    ),
    "SourceModule, a number for the code": (
        lambda w: bridge.SourceModule(SOURCE, code=90),
        TypeError,
        "SourceModule: code is 90; a str such as 'sm_90', or None for the current device's, is "
        "accepted",
    ),
    "SourceModule, a str for the folders": (
        lambda w: bridge.SourceModule(SOURCE, include_dirs="include"),
        TypeError,
        "SourceModule: include_dirs is the str 'include'; a list is accepted, e.g. ['include']",
    ),
    "SourceModule, a path for the folders": (
        lambda w: bridge.SourceModule(SOURCE, include_dirs=Path("include")),
        TypeError,
        "SourceModule: include_dirs is a pathlib...Path; a list is accepted, e.g. ['include']",
    ),
    "SourceModule, True for the cache": (
        lambda w: bridge.SourceModule(SOURCE, cache_dir=True),
        TypeError,
        "SourceModule: cache_dir is True; a folder's path, None for CuPy's cache or False for none "
        "is accepted",
    ),
    "get_function, a name that is not there": (
        lambda w: w.module.get_function("fil"),
        drv.LogicError,
        "SourceModule.get_function: there is no kernel 'fil' in the module (...); its source has "
        'fill; the names of C++ are mangled unless extern "C" stands before the kernel',
    ),
    "get_function, None": (
        lambda w: w.module.get_function(None),
        TypeError,
        "SourceModule.get_function: name is None; the kernel's name, a str, is accepted",
    ),
    "get_function, bytes": (
        lambda w: w.module.get_function(b"fill"),
        TypeError,
        "SourceModule.get_function: name is b'fill'; the kernel's name, a str, is accepted",
    ),
    "get_global, a name that is not there": (
        lambda w: w.module.get_global("weight"),
        drv.LogicError,
        "SourceModule.get_global: there is no variable 'weight' in the module; a __constant__ or "
        "__device__ variable of the source is accepted (the names of C++ are mangled unless extern "
        '"C" stands before it)',
    ),
    "get_global, a number": (
        lambda w: w.module.get_global(3),
        TypeError,
        "SourceModule.get_global: name is 3; the variable's name, a str, is accepted",
    ),
    "get_texref": (
        lambda w: w.module.get_texref("image"),
        NotImplementedError,
        f"SourceModule.get_texref('image'): {TEXTURES}",
    ),
    "get_surfref": (
        lambda w: w.module.get_surfref("image"),
        NotImplementedError,
        f"SourceModule.get_surfref('image'): {TEXTURES}",
    ),
    "get_attribute, a name": (
        lambda w: w.f.get_attribute("num_regs"),
        TypeError,
        "fill: attribute is 'num_regs'; a pycuda.driver.function_attribute is accepted, e.g. "
        "pycuda.driver.function_attribute.NUM_REGS",
    ),
    "set_attribute, text": (
        lambda w: w.f.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, "1"),
        TypeError,
        "fill: value is '1'; an int is accepted",
    ),
    "set_attribute, more than the device has": (
        lambda w: w.f.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30),
        drv.LogicError,
        "fill: attribute ...MAX_DYNAMIC_SHARED_SIZE_BYTES cannot be set to 1073741824: CUDA "
        "refuses it on this device (...); see cuFuncSetAttribute and cuFuncGetAttribute in CUDA's "
        "manual for what it takes",
    ),
    "set_cache_config, a name": (
        lambda w: w.f.set_cache_config("L1"),
        TypeError,
        "fill: config is 'L1'; a pycuda.driver.func_cache is accepted, e.g. "
        "pycuda.driver.func_cache.PREFER_L1",
    ),
    "an attribute that no kernel has": (
        lambda w: w.f.nothing,
        AttributeError,
        "'Function' object has no attribute 'nothing'",
    ),
}

EXTENT = "an int or 1 to 3 of them (a tuple or list) are accepted"
CONTIGUOUS = (
    "is not contiguous (shape (8,), strides (8,)); pass a contiguous copy, or strided=True if the "
    "kernel takes the strides into account"
)
CONVERT = (
    "is an array of float64, but the kernel takes float32: convert it with "
    "a.astype(numpy.float32), or say with a.view(numpy.float32) that bytes are meant"
)
PASS_ON = ", or pass it in a pycuda.driver.In, Out or InOut"


def called(*args, **keywords):
    return lambda w: w.f(*(arg(w) for arg in args), **{"block": 32, **keywords})


def launched(*args, **keywords):
    keywords = {"block": 32, "grid": 1, **keywords}
    return lambda w: bridge.launch(w.plain, *(arg(w) for arg in args), **keywords)


def x(w):
    return w.x


def a(w):
    return w.a


def n(w):
    return w.n


def v(w):
    return w.v


def this(value):
    return lambda _: value


CALLS = {
    "a function, too few arguments": (
        called(x, n),
        TypeError,
        "fill: 2 arguments for 3 parameters: fill(float *x, int n, float v)",
    ),
    "a function, the block as an argument": (
        lambda w: w.f(w.x, w.n, w.v, (32, 1, 1)),
        TypeError,
        "fill: 4 arguments for 3 parameters: fill(float *x, int n, float v)",
    ),
    "a function, a host array": (
        called(this(np.zeros(N, np.float32)), n, v),
        TypeError,
        f"fill: argument 0 (`float *x`) is a host numpy.ndarray{HOST}{PASS_ON}",
    ),
    "a function, a host array of None": (
        called(this(np.array(None)), n, v),
        TypeError,
        f"fill: argument 0 (`float *x`) is a host numpy.ndarray{HOST}{PASS_ON}",
    ),
    "a function, another dtype": (
        called(doubles, n, v),
        TypeError,
        f"fill: argument 0 (`float *x`) {CONVERT}",
    ),
    "a function, not contiguous": (
        called(strided, n, v),
        ValueError,
        f"fill: argument 0 (`float *x`) {CONTIGUOUS}",
    ),
    "a function, no memory": (
        called(without_memory, n, v),
        ValueError,
        "fill: argument 0 (`float *x`): the array has no memory: its gpudata is None, its shape "
        "(8,); a GPUArray whose gpudata is its memory is accepted",
    ),
    "a function, an address": (
        called(this(4096), n, v),
        TypeError,
        "fill: argument 0 (`float *x`) is 4096, but the kernel takes a pointer; an address is "
        "passed as numpy.uintp(address)",
    ),
    "a function, a float for a pointer": (
        called(this(1.5), n, v),
        TypeError,
        "fill: argument 0 (`float *x`) is 1.5, but the kernel takes a pointer; a device array is "
        "accepted",
    ),
    "a function, an object": (
        called(this(object()), n, v),
        TypeError,
        f"fill: argument 0 (`float *x`) is a object; {ARRAYS}",
    ),
    "a function, read-only memory": (
        called(lambda w: Interface(w, data=(w.x.data.ptr, True)), n, v),
        BufferError,
        "fill: argument 0 (`float *x`): the argument's __cuda_array_interface__ " + READ_ONLY,
    ),
    "a function, a float for an int": (
        called(x, this(8.0), v),
        TypeError,
        "fill: argument 1 (`int n`) is 8.0, but the kernel takes int32 by value; pass an int, "
        "e.g. round(...)",
    ),
    "a function, an array for a number": (
        called(a, x, v),
        TypeError,
        "fill: argument 1 (`int n`) is a cupy.ndarray, but the kernel takes int32 by value; pass "
        "int(a.get()), for which the host waits, or let it take a pointer",
    ),
    "a function, another width": (
        called(x, this(np.int64(8)), v),
        TypeError,
        "fill: argument 1 (`int n`) is ...8..., but the kernel takes int32 by value; pass "
        "numpy.int32(...)",
    ),
    "a function, an int that does not fit": (
        called(x, this(1 << 31), v),
        OverflowError,
        "fill: argument 1 (`int n`) is 2147483648, which does not fit into int32",
    ),
    "a function, a float that does not fit": (
        called(x, n, this(1e300)),
        OverflowError,
        "fill: argument 2 (`float v`) is 1e+300, which does not fit into float32",
    ),
    "a function, no block": (
        lambda w: w.f(w.x, w.n, w.v),
        ValueError,
        "fill: block is missing; give the threads of a block, e.g. block=(128, 1, 1)",
    ),
    "a function, a block of 0": (
        called(x, n, v, block=(32, 0, 1)),
        ValueError,
        "fill: block is (32, 0, 1); each extent is 1 or more",
    ),
    "a function, a block of floats": (
        called(x, n, v, block=(N / 2, 1, 1)),
        TypeError,
        f"fill: block is (4.0, 1, 1); {EXTENT}",
    ),
    "a function, a block that is True": (
        called(x, n, v, block=True),
        TypeError,
        f"fill: block is True; {EXTENT}",
    ),
    "a function, a block that is an array": (
        called(x, n, v, block=np.array([32, 1, 1])),
        TypeError,
        f"fill: block is a numpy.ndarray; {EXTENT}",
    ),
    "a function, a block of four": (
        called(x, n, v, block=(1, 1, 1, 1)),
        TypeError,
        f"fill: block is (1, 1, 1, 1); {EXTENT}",
    ),
    "a function, too many threads": (
        called(x, n, v, block=(64, 64, 1)),
        drv.LogicError,
        "fill: block (64, 64, 1) has 4096 threads; for this kernel, which uses ... registers a "
        "thread, at most 1024 fit",
    ),
    "a function, more threads than a number holds": (
        called(x, n, v, block=1 << 40),
        drv.LogicError,
        "fill: block (1099511627776, 1, 1) has 1099511627776 threads; for this kernel, ... at most "
        "1024 fit",
    ),
    "a function, a grid that is too high": (
        called(x, n, v, grid=(1, 1 << 20)),
        drv.LogicError,
        "fill: grid is (1, 1048576, 1); this device takes up to [2147483647, 65535, 65535]",
    ),
    "a function, a grid larger than a number": (
        called(x, n, v, grid=(1 << 40, 1)),
        drv.LogicError,
        "fill: grid is (1099511627776, 1, 1); this device takes up to [2147483647, 65535, 65535]",
    ),
    "a function, a grid that is None": (
        called(x, n, v, grid=None),
        TypeError,
        f"fill: grid is None; {EXTENT}",
    ),
    "a function, half a byte of shared memory": (
        called(x, n, v, shared=0.5),
        TypeError,
        "fill: shared is 0.5; bytes, an int of 0 or more",
    ),
    "a function, True for shared memory": (
        called(x, n, v, shared=True),
        TypeError,
        "fill: shared is True; bytes, an int of 0 or more",
    ),
    "a function, negative shared memory": (
        called(x, n, v, shared=-1),
        ValueError,
        "fill: shared is -1; bytes, an int of 0 or more",
    ),
    "a function, too much shared memory": (
        called(x, n, v, shared=1 << 20),
        drv.LogicError,
        "fill: 1048576 bytes of dynamic shared memory are asked for, beside the kernel's own 0; a "
        "block has ... bytes",
    ),
    "a function, more shared memory than a number holds": (
        called(x, n, v, shared=1 << 70),
        drv.LogicError,
        "fill: 1180591620717411303424 bytes of dynamic shared memory are asked for, beside the "
        "kernel's own 0; a block has ... bytes",
    ),
    "a function, a number for a stream": (
        called(x, n, v, stream=7),
        TypeError,
        f"fill: stream is 7; None, {STREAM}{RAW}",
    ),
    "a function, no order for a stream": (
        called(x, n, v, stream=-1),
        TypeError,
        f"fill: stream is {NO_ORDER}",
    ),
    "a function, texture references": (
        called(x, n, v, texrefs=[object()]),
        NotImplementedError,
        f"fill: texrefs: {TEXTURES}",
    ),
    "a function, an unknown keyword": (
        called(x, n, v, blocks=1),
        TypeError,
        "Function.__call__() got an unexpected keyword argument 'blocks'...",  # 3.13 suggests
    ),
    "prepare, a number": (
        lambda w: w.f.prepare(3),
        TypeError,
        "fill: arg_types is 3; a str of struct's codes, e.g. 'PPi', or a sequence of such and of "
        "NumPy's types is accepted",
    ),
    "prepare, too few": (
        lambda w: w.f.prepare("Pi"),
        TypeError,
        "fill: 2 types prepared for 3 parameters: fill(float *x, int n, float v)",
    ),
    "prepare, another size": (
        lambda w: w.f.prepare(["P", np.int64, np.float32]),
        TypeError,
        "fill: type 1 is '...', of 8 bytes, but the parameter is another, of 4: fill(float *x, int "
        "n, float v)",
    ),
    "prepare, no type's code": (
        lambda w: w.f.prepare("Piz"),
        TypeError,
        "fill: 'z' in 'Piz' is no type's code; those of struct are accepted: P for pointers, i for "
        "int, f for float, ...",
    ),
    "prepare, texture references": (
        lambda w: w.f.prepare("Pif", texrefs=[object()]),
        NotImplementedError,
        f"fill: texrefs: {TEXTURES}",
    ),
    "prepared_call, not prepared": (
        lambda w: w.module.get_function("fill").prepared_call(1, 32, w.x, 8, 1.0),
        TypeError,
        "fill: it is not prepared; call prepare(arg_types) before the prepared calls: fill(float "
        "*x, int n, float v)",
    ),
    "prepared_call, too few": (
        prepared(x, this(8)),
        TypeError,
        "fill: prepared for P, i, f, but called with ndarray, int: pack_into expected 3 items for "
        "packing (got 2)",
    ),
    "prepared_call, a list for an int": (
        prepared(x, this([1]), this(1.0)),
        TypeError,
        "fill: argument 1 is [1], but 'i' is prepared: a number is accepted",
    ),
    "prepared_call, a host array for an int": (
        prepared(x, this(np.zeros(3)), this(1.0)),
        TypeError,
        "fill: argument 1 is a numpy.ndarray, but 'i' is prepared: a number is accepted",
    ),
    "prepared_call, a device array for an int": (
        prepared(x, x, this(1.0)),
        TypeError,
        "fill: argument 1 is a cupy.ndarray, but 'i' is prepared: a number is accepted",
    ),
    "prepared_call, an int that does not fit": (
        prepared(x, this(1 << 40), this(1.0)),
        TypeError,
        "fill: prepared for P, i, f, but called with ndarray, int, float: argument 1 is "
        "1099511627776, no 'i': ...",
    ),
    "prepared_call, a host array": (
        prepared(this(np.zeros(N, np.float32)), this(8), this(1.0)),
        TypeError,
        f"fill: argument 0 (`float *x`) is a host numpy.ndarray{HOST}{PASS_ON}",
    ),
    "prepared_call, another dtype": (
        prepared(doubles, this(8), this(1.0)),
        TypeError,
        f"fill: argument 0 (`float *x`) {CONVERT}",
    ),
    "prepared_call, In": (
        prepared(this(drv.In(np.zeros(N, np.float32))), this(8), this(1.0)),
        TypeError,
        "fill: argument 0 is a pycuda.driver.In, which prepared calls do not take; call the "
        "function itself",
    ),
    "prepared_call, a float for the grid": (
        lambda w: w.prepared.prepared_call(1.0, 32, w.x, 8, 1.0),
        TypeError,
        f"fill: grid is 1.0; {EXTENT}",
    ),
    "prepared_call, half a byte of shared memory": (
        prepared(x, this(8), this(1.0), shared_size=0.5),
        TypeError,
        "fill: shared is 0.5; bytes, an int of 0 or more",
    ),
    "prepared_async_call, the stream is forgotten": (
        prepared(x, this(8), this(1.0), method="prepared_async_call"),
        TypeError,
        f"fill: stream is a cupy.ndarray; None, {STREAM}",
    ),
    "prepared_timed_call, a grid of 0": (
        lambda w: w.prepared.prepared_timed_call(0, 32, w.x, 8, 1.0),
        ValueError,
        "fill: grid is 0; each extent is 1 or more",
    ),
}

FUNCTION = "a pycuda.driver.Function is accepted, e.g. from SourceModule(...).get_function(name)"
OWN = "but PyCUDA can launch on its own streams only: give a pycuda.driver.Stream, or none"
WIDTH = "which has no width; say numpy.int32 or numpy.int64, as the kernel declares it"

LAUNCHES = {
    "launch, a name": (
        lambda w: bridge.launch("fill", w.x, grid=1, block=32),
        TypeError,
        f"launch: function is 'fill'; {FUNCTION}",
    ),
    "launch, a module": (
        lambda w: bridge.launch(w.module, w.x, grid=1, block=32),
        TypeError,
        f"launch: function is a bridge.compiler.SourceModule; {FUNCTION}",
    ),
    "launch, a host array": (
        launched(this(np.zeros(3)), n, v),
        TypeError,
        f"launch: argument 0 is a host numpy.ndarray{HOST}{PASS_ON}",
    ),
    "launch, an int": (
        launched(x, this(8), v),
        TypeError,
        f"launch: argument 1 is the Python int 8, {WIDTH}",
    ),
    "launch, text": (
        launched(this("x"), n, v),
        TypeError,
        f"launch: argument 0 is 'x'; {ARRAYS}",
    ),
    "launch, a long double": (
        launched(x, n, this(np.longdouble(1))),
        TypeError,
        "launch: argument 2 is a float128, no type of CUDA C; bool, integers, float16/32/64 and "
        "complex64/128 are accepted",
    ),
    "launch, not contiguous": (
        launched(strided, n, v),
        ValueError,
        f"launch: argument 0 {CONTIGUOUS}",
    ),
    "launch, no memory": (
        launched(without_memory, n, v),
        ValueError,
        "launch: argument 0: the array has no memory: its gpudata is None, its shape (8,); a "
        "GPUArray whose gpudata is its memory is accepted",
    ),
    "launch, a masked array": (
        launched(lambda w: Interface(w, mask=w.x), n, v),
        BufferError,
        "launch: argument 0: the argument's __cuda_array_interface__ has a mask; neither library "
        "has masked arrays: hand over the data without it",
    ),
    "launch, a grid of a bool": (
        launched(x, n, v, grid=(True, 1)),
        TypeError,
        f"launch: grid is (True, 1); {EXTENT}",
    ),
    "launch, a grid of a float": (
        launched(x, n, v, grid=N / 4),
        TypeError,
        f"launch: grid is 2.0; {EXTENT}",
    ),
    "launch, a grid larger than a number": (
        launched(x, n, v, grid=1 << 40),
        drv.LogicError,
        "launch: grid is (1099511627776, 1, 1); this device takes up to [2147483647, 65535, 65535]",
    ),
    "launch, a block of 0": (
        launched(x, n, v, block=0),
        ValueError,
        "launch: block is 0; each extent is 1 or more",
    ),
    "launch, no grid": (
        lambda w: bridge.launch(w.plain, w.x, w.n, w.v, block=32),
        TypeError,
        "launch() missing 1 required keyword-only argument: 'grid'",
    ),
    "launch, None for shared memory": (
        launched(x, n, v, shared=None),
        TypeError,
        "launch: shared is None; bytes, an int of 0 or more",
    ),
    "launch, half a byte of shared memory": (
        launched(x, n, v, shared=0.5),
        TypeError,
        "launch: shared is 0.5; bytes, an int of 0 or more",
    ),
    "launch, negative shared memory": (
        launched(x, n, v, shared=-1),
        ValueError,
        "launch: shared is -1; bytes, an int of 0 or more",
    ),
    "launch, too much shared memory": (
        launched(x, n, v, shared=1 << 70),
        drv.LogicError,
        "launch: 1180591620717411303424 bytes of dynamic shared memory are asked for, beside the "
        "kernel's own 0; a block has ... bytes",
    ),
    "launch, no order for a stream": (
        launched(x, n, v, stream=-1),
        TypeError,
        f"launch: stream is -1, {OWN}",
    ),
    "launch, a stream of CuPy's": (
        launched(x, n, v, stream=cupy.cuda.Stream.null),
        TypeError,
        f"launch: stream is a cupy.cuda.stream.Stream, {OWN}",
    ),
    "wrap_pycuda, None": (
        lambda w: bridge.wrap_pycuda(None),
        TypeError,
        "wrap_pycuda: func is None; a callable is accepted: wrap the function, then call it with "
        "the arrays",
    ),
    "wrap_pycuda, the arrays": (
        lambda w: bridge.wrap_pycuda(w.x),
        TypeError,
        "wrap_pycuda: func is a cupy.ndarray; a callable is accepted: wrap the function, then call "
        "it with the arrays",
    ),
    "wrap_pycuda, a call with repeated elements": (
        lambda w: bridge.wrap_pycuda(lambda array: array)(repeated(w)),
        ValueError,
        "as_pycuda: the array repeats elements (shape (8,), strides (0,)), and PyCUDA would read "
        "and write past them; pass cupy.ascontiguousarray(a)",
    ),
    "show_memory, an argument": (
        lambda w: bridge.show_memory(w.pool),
        TypeError,
        "show_memory() takes 0 positional arguments but 1 was given",
    ),
    "show_config, an argument": (
        lambda w: bridge.show_config("all"),
        TypeError,
        "show_config() takes 0 positional arguments but 1 was given",
    ),
    "bridge, a name that is not there": (
        lambda w: bridge.as_numpy,
        AttributeError,
        "module 'bridge' has no attribute 'as_numpy'",
    ),
}

if not ON_GPU:  # what a GPU would do with too few is not known
    LAUNCHES |= {
        "launch, too few arguments": (
            launched(x, n),
            drv.LogicError,
            "launch: CUDA refuses the launch (...), and the extents are not why: compare number "
            "and widths of the arguments with the kernel's parameters, which CUDA does not tell "
            "here; a function of bridge.SourceModule checks them",
        ),
    }

ROWS = CONVERSIONS | STREAMS | CONTEXTS | ALLOCATORS | MODULES | CALLS | LAUNCHES


@pytest.mark.parametrize(("call", "kind", "message"), ROWS.values(), ids=ROWS)
def test_what_is_said(w, call, kind, message):
    with unchanged(w):
        found, text = error_of(call, w)
    assert found is kind, text
    assert is_said(text, message), text


def test_no_row_hides_another():
    tables = (CONVERSIONS, STREAMS, CONTEXTS, ALLOCATORS, MODULES, CALLS, LAUNCHES)
    assert len(ROWS) == sum(map(len, tables))


CHANGES = {
    "CuPy's array": lambda w, undo: (w.x.fill(3), undo(lambda: w.x.set(np.arange(N, dtype="f")))),
    "PyCUDA's array": lambda w, undo: (
        bridge.as_cupy(w.a).fill(3),
        undo(lambda: w.a.set(np.arange(N, dtype="f"))),
    ),
    "the array in PyCUDA's pool": lambda w, undo: (
        bridge.as_cupy(w.pooled).fill(3),
        undo(lambda: w.pooled.set(np.arange(N, dtype="f"))),
    ),
    "CuPy's pool": lambda w, undo: undo(cupy.zeros(9).copy),
    "PyCUDA's pool": lambda w, undo: undo(w.pool.allocate(9).free),
    "CuPy's stream": lambda w, undo: (
        cupy.cuda.Stream(non_blocking=True).use(),
        undo(cupy.cuda.Stream.null.use),
    ),
    "PyCUDA's context": lambda w, undo: (drv.Device(0).make_context(), undo(drv.Context.pop)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(w, change):
    with contextlib.ExitStack() as stack, pytest.raises(AssertionError), unchanged(w):
        change(w, stack.callback)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("f: x is 3; more", "f: x is 3"),
        ("f: x is 3", "f: x is 3; an int is accepted"),
        ("f: x is [8]", "f: x is [9]"),
        ("g: x is 3", "f: ..."),
    ],
)
def test_another_text_is_noticed(text, pattern):
    assert is_said(text, text)
    assert not is_said(text, pattern)


# --- in processes of their own ---------------------------------------------------------------

PRELUDE = """
import json
import numpy as np, cupy, pycuda.driver as drv
import bridge
from pycuda import gpuarray

found = {}

def say(name, call, *args):
    try:
        call(*args)
    except Exception as error:
        found[name] = type(error).__module__ + "." + type(error).__qualname__, str(error)
"""

TWO_DEVICES = """
import bridge.autoinit
from pycuda.tools import DeviceMemoryPool

SOURCE = "__global__ void fill(float *x, int n) { for (int i = 0; i < n; i++) x[i] = 7; }"
fill = bridge.SourceModule(SOURCE).get_function("fill")
image, _ = cupy.cuda.compiler.compile_using_nvrtc('extern "C" ' + SOURCE)
plain = drv.module_from_buffer(image).get_function("fill")
n = np.int32(8)
host = np.arange(8, dtype=np.float32)
with bridge.primary_context(1):
    a = gpuarray.to_gpu(host)
    with cupy.cuda.Device(1):
        x = cupy.asarray(host)
    pool = DeviceMemoryPool()
    block = pool.allocate(8)
state = lambda: (
    drv.Context.get_current(), cupy.cuda.runtime.getDevice(), pool.active_bytes,
    cupy.get_default_memory_pool().used_bytes(),
)
before = state()
say("as_cupy", bridge.as_cupy, a)
say("as_cupy of CuPy's", bridge.as_cupy, x)
say("as_pycuda", bridge.as_pycuda, x)
say("a function", lambda: fill(a, n, block=32))
say("a function of CuPy's", lambda: fill(x, n, block=32))
prepared = bridge.SourceModule(SOURCE).get_function("fill").prepare("Pi")
say("prepared", lambda: prepared.prepared_call(1, 32, a.gpudata, 8))
say("prepared, a block of a pool's", lambda: prepared.prepared_call(1, 32, block, 8))
say("launch", lambda: bridge.launch(plain, a, n, grid=1, block=32))
say("launch of CuPy's", lambda: bridge.launch(plain, x, n, grid=1, block=32))
say("cupy_allocator", lambda: bridge.cupy_allocator(pool)(8))
say("pycuda_allocator", lambda: bridge.pycuda_allocator(pool)(8))
assert state() == before, (state(), before)
cupy.cuda.Device(1).use()
say("CuPy elsewhere", bridge.as_cupy, a)
say("wait_stream", bridge.wait_stream, None, None)
cupy.cuda.Device(0).use()
say("primary_context", bridge.primary_context(99).__enter__)
assert state() == before, (state(), before)
with bridge.primary_context(1):
    say("launch of a function", lambda: bridge.launch(plain, a, n, grid=1, block=32))
    assert a.get().tolist() == x.get().tolist() == host.tolist()
print(json.dumps(found))
"""

ELSEWHERE = (
    "is on device 1, but device 0 is current; work under `with bridge.primary_context(1):`, or "
    "copy it to device 0"
)
OWN_POOL = (
    "the pool is on device 1, but device 0 is current; make a pool for each device, under `with "
    "bridge.primary_context(0):`"
)
SWITCHED = (
    "PyCUDA's current context is on device 0, CuPy's current one is on device 1. Work with both on "
    "one device, e.g. under `with bridge.primary_context(1):`, or go back with "
    "`cupy.cuda.Device(0).use()` if it was another library that switched (JAX does when it starts)"
)
ERROR = "bridge.context.ContextError"
ON_TWO_DEVICES = {
    "as_cupy": (ERROR, f"as_cupy: the array {ELSEWHERE}"),
    "as_cupy of CuPy's": (ERROR, f"as_cupy: the array {ELSEWHERE}"),
    "as_pycuda": (ERROR, f"as_pycuda: the array {ELSEWHERE}"),
    "a function": (ERROR, f"fill: argument 0 (`float *x`) {ELSEWHERE}"),
    "a function of CuPy's": (ERROR, f"fill: argument 0 (`float *x`) {ELSEWHERE}"),
    "prepared": (ERROR, f"fill: argument 0 (`float *x`) {ELSEWHERE}"),
    "prepared, a block of a pool's": (ERROR, f"fill: argument 0 (`float *x`) {ELSEWHERE}"),
    "launch": (ERROR, f"launch: argument 0 {ELSEWHERE}"),
    "launch of CuPy's": (ERROR, f"launch: argument 0 {ELSEWHERE}"),
    "cupy_allocator": (ERROR, f"cupy_allocator: {OWN_POOL}"),
    "pycuda_allocator": (ERROR, f"pycuda_allocator: {OWN_POOL}"),
    "launch of a function": (
        "pycuda._driver.LogicError",
        "launch: CUDA does not know the stream, or the function, on device 1, which is current; "
        "streams and functions of this device that have not been destroyed are accepted (...)",
    ),
    "CuPy elsewhere": (ERROR, SWITCHED),
    "wait_stream": (ERROR, SWITCHED),
    "primary_context": (
        "builtins.ValueError",
        "primary_context: there is no device 99; this process sees ... devices, numbered from 0",
    ),
}


def errors_of(script, devices=1):
    done = run_python(PRELUDE + script, devices=devices)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def on_two_devices():
    return errors_of(TWO_DEVICES, devices=2)


@pytest.mark.parametrize(("name", "expected"), ON_TWO_DEVICES.items(), ids=ON_TWO_DEVICES)
def test_what_is_said_of_another_device(on_two_devices, name, expected):
    kind, text = on_two_devices[name]
    assert kind == expected[0], text
    assert is_said(text, expected[1]), text


AUTOINIT = {
    "after PyCUDA's": (
        "import pycuda.autoinit\n"
        "say('error', __import__, 'bridge.autoinit')\n"
        "assert drv.Context.get_current() == pycuda.autoinit.context\n",
        "`import pycuda.autoinit` ran before `import bridge.autoinit` and made a second context "
        "beside the primary one that CuPy uses. Replace `import pycuda.autoinit` by `import "
        "bridge.autoinit`, or import bridge.autoinit first: later imports of pycuda.autoinit then "
        "share its context",
    ),
    "on another thread": (
        "import threading\n"
        "thread = threading.Thread(target=say, args=('error', __import__, 'bridge.autoinit'))\n"
        "thread.start()\n"
        "thread.join()\n"
        "assert drv.Context.get_current() is None\n",
        "bridge.autoinit was first imported on another thread than the main one, where its context "
        "would abort the process at exit. Import it on the main thread, and work under `with "
        "bridge.primary_context():` on others",
    ),
    "PyCUDA's alone": (
        "import pycuda.autoinit\n"
        "say('error', bridge.as_cupy, gpuarray.to_gpu(np.arange(3)))\n"
        "assert drv.Context.get_current() == pycuda.autoinit.context\n",
        "PyCUDA's current context (0x...) is not the primary context that CuPy uses, so work of "
        "the two libraries would not be ordered (pycuda.autoinit makes such a context; replace "
        "`import pycuda.autoinit` by `import bridge.autoinit`, or work under `with "
        "bridge.primary_context():`)",
    ),
}


@pytest.mark.parametrize(("script", "message"), AUTOINIT.values(), ids=AUTOINIT)
def test_what_is_said_of_autoinit(script, message):
    kind, text = errors_of(f"{script}print(json.dumps(found))")["error"]
    assert kind == ERROR, text
    assert is_said(text, message), text


@pytest.mark.parametrize("argument", ["--nonsense", "array.npy", "-c"])
def test_what_is_said_of_a_bad_option(w, capsys, argument):
    with unchanged(w):
        found, status = error_of(bridge.__main__.main, [argument])
    assert (found, status) == (SystemExit, "2")
    out, err = capsys.readouterr()
    usage = "usage: python -m bridge [-h] [--config]"
    assert (out, err) == (
        "",
        f"{usage}\npython -m bridge: error: unrecognized arguments: {argument}\n",
    )
