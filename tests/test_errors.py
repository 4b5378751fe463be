"""The errors that users are promised: what they say, and that nothing has changed after them.

Each message names the function and the argument, says what came and what is accepted, and what
to do where there is something to do.  The tables hold a telling phrase of each.
`test_importing` has the array interfaces that are refused.
"""

import ast
import builtins
import contextlib
import gc
import re
from pathlib import Path  # noqa: F401  (for the rows of the tables, as others below)
from types import SimpleNamespace

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from contexts import second_context
from dlpack_structs import Producer  # noqa: F401  (as above)
from error_tables import error_of, rows_of
from exporters import Exporter, answering  # noqa: F401
from gpus import ON_GPU
from messages import messages
from other_threads import on_a_thread  # noqa: F401
from processes import ROOT, run_python
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge
import bridge.__main__
from bridge.interop.pool import OutOfMemoryError
from bridge.legacy.skcuda import linalg, misc  # noqa: F401  (as above)

N = 8
SOURCE = """
struct point { unsigned char name; double x; float y; };
typedef float real;
__constant__ float weights[3];
__global__ void fill(float *x, int n, float v)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = v;
}
__global__ void move(char axis, struct point p, real by) { }
__global__ void gather(float **rows, cudaTextureObject_t image) { }
"""
TWICE = "__global__ void f(int *x) {} __global__ void f(float *x) {}"
POINT = np.dtype([("name", "u1"), ("x", "<f8"), ("y", "<f4")], align=True)


@pytest.fixture(scope="module")
def w(compile_kernel):
    """What the rows give to the functions, and what must be the same afterwards."""
    gc.collect()  # garbage of other tests would count as a change
    module = bridge.SourceModule(SOURCE)
    pool = DeviceMemoryPool()
    return SimpleNamespace(
        x=cupy.arange(N, dtype=np.float32),
        a=gpuarray.to_gpu(np.arange(N, dtype=np.float32)),
        scratch=cupy.zeros(N, np.float32),
        pool=pool,
        pooled=gpuarray.to_gpu(np.arange(N, dtype=np.float32), allocator=pool.allocate),
        module=module,
        f=module.get_function("fill"),
        move=module.get_function("move"),
        gather=module.get_function("gather"),
        prepared=module.get_function("fill").prepare("Pif"),
        plain=compile_kernel(f'extern "C" {{ {SOURCE} }}', "fill"),
        stream=drv.Stream(),
        repeated=cupy.broadcast_to(cupy.zeros(1, np.float32), (N,)),
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


# ---- what the rows use beside the fixture --------------------------------------------------------


def under_a_second_context(call):
    with second_context():
        call()


def changed(**attributes):
    """Return an array whose attributes were set as the constructor never sets them."""
    array = gpuarray.GPUArray(N, np.float32)
    vars(array).update(attributes)
    return array


def read_only():
    array = np.zeros(N, np.float32)
    array.flags.writeable = False
    return array


def of_dtype(dtype):
    array = gpuarray.GPUArray(N, np.complex128)
    array.dtype = np.dtype(dtype)
    return array


KINDS = {"LogicError": drv.LogicError, "CompileError": drv.CompileError}
KINDS |= {kind.__name__: kind for kind in (bridge.ContextError, OutOfMemoryError)}


# ---- the tables ----------------------------------------------------------------------------------

TABLE = r"""
# Conversions.
as_cupy("array")
    TypeError: as_cupy: argument is 'array'; a GPUArray, a cupy.ndarray or an object with
as_cupy("x" * 10_000)
    TypeError: xxx... (a str); a GPUArray
as_cupy(gpuarray.GPUArray)
    TypeError: as_cupy: argument is the class pycuda.gpuarray.GPUArray
as_cupy(x.data)
    TypeError: a cupy.cuda.memory.MemoryPointer; memory tells neither shape nor dtype: give both
as_cupy(5)
    TypeError: as_cupy: argument is 5, taken for an address; memory tells neither shape nor dtype
as_cupy(x.data, N)
    TypeError: as_cupy: the dtype of bare memory is missing; give shape and dtype, e.g. shape=(480
as_cupy(x.data, shape=N, dtype=object)
    TypeError: as_cupy: dtype object is not one that both
as_pycuda(x.data, shape=N, dtype="f4", strides=-4)
    ValueError: shape (8,), strides (-4,), offset 0 and dtype float32 need the bytes from -28
as_cupy(x.data, shape=N, dtype="f4", strides=(4, 4))
    ValueError: as_cupy: shape is (8,), strides are (4, 4); give one stride per axis, in bytes
as_cupy(x.data, shape=1.5, dtype="f4")
    TypeError: as_cupy: shape is 1.5; an int or a sequence of ints is accepted
as_cupy(x.data, shape=-1, dtype="f4")
    ValueError: as_cupy: shape is (-1,); lengths of 0 to 2**63 - 1 are accepted
as_cupy(x.data, shape=1, dtype="f4", order="Q")
    ValueError: as_cupy: order is 'Q', strides are None; order 'C' or 'F' is accepted, or strides
as_cupy(x.data, shape=1, dtype="f4", order="F", strides=4)
    ValueError: as_cupy: order is 'F', strides are (4,); order 'C' or 'F' is accepted, or strides
as_cupy(x.data, shape=1, dtype="floot")
    TypeError: as_cupy: dtype is 'floot'; a data type of NumPy's is accepted, e.g. numpy.float32
as_cupy(x.data, shape=1, dtype="f4", offset=2)
    ValueError: give addresses that a float32 cannot have; they must be multiples of 4
as_pycuda(x.data, shape=2, dtype="f4", strides=0)
    ValueError: as_pycuda: strides are (0,); PyCUDA cannot repeat elements
as_cupy(x.data, shape=2, dtype="(2,)f4")
    TypeError: give its base dtype, and the longer shape
as_cupy(x.data, shape=2, dtype="f4", owner=a)
    TypeError: owner is for an address; a cupy.cuda.memory.MemoryPointer is kept without it
as_cupy(0, shape=2, dtype="f4")
    ValueError: as_cupy: the memory is at 0x0, or has been freed
as_cupy(4096, shape=N, dtype="f4")
    ValueError: as_cupy: the memory has the pointer 0x1000, which is unknown to CUDA
as_cupy(a, shape=N, dtype="f4")
    TypeError: a pycuda.gpuarray.GPUArray, which has its own shape and dtype: write .reshape(...)
as_cupy(Exporter(x), N, "i4")
    TypeError: which has its own shape and dtype: write .reshape(...) or .view(dtype) of the result
as_cupy(Exporter(cupy.zeros(N, "u1")), N, "i4")
    ValueError: need the bytes from 0 to 32; a cupy.cuda.memory.MemoryPointer has those from 0 to 8
as_cupy(a, cupy.cuda.Stream.null)
    TypeError: or an address; stream=s gives a stream
as_cupy(of_dtype(">f4"))
    TypeError: is not in native byte order; convert it on the host first, e.g. a.astype('<f4')
as_cupy(changed(gpudata=None))
    ValueError: as_cupy: the array has no memory: its gpudata is None, its shape (8,)
as_cupy(changed(gpudata=-8))
    ValueError: as_cupy: the array's gpudata is -8, which is no address
changed(shape=(2, 4)).__dlpack__(max_version=(1, 0))
    ValueError: the array has shape (2, 4), but strides (4,): its shape was set without its strides
a.__dlpack__(stream="s")
    TypeError: GPUArray.__dlpack__: stream is 's'; None, -1 (no ordering), 1 (the legacy default
as_cupy(Exporter(x, data=(x.data.ptr, True)))
    BufferError: as_cupy: the argument's __cuda_array_interface__ is marked read-only; neither
as_cupy(Exporter(x, typestr="|V4", descr=[("", "<f8")]))
    ValueError: has typestr '|V4', descr [('', '<f8')]: descr describes 8 bytes;
as_cupy(Producer(x, major=2))
    BufferError: as_cupy: the argument is exported as DLPack 2; version 1 is accepted
as_cupy(a, stream=7)
    TypeError: an object whose __cuda_stream__() returns (0, handle) is accepted; -1 means 'do not
as_cupy(a, stream=True)
    TypeError: as_cupy: stream is True; None, a pycuda.driver.Stream, a cupy.cuda.Stream
as_cupy(a, stream=answering((1, 5)))
    TypeError: is a types.SimpleNamespace whose __cuda_stream__() returns (1, 5); None, a pycuda
as_cupy(SimpleNamespace(__cuda_array_interface__=[1]))
    TypeError: as_cupy: the argument's __cuda_array_interface__ is a list; a dict is accepted
as_pycuda(None)
    TypeError: an object with __cuda_array_interface__ or __dlpack__ is accepted
as_pycuda(repeated)
    ValueError: as_pycuda: the array repeats elements (shape (8,), strides (0,))
as_pycuda(Exporter(x, strides=(0,)))
    ValueError: pass a copy, cupy.ascontiguousarray(x)
as_pycuda(changed(gpudata=None))
    ValueError: a GPUArray whose gpudata is its memory is accepted

# Streams.
wait_stream(-1, None)
    TypeError: wait_stream: waiter is -1; None, a pycuda.driver.Stream, a cupy.cuda.Stream
wait_stream(None, -1)
    TypeError: wait_stream: awaited is -1; None, a pycuda.driver.Stream, a cupy.cuda.Stream
wait_stream(None, answering((0, 1 << 64)))
    TypeError: whose __cuda_stream__() returns (0, 18446744073709551616); None, a
as_cupy_stream(-1)
    TypeError: as_cupy_stream: stream is -1; None, a pycuda.driver.Stream, a cupy.cuda.Stream
as_cupy_stream(x)
    TypeError: a cupy.cuda.Stream or an object whose __cuda_stream__() returns (0, handle)


# PyCUDA's copies and events.
drv.memcpy_htod(x, np.zeros(N))
    TypeError: memcpy_htod: PyCUDA does not take a cupy.ndarray here; let CuPy copy (x.set(host)
drv.memset_d32(x.data, 0, N)
    TypeError: memset_d32: PyCUDA does not take a cupy.cuda.memory.MemoryPointer here; let CuPy
a.set_async(np.zeros(N, np.float32), cupy.cuda.Stream())
    TypeError: by s = pycuda.driver.Stream(), on which CuPy works under `with bridge.as_cupy_stre
drv.Event().record(cupy.cuda.Stream())
    TypeError: Event.record: PyCUDA does not take a cupy.cuda.stream.Stream here; make the stream
stream.wait_for_event(cupy.cuda.Event())
    TypeError: take a cupy.cuda.stream.Event here; order two streams by bridge.wait_stream(waiter
drv.memcpy_htod(module.get_global("weights"), np.zeros(3, np.float32))
    TypeError: memcpy_htod: PyCUDA does not take a bridge.interop.memory_kinds.Global here; give its
drv.memcpy_dtoh(np.zeros(N, np.float32), a)
    TypeError: memcpy_dtoh: PyCUDA does not take a pycuda.gpuarray.GPUArray here; give a.gpudata
drv.memcpy_htod(1.5, x)
    TypeError: memcpy_htod: PyCUDA does not take a cupy.ndarray here

# Contexts.
primary_context.__class__.__enter__(primary_context)
    TypeError: primary_context: `with` got the class; write `with bridge.primary_context():`
primary_context("0")
    TypeError: device is '0'; an int, a cupy.cuda.Device, a pycuda.driver.Device or None is accepted
primary_context(True)
    TypeError: primary_context: device is True; an int, a cupy.cuda.Device
primary_context(lambda: None)
    TypeError: as a decorator, write @bridge.primary_context()
primary_context()(gpuarray.GPUArray)
    TypeError: the decorated function is the class pycuda.gpuarray.GPUArray; a function is accepted
ordered()(lambda: (yield))
    TypeError: or an await, whose body runs after the call; write `with bridge.ordered():` around
primary_context(99).__enter__()
    ValueError: primary_context: there is no device 99; this process sees
primary_context().__exit__(None, None, None)
    ContextError: primary_context: PyCUDA's current context is not the one that was entered last
on_a_thread(lambda: as_cupy(a))
    ContextError: PyCUDA has no context on this thread; on the main thread, `import bridge.autoinit`
on_a_thread(lambda: as_pycuda(x))
    ContextError: on any thread, work under `with bridge.primary_context():`
on_a_thread(lambda: wait_stream(stream, None))
    ContextError: PyCUDA has no context on this thread; on the main thread
under_a_second_context(lambda: as_cupy(a))
    ContextError: the current context is not the primary context that CuPy uses, so work of the
under_a_second_context(lambda: launch(plain, x, n, v, grid=1, block=32))
    ContextError: would not be ordered; pop the context made by hand, or work under
under_a_second_context(lambda: SourceModule(SOURCE))
    ContextError: is not the primary context that CuPy uses
under_a_second_context(show_memory)
    ContextError: made by hand, or work under `with bridge.primary_context():`

# Allocators.
pycuda_allocator("pool")
    TypeError: pycuda_allocator: pool is 'pool'; a cupy.cuda.MemoryPool, a MemoryAsyncPool or
pycuda_allocator()(None)
    TypeError: pycuda_allocator: size is None; a number of bytes is accepted, an int
pycuda_allocator()(True)
    TypeError: pycuda_allocator: size is True; a number of bytes is accepted, an int
pycuda_allocator()(-4)
    ValueError: pycuda_allocator: size is -4; 0 to 2**63 - 1 bytes are accepted
pycuda_allocator()(1 << 63)
    ValueError: pycuda_allocator: size is 9223372036854775808; 0 to 2**63 - 1 bytes are accepted
pycuda_allocator()(1 << 50)
    OutOfMemoryError: pycuda_allocator: 1,125,899,906,842,624 bytes cannot be allocated

# Modules and functions.
SourceModule("kernels.cu")
    TypeError: source is 'kernels.cu'; CUDA C in a str is accepted, or a file as a pathlib.Path
SourceModule(TWICE, no_extern_c=True).get_function("f")
    LogicError: its source has several kernels 'f', or has it in a namespace: rename one
SourceModule("__global__ void g(); __global__ void f() { g<<<1, 1>>>(); }")
    CompileError: a kernel that launches kernels needs pycuda.compiler.DynamicSourceModule
bridge.nosuch
    AttributeError: module 'bridge' has no attribute 'nosuch'
f((8,), (128,), (x, n, v))
    ValueError: block=(128, 1, 1), grid=(8, 1); CuPy's f(grid, block, args) is f(*args, block=block
SourceModule("__global__ void f() { nonsense; }")
    CompileError: NVRTC could not compile the source
SourceModule(SOURCE, backend="clang")
    ValueError: SourceModule: backend is 'clang'; 'nvrtc' and 'nvcc' are accepted
SourceModule(SOURCE, nvcc="/nowhere/nvcc", backend="nvcc")
    FileNotFoundError: nvcc is '/nowhere/nvcc', which cannot be run
SourceModule(SOURCE, options="-O3 -G")
    TypeError: SourceModule: options is '-O3 -G'; a list of str, e.g. ['-lineinfo'], is accepted
SourceModule(SOURCE, options=["-O", 3])
    TypeError: options[1] is 3; a list of str, e.g. ['-lineinfo'], is accepted
SourceModule(SOURCE, options=["-D"])
    ValueError: SourceModule: the option -D has no value; give it one
SourceModule(SOURCE, options=["-gencode", "arch=compute_80,code=[sm_80,sm_86]"])
    ValueError: code for sm_80 and sm_86 is asked for; NVRTC compiles for one architecture: name one
SourceModule(SOURCE, True)
    TypeError: SourceModule: nvcc is True; the path of nvcc, a str, for backend='nvcc', is accepted
SourceModule(SOURCE, keep="/tmp/kept")
    TypeError: SourceModule: keep is '/tmp/kept'; True or False is accepted
SourceModule(SOURCE, no_extern_c="False")
    TypeError: SourceModule: no_extern_c is 'False'; True or False is accepted
use_nvrtc(3)
    TypeError: use_nvrtc: enable is 3; True or False is accepted
use_nvrtc("nvcc")
    TypeError: use_nvrtc: enable is 'nvcc'; True or False is accepted
SourceModule(SOURCE, options=["-O3 -lineinfo"])
    ValueError: NVRTC refuses the options (-arch=
SourceModule(SOURCE, options=["-lineinfo -O3"])
    ValueError: found; give each option as a str of its own
SourceModule(SOURCE, arch="90")
    ValueError: (-arch=90 ...): invalid value for --gpu-architecture (-arch); leave out arch for the
SourceModule("#include <mine.h>", include_dirs=["/nowhere"])
    CompileError: include_dirs=['...']; of the folders, these do not exist: /nowhere
SourceModule(SOURCE, arch=90)
    TypeError: SourceModule: arch is 90; a str such as 'sm_90', or None for the current device's
SourceModule(SOURCE, include_dirs="include")
    TypeError: SourceModule: include_dirs is 'include'; a list of str, e.g. ['include'], is accepted
SourceModule(SOURCE, cache_dir=True)
    TypeError: a folder's path, None for CuPy's cache or False for none is accepted
module.get_function(None)
    TypeError: SourceModule.get_function: name is None; the kernel's name, a str, is accepted
module.get_surfref("image")
    LogicError: SourceModule.get_surfref: there is no variable 'image' in the module; its source has
SourceModule("texture<float, 1> t; __global__ void k() { }").get_surfref("t")
    LogicError: SourceModule.get_surfref: texture 't' is no surface reference
f.get_attribute("num_regs")
    TypeError: fill: attribute 'num_regs': an int is accepted, or a member of pycuda.driver's
f.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30)
    LogicError: cannot be set to 1073741824: CUDA refuses it on this device (

# Calls.
f(x, n, block=32)
    TypeError: fill: 2 arguments for 3 parameters: fill(float *x, int n, float v)
f(np.zeros(N, np.float32), n, v, block=32)
    TypeError: fill: argument 0 (`float *x`) is a host numpy.ndarray; move it to the device first
f(cupy.cuda.alloc_pinned_memory(32), n, v, block=32)
    TypeError: PinnedMemoryPointer; pass a NumPy array on that memory: the one that pagelocked_empty
launch(plain, drv.pagelocked_empty(N, "f4").base, n, v, grid=1, block=32)
    TypeError: PagelockedHostAllocation; pass a NumPy array on that memory
f(np.array(None), n, v, block=32)
    TypeError: e.g. cupy.asarray(a), or pass it in a pycuda.driver.In, Out or InOut
f(cupy.zeros(N), n, v, block=32)
    TypeError: but the kernel takes float32: pass a.astype(numpy.float32), a copy, if the
f(changed(gpudata=None), n, v, block=32)
    ValueError: fill: argument 0 (`float *x`) has no memory
f(4096, n, v, block=32)
    TypeError: but the kernel takes a pointer; an array or a slice is accepted (a slice's gp
f(object(), n, v, block=32)
    TypeError: fill: argument 0 (`float *x`) is a object; a GPUArray, a cupy.ndarray
f(x, 8.0, v, block=32)
    TypeError: is 8.0, but the kernel takes int32 by value; pass an int; or the arguments are in
f(x, np.float32(5), v, block=32)
    TypeError: numpy.float32 5.0, but the kernel takes int32 by value; pass an int; or the arguments
f(x, n, "7", block=32)
    TypeError: is '7', but the kernel takes float32 by value; pass a number
f(a, x, v, block=32)
    TypeError: pass a.get().item(), for which the host waits, or make it a pointer parameter
f(x, 1 << 31, v, block=32)
    OverflowError: fill: argument 1 (`int n`) is 2147483648, which does not fit into int32
f(x, n, 1e300, block=32)
    OverflowError: fill: argument 2 (`float v`) is 1e+300, which does not fit into float32
f(np.int64(-1), n, v, block=32)
    ValueError: , which is no address
f(drv.In(x), n, v, block=32)
    TypeError: is a pycuda.driver.In with a cupy.ndarray; it copies a contiguous NumPy array
f(drv.Out(np.broadcast_to(np.float32(1), N).view()), n, v, block=32)
    TypeError: is a pycuda.driver.Out with a numpy.ndarray; it copies a contiguous NumPy array
f(drv.Out(read_only()), n, v, block=32)
    ValueError: fill: argument 0 (`float *x`) is copied back into a read-only array; give it in
f(drv.InOut(np.zeros(4, ">f4")), 4, 7, block=32)
    TypeError: is an array of >f4, but the kernel takes float32
gather([x, x], 0, block=32)
    TypeError: gather: argument 0 (`float **rows`) is a list; for pointers to pointers, pass an
gather(None, a, block=32)
    TypeError: parameter; for a cudaTextureObject_t, a cupy.cuda.texture.TextureObject is accepted
move(1, 5, 1, block=32)
    TypeError: pass a NumPy number of that size, or for a struct numpy.zeros((), module.dtype("NAME"
move(1, np.zeros(2, POINT), 1, block=32)
    TypeError: move: argument 1 (`point p`) is a numpy.ndarray, but the kernel takes 24 bytes by
move(1, np.zeros((), "u8")[()], 1, block=32)
    TypeError: of 8 bytes, but the kernel's parameter has 24
f(x, n, v)
    ValueError: fill: block is missing; give it by name, after any arguments of the kernel:
f(x, n, v, block=(32, 0, 1))
    ValueError: fill: block is (32, 0, 1); each extent is 1 or more
f(x, n, v, block=(N / 2, 1, 1))
    TypeError: fill: block is (4.0, 1, 1); an int or 1 to 3 of them (a tuple or list) are accepted
f(x, n, v, block=(1, 1, 1, 1))
    TypeError: fill: block is (1, 1, 1, 1); an int or 1 to 3 of them
f(x, n, v, block=(64, 64, 1))
    LogicError: fill: block (64, 64, 1) has 4096 threads; for this kernel, which uses
f(x, n, v, block=32, grid=(1, 1 << 20))
    LogicError: block is (32, 1, 1); this device allows up to (2147483647, 65535, 65535) and (1024
f(x, n, v, block=32, grid=(1 << 40, 1))
    LogicError: fill: grid is (1099511627776, 1, 1), block is (32, 1, 1); this device allows up to
f(x, n, v, block=32, shared=0.5)
    TypeError: fill: shared is 0.5; bytes, an int of 0 or more
f(x, n, v, block=32, shared=-1)
    ValueError: fill: shared is -1; bytes, an int of 0 or more
f(x, n, v, block=32, shared=1 << 20)
    LogicError: 1048576 bytes of dynamic shared memory are asked for, beside the kernel's own 0
f(x, n, v, block=32, grid=(-1, 1, 1))
    ValueError: fill: grid is (-1, 1, 1); each extent is 1 or more
f(x, n, v, block=32, stream=-1)
    TypeError: fill: stream is -1; None, a pycuda.driver.Stream, a cupy.cuda.Stream
f(x, n, v, block=32, texrefs=[object()])
    TypeError: fill: texrefs has a object; a list of references of a bridge.SourceModule is accepted
f(x, n, v, block=32, blocks=1)
    TypeError: fill: 'blocks' is no keyword of a launch; these are accepted: block, grid, shared

# Prepared calls.
f.prepare(3)
    TypeError: fill: arg_types is 3; a str of struct codes, e.g. 'PPi', or a sequence of struct
f.prepare("Pi")
    TypeError: fill: 2 types prepared for 3 parameters: fill(float *x, int n, float v)
f.prepare("Piz")
    TypeError: 'z' in 'Piz' is not a type code; struct codes are accepted: P for pointers
f.prepare("Pif", texrefs=[object()])
    TypeError: fill: texrefs has a object; a list of references of a bridge.SourceModule is accepted
f.prepare("Pif", (32, 1, 1))
    TypeError: fill: texrefs has 32; a list of references of a bridge.SourceModule is accepted
f.launch_grid(1, 1)
    AttributeError: 'Function' object has no attribute 'launch_grid'; call f(*args, grid=..., block
module.get_function("fill").prepared_call(1, 32, x, 8, 1.0)
    TypeError: fill: it is not prepared; call prepare(arg_types) before the prepared calls

# launch, wrap_pycuda and the rest.
launch("fill", x, grid=1, block=32)
    TypeError: a pycuda.driver.Function is accepted, e.g. from SourceModule(...).get_function(name)
launch(plain, x, n, v)
    ValueError: launch: block is missing; give it by name, after any arguments of the kernel:
launch(plain, x, 8, v, grid=1, block=32)
    TypeError: is the Python int 8, which has no width; pass numpy.int32(...)
launch(plain, x, n, np.longdouble(1), grid=1, block=32)
    TypeError: no type of CUDA C; bool, integers, float16/32/64 and complex64/128 are accepted
launch(plain, Exporter(x, mask=x), n, v, grid=1, block=32)
    BufferError: launch: argument 0: the argument's __cuda_array_interface__ has a mask
launch(plain, x, n, v, grid=1, block=32, stream=cupy.cuda.Stream.null)
    TypeError: launch on its own streams only: give a pycuda.driver.Stream, or none
wrap_pycuda(plain)
    TypeError: wrap_pycuda: func is a pycuda.driver.Function, whose arguments would not be checked
wrap_pycuda(x)
    TypeError: wrap_pycuda: func is a cupy.ndarray; a function is accepted, not its result, and not

# skcuda.
linalg.dot(a, a, "X")
    ValueError: skcuda.linalg: 'X' is not one of 'N', 'T' and 'C'
linalg.dot(a, of_dtype("f8"))
    TypeError: skcuda.linalg.dot: the dtypes are float32 and float64
misc.select_block_grid_sizes(drv.Device(0), N, 1 << 20)
    ValueError: threads per block: 1048576 are asked for, the device has 1024
misc.add_matvec(a, gpuarray.zeros((2, N), "f4"))
    ValueError: a vector of shape (2, 8) does not fit (8,)
"""
# On a GPU the driver may crash of such a handle, and does whatever it likes with too few arguments.
ON_THE_HOST = """
wait_stream(cupy.cuda.Stream(), answering((0, 0xDEAD0)))
    ValueError: stream 0xdead0 is unknown to CUDA; a stream of a device's primary context that has
as_cupy(Exporter(x, stream=0xDEAD0))
    ValueError: stream 0xdead0 is unknown to CUDA; a stream of a device's primary context
f(x, n, v, block=32, stream=answering((0, 0xDEAD0)))
    ValueError: stream 0xdead0 is unknown to CUDA; a stream of a device's primary context
launch(plain, x, n, grid=1, block=32)
    LogicError: compare number and widths of the arguments with the kernel's parameters
"""
ROWS = rows_of(TABLE if ON_GPU else TABLE + ON_THE_HOST)


@pytest.mark.parametrize(("call", "kind", "phrase"), ROWS, ids=[row[0] for row in ROWS])
def test_what_is_said(w, call, kind, phrase):
    names = {name: getattr(bridge, name) for name in bridge.__all__}
    names = {**globals(), **names, **vars(w)}
    with unchanged(w):
        found, text = error_of(lambda: eval(call, names))
    assert found is (KINDS.get(kind) or getattr(builtins, kind)), text
    assert phrase in text
    w.scratch.fill(0)
    w.f(w.scratch, w.n, w.v, block=32)
    assert (w.scratch.get() == 7).all()  # a call that is refused leaves nothing to the next


def test_every_row_is_read():
    calls = [line for line in TABLE.splitlines() if line and line[0] not in "# "]
    assert [row[0] for row in rows_of(TABLE)] == calls


# Messages without a row: the files that raise them, and the tests that have the text.
ELSEWHERE = {
    "autoinit.py": "contexts errors",
    "compiler/alignment.py": "alignment",
    "compiler": "program",
    "interop/array_functions.py": "arrays",
    "interop/contexts.pyx": "contexts devices package processes",
    "interop/conversions.pyx": "pipelines protocols",
    "interop/scopes.pyx": "contexts package processes",
    "interop/dlpack.pyx": "exchange",
    "interop/driver.pyx": "mutants",
    "interop/exporting.pyx": "exchange",
    "interop/cuda_status.py": "contexts package processes",
    "interop/importing.pyx": "devices exchange importing protocols release",
    "interop/ordering.pyx": "order_table pipelines",
    "interop/primary.py": "contexts",
    "interop/live_streams.pyx": "order_table unnamed_streams",
    "interop/bare_memory.py": "bare_memory",
    "interop/streams.pyx": "devices",
    "interop/wrapping.py": "pycuda_compiler wrapping",
    "kernels/arguments.py": "function pointers",
    "kernels/function.pyx": "graphs",
    "kernels/graph_nodes.pyx": "devices graphs",
    "kernels/launch_limits.py": "pipelines",
    "kernels/module.py": "pointers program",
    "kernels/packing.pyx": "packing",
    "kernels/parameters.py": "function",
    "legacy/check.py": "check",
    "legacy/cli.py": "run",
    "legacy/migrate/python2.py": "check migrate",
    "legacy/migrate": "migrate",
    "legacy/replacements.py": "run",
    "legacy/record.py": "check",
    "legacy/skcuda": "skcuda",
    "legacy/textures.py": "textures",
    "report.py": "package",
}
NOT_RAISED = {
    "has another": "packing.pyx, at the import: no CuPy that is tested has other attributes",
    "has another layout of": "packing.pyx, at the import: all of NumPy's scalars have this layout",
    "the code cannot be loaded": "module.py: on a GPU, with code for another; hostcuda loads any",
    "its copy would not be Python 3": "migrate/command.py: a guard; no edit is known to do it",
}


def text_of(name):
    """Return the texts in a test's file, without the backslashes of regular expressions."""
    (path,) = (ROOT / "tests").rglob(f"test_{name}.py")
    nodes = ast.walk(ast.parse(path.read_text()))
    found = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return "\n".join(str(text) for text in found).replace("\\", "")


def is_elsewhere(message, others):
    """Tell whether a test that is named has a piece of a message that no other message has."""
    for file, names in ELSEWHERE.items():
        if message.file.startswith(file):
            text = "\n".join(map(text_of, names.split()))
            rest = "\n".join(part for other in others for part in other.parts)
            return any(run in text for run in message.runs() if run not in rest)
    return False


def test_every_message_has_a_row(w):
    names = {**globals(), **{name: getattr(bridge, name) for name in bridge.__all__}, **vars(w)}
    said = [error_of(lambda call=row[0]: eval(call, names))[1] for row in ROWS]
    every, missing = messages(), []
    for one in every:
        others = [other for other in every if other.parts != one.parts]
        on_the_host = any(run in row[2] for run in one.runs() for row in rows_of(ON_THE_HOST))
        if not any(map(one.matches, said)) and not (on_the_host or is_elsewhere(one, others)):
            missing.append(f"{one.file}:{one.line}: {' ... '.join(one.parts)}")
    unknown = [one for one in missing if not any(part in one for part in NOT_RAISED)]
    assert not unknown, "no row for\n" + "\n".join(unknown)
    assert {part for part in NOT_RAISED if any(part in one for one in missing)} == {*NOT_RAISED}


RANGE = np.arange(N, dtype=np.float32)
CHANGES = {  # and how they are undone
    "CuPy's array": (lambda w: w.x.fill(3), lambda w: w.x.set(RANGE)),
    "PyCUDA's array": (lambda w: bridge.as_cupy(w.a).fill(3), lambda w: w.a.set(RANGE)),
    "the array in PyCUDA's pool": (
        lambda w: bridge.as_cupy(w.pooled).fill(3),
        lambda w: w.pooled.set(RANGE),
    ),
    "CuPy's pool": (lambda w: setattr(w, "new", cupy.zeros(9)), lambda w: delattr(w, "new")),
    "PyCUDA's pool": (lambda w: setattr(w, "new", w.pool.allocate(9)), lambda w: w.new.free()),
    "CuPy's stream": (
        lambda w: cupy.cuda.Stream(non_blocking=True).use(),
        lambda w: cupy.cuda.Stream.null.use(),
    ),
    "PyCUDA's context": (lambda w: drv.Device(0).make_context(), lambda w: drv.Context.pop()),
}


@pytest.mark.parametrize(("change", "undo"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(w, change, undo):
    with pytest.raises(AssertionError), unchanged(w):
        change(w)
    undo(w)


def test_what_is_said_of_autoinit_on_another_thread():
    done = run_python("""
        import pycuda.driver as drv
        from other_threads import on_a_thread

        def work():
            try:
                import bridge.autoinit
            except RuntimeError as error:
                print(type(error), error)

        on_a_thread(work)
        print(drv.Context.get_current())
    """)
    said = "ContextError'> bridge.autoinit was first imported on another thread than the main one"
    assert said in done.stdout, done.stderr
    assert done.stdout.endswith("\nNone\n")


@pytest.mark.parametrize("argument", ["--nonsense", "array.npy", "-c"])
def test_what_is_said_of_a_bad_option(w, capsys, argument):
    with unchanged(w):
        found, status = error_of(lambda: bridge.__main__.main([argument]))
    assert (found, status) == (SystemExit, "2")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(f"error: .*(unrecognized arguments|invalid choice): '?{argument}", err)
