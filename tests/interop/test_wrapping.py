"""wrap_pycuda: legacy functions and PyCUDA's kernels, called with CuPy arrays."""

import collections
import contextlib

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from other_threads import on_a_thread
from pycuda import gpuarray
from pycuda.elementwise import ElementwiseKernel, ScalarArg, VectorArg
from pycuda.reduction import ReductionKernel
from pycuda.scan import InclusiveScanKernel

import bridge
import bridge.autoinit

pytestmark = pytest.mark.usefixtures("nvcc")  # PyCUDA compiles all of this
HOST = np.arange(1, 9, dtype=np.float32)


@bridge.wrap_pycuda
def scale_and_add(a, b, factor=1.0):
    """As legacy code does."""
    assert type(a) is type(b) is gpuarray.GPUArray
    return a * np.float32(factor) + b


def test_a_function_of_gpuarrays_takes_and_returns_cupy_arrays():
    x = cupy.asarray(HOST)
    y = scale_and_add(x, x, factor=3)
    assert type(y) is cupy.ndarray
    assert np.array_equal(y.get(), 4 * HOST)
    assert np.array_equal(x.get(), HOST)
    assert scale_and_add.__name__ == "scale_and_add"
    assert scale_and_add.__doc__ == "As legacy code does."


Pair = collections.namedtuple("Pair", "first second")
CONTAINERS = {
    "tuple": lambda a, b: (a, b, 1),
    "list": lambda a, b: [a, b, "text"],
    "dict": lambda a, b: {"a": a, "b": b, "c": None},
    "named tuple": Pair,
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_arrays_in_containers_are_converted(make):
    x, y = cupy.asarray(HOST), cupy.asarray(2 * HOST)
    given, kinds = make(x, y), []

    @bridge.wrap_pycuda
    def function(value, *, keyword):
        for found in (value, keyword):
            items = found.values() if isinstance(found, dict) else found
            kinds.extend(type(item) for item in items)
        return value

    back = function(given, keyword=given)
    assert kinds.count(gpuarray.GPUArray) == 4
    assert cupy.ndarray not in kinds
    assert type(back) is type(given)
    for get in (list, dict.values) if isinstance(given, dict) else (list,):
        assert all(one is other for one, other in zip(get(back), get(given), strict=True))
    plain = [1, [2]]
    assert bridge.wrap_pycuda(lambda value: value)(plain) is plain


class Point(tuple):
    def __new__(cls, x, y):
        return super().__new__(cls, (x, y))


def test_other_containers_are_passed_unchanged():
    x = cupy.zeros(1)
    for value in Point(x, x), collections.OrderedDict(a=x), collections.defaultdict(list, a=x):
        assert bridge.wrap_pycuda(lambda value: value)(value) is value


F = np.float32
DTYPES = {  # a kernel object, its arguments, the result, and how the message names the wrong one
    "elementwise": (
        lambda: ElementwiseKernel("float *z, const float *x, float a", "z[i] = a * x[i]"),
        lambda z, x: (z, x, 2),
        2 * HOST,
        r"kernel: argument 1 \(`float \*x`\)",
    ),
    "elementwise, declared as objects": (
        lambda: ElementwiseKernel([VectorArg(F, "x"), ScalarArg(F, "a")], "x[i] *= a", "scale"),
        lambda z, x: (x, 2),
        2 * HOST,
        r"scale: argument 0 \(`float \*x`\)",
    ),
    "scan": (
        lambda: InclusiveScanKernel(F, "a+b"),
        lambda z, x: (x, z),
        HOST.cumsum(),
        "InclusiveScanKernel: argument 0",
    ),
    "reduction": (
        lambda: ReductionKernel(
            F, "0", "a+b", "x[i]*z[i]", "const float *x, const float *z", "dot"
        ),
        lambda z, x: (z, x),
        HOST.sum(),
        r"dot: argument 1 \(`float \*z`\)",
    ),
    "reduction with keywords": (
        lambda: ReductionKernel(F, neutral="0", reduce_expr="a+b", arguments="float *in"),
        lambda z, x: (x,),
        HOST.sum(),
        r"reduce_kernel: argument 0 \(`float \*in`\)",
    ),
}


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, bridge.wrap_pycuda], ids=["", "wrapped"])
@pytest.mark.parametrize(("make", "arguments", "result", "where"), DTYPES.values(), ids=DTYPES)
def test_kernel_objects_take_arrays_of_their_dtype_only(make, arguments, result, where, wrap):
    """After autoinit, they need no wrapping."""
    plain = make()
    kernel = wrap(plain)
    z, x = cupy.ones(8, np.float32), cupy.asarray(HOST)
    for _ in range(2):  # the first call compiles
        found = kernel(*arguments(z, x))
        found = arguments(z, x)[0] if found is None else found
        assert type(found) is cupy.ndarray
        assert np.array_equal(found.get(), result)
        z.fill(1)
        x.set(HOST)
    if kernel is plain:
        where = f"{type(kernel).__name__}: {where.removeprefix('InclusiveScanKernel: ')}"
    else:
        where = f"wrap_pycuda: {where}"
    match = f"{where} is an array of float64, but the kernel takes float32: pass"
    for wrong in x.astype(np.float64), gpuarray.to_gpu(HOST.astype(np.float64)):
        with pytest.raises(TypeError, match=match):
            kernel(*arguments(z, wrong))
    assert set(z.get()) == {1}
    of_pycuda = plain(*arguments(gpuarray.to_gpu(np.ones(8, "f4")), gpuarray.to_gpu(HOST)))
    assert not isinstance(of_pycuda, cupy.ndarray)
    bridge.wrap_pycuda(plain)(*arguments(z, x))  # after calls, too


def test_a_kernel_object_is_ordered_with_cupys_stream(latch, put):
    add = ElementwiseKernel("int *x", "x[i] += 1", "add")
    x = cupy.zeros(1000, np.int32)
    x.fill(1)  # its kernel and the other one are loaded, for which CUDA may wait
    add(x)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        held = bridge.as_pycuda(x)
        with latch.hold(stream):
            x.fill(7)
            add(x)
        stream.synchronize()
    assert set(held.get()) == {8}


def test_arguments_that_a_kernel_object_would_misread_are_refused():
    x, z = cupy.zeros((2, 3), np.float32), cupy.zeros((3, 2), np.float32).T
    copy = bridge.wrap_pycuda(ElementwiseKernel("float *z, float *x", "z[i] = x[i] + 1"))
    scale = bridge.wrap_pycuda(ElementwiseKernel("float *x, float a", "x[i] *= a"))
    scan = bridge.wrap_pycuda(InclusiveScanKernel(F, "a+b"))
    first, second = r"argument 0 \(`float \*z`\)", r"argument 1 \(`float \*x`\)"
    for call, message in (
        (lambda: copy(z, x), f"{first} is in Fortran order, and others are in C order"),
        (lambda: copy(z), f"kernel: 1 arguments for 2 parameters: {first}, argument 1"),
        (lambda: copy(z, z.astype("c8")), "complex64, but the kernel takes float32, one for each"),
        (lambda: copy(z, HOST), f"{second} is a numpy.ndarray; the kernel takes an array of"),
        (lambda: copy(None, z), f"{first} is None; the kernel takes an array of float32"),
        (lambda: scale(x, x.max()), "is a cupy.ndarray; the kernel takes a number"),
        (lambda: scan(x, output_ary=x.astype("f8")), "argument output_ary is an array of float64"),
        (lambda: scan(x[0], x[:, 0]), "argument 1 is not contiguous; the kernel would pair"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    assert not z.get().any()
    copy(z, z)
    assert z.get().all()


def test_a_kernel_object_that_has_been_called_rightly_refuses_a_wrong_call():
    copy = ElementwiseKernel("float *z, float *x, float a", "z[i] = a * x[i]", "copy")
    z, x = gpuarray.zeros((2, 3), F), gpuarray.to_gpu(np.ones((2, 3), F))
    calls = [(z, x.astype("d"), 2), (gpuarray.zeros((3, 2), F).T, x, 2), (z, x, cupy.zeros(()))]
    for wrong in *calls, (z, x, x), (z, 2, 2), (z, x):
        copy(z, x, 3)
        with pytest.raises((TypeError, ValueError), match="^ElementwiseKernel: copy: "):
            copy(*wrong)
    assert (z.get() == 3).all()


# Kernel objects, and the sizes of their arguments: of 5 or 3 elements.
SHORT = {
    "as long": ("z[i] = x[i]", (5, 5), ""),
    "longer": ("z[i] = x[i]", (3, 5), ""),
    "shorter": ("z[i] = x[i] + 1", (5, 3), r"argument 1 \(`float \*x`\) has 3 elements, but the"),
    "shorter, of spaces": ("z[i] = x [ i ]", (5, 3), "kernel runs over 5, those of its first arr"),
    "a table": ("z[i] = x[i % 3]", (5, 3), ""),
    "a condition": ("if (i < 3) z[i] = x[i]", (5, 3), ""),
    "another condition": ("z[i] = i < 3 ? x[i] : 0", (5, 3), ""),
}


@pytest.mark.parametrize(("code", "sizes", "said"), SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("zeros", [cupy.zeros, gpuarray.zeros])
def test_a_kernel_object_does_not_read_behind_an_array(zeros, code, sizes, said):
    kernel = ElementwiseKernel("float *z, float *x", code)
    arrays = [zeros(size, F) for size in sizes]
    raised = pytest.raises(ValueError, match=said) if said else contextlib.nullcontext()
    for _ in range(2):  # the second call has the first one's dtypes
        kernel(arrays[0], arrays[0])
        with raised:
            kernel(*arrays)


def test_a_range_of_a_kernel_object_may_be_shorter():
    z, x = cupy.zeros(5, F), cupy.ones(3, F)
    ElementwiseKernel("float *z, float *x", "z[i] = x[i]")(z, x, range=slice(0, 3, 1))
    assert z.tolist() == [1, 1, 1, 0, 0]


def test_a_reduction_does_not_read_behind_an_array():
    dot = ReductionKernel(F, "0", "a+b", "x[i] * y[i]", "float *x, float *y")
    one, other = cupy.ones(5, F), cupy.ones(3, F)
    assert dot(other, one).get() == 3
    said = r"argument 1 \(`float \*y`\) has 3 elements, but the kern"
    with pytest.raises(ValueError, match=said):
        dot(one, other)


def copy(a, b, stream):
    drv.memcpy_dtod_async(b.gpudata, a.gpudata, a.nbytes, stream)


@pytest.mark.parametrize("where", ["null", "non-blocking"])
@pytest.mark.parametrize("held", ["CuPy's", "PyCUDA's"])
def test_a_stream_that_is_passed_is_part_of_the_call(held, where, latch):
    here = cupy.cuda.Stream.null if where == "null" else cupy.cuda.Stream(non_blocking=True)
    stream = drv.Stream(1)
    x, ones, y, copied = (cupy.full(8, value, np.float32) for value in (0, 1, 0, 0))
    with latch.hold(here if held == "CuPy's" else stream), here:
        x.data.copy_from_device_async(ones.data, x.nbytes, here)
        bridge.wrap_pycuda(copy)(x, y, stream=stream)
        copied.data.copy_from_device_async(y.data, y.nbytes, here)
    assert (copied.get() == 1).all()


def test_a_thread_that_has_popped_its_context_works():
    """What an earlier call found out about the thread is not trusted."""

    def work():
        with bridge.primary_context():
            context = drv.Context.get_current()
        context.push()
        bridge.as_pycuda(cupy.zeros(3))
        drv.Context.pop()
        cupy.cuda.Device(0).use()
        return bridge.wrap_pycuda(lambda a: a.copy())(cupy.ones(3)).get().tolist()

    assert on_a_thread(work) == [1, 1, 1]


def test_a_thread_without_a_context_works():

    def work():
        x = cupy.asarray(HOST)
        y = scale_and_add(x, x)
        return y.get(), drv.Context.get_current(), int(y.data.ptr)

    result, context, pointer = on_a_thread(work)
    assert np.array_equal(result, 2 * HOST)
    assert context is None
    assert cupy.cuda.runtime.pointerGetAttributes(pointer).type == 0  # it was freed


@pytest.mark.parametrize("mode", ["argument", "a reference is kept", "a closure", "PyCUDA's own"])
def test_what_a_function_writes_in_place_is_ordered(put, latch, mode):
    """Before what CuPy's stream does next, whatever becomes of the arrays."""
    stream = cupy.cuda.Stream(non_blocking=True)
    x, copied = cupy.zeros(8, np.int32), cupy.zeros(8, np.int32)
    if mode == "PyCUDA's own":
        a = gpuarray.to_gpu(np.zeros(8, np.int32))
        x = bridge.as_cupy(a)
    kept = []  # beyond the call
    in_closure = bridge.as_pycuda(x, stream=-1) if mode == "a closure" else None

    @bridge.wrap_pycuda
    def wrapped(a):
        if mode == "a reference is kept":
            kept.append(a)
        put((a if in_closure is None else in_closure).gpudata, 8, 7)

    wrapped(cupy.zeros(8, np.int32))  # loaded before a latch holds it up
    with latch.hold(None), stream:
        wrapped(x)
        copied.data.copy_from_device_async(x.data, x.nbytes, stream)
    assert (copied.get() == 7).all()


def test_what_a_function_reads_is_ordered(latch):
    """After what CuPy's stream has queued, also through an array that is no argument."""
    stream = cupy.cuda.Stream(non_blocking=True)
    x, sevens, copied = (cupy.full(8, value, np.int32) for value in (0, 7, 0))
    a, b = bridge.as_pycuda(x), bridge.as_pycuda(copied)
    copy = bridge.wrap_pycuda(lambda: drv.memcpy_dtod(b.gpudata, a.gpudata, a.nbytes))
    with latch.hold(stream), stream:
        x.data.copy_from_device_async(sevens.data, x.nbytes, stream)
        copy()
    assert (copied.get() == 7).all()
