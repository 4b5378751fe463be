"""PyCUDA's functions of arrays compute with any layout, and with arrays of both libraries."""

import os
import subprocess
import sys

import cupy
import numpy as np
import pytest
from gpus import ON_GPU
from processes import surroundings
from pycuda import cumath, gpuarray

import bridge

HOST = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
NIGHTLY = os.environ.get("BRIDGE_NIGHTLY") == "1"  # all 60,000 calls, for ten minutes


def judge(*options):
    driver = [] if ON_GPU else ["-m", "hostcuda", "--check"]
    command = [sys.executable, *driver, "tests/support/array_calls.py", *options]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **surroundings()
    )


def test_calls_are_right_or_refused():
    done = judge(*([] if NIGHTLY else ["--sample", "400"]))
    assert done.returncode == 0, done.stdout


def test_pycudas_own_functions_are_wrong():
    """The control: without the patches, the same calls have other results."""
    done = judge("--sample", "400", "--without")
    assert done.returncode == 1
    assert "WRONG" in done.stdout


def arrays():
    return gpuarray.to_gpu(HOST), gpuarray.to_gpu(np.asfortranarray(HOST)), cupy.asarray(HOST)


@pytest.fixture(autouse=True)
def nvrtc():
    bridge.use_nvrtc()
    yield
    bridge.use_nvrtc(False)


def test_the_result_has_the_layout_of_the_first_array():
    c, fortran, _ = arrays()
    for result, flags in (
        (c + fortran, "c_contiguous"),
        (fortran + c, "f_contiguous"),
        (fortran.astype(np.float64), "f_contiguous"),
        (c[:, ::-1] * 2, "c_contiguous"),
    ):
        assert getattr(result.flags, flags)


def test_an_array_is_written_where_it_is():
    _, fortran, x = arrays()
    part = bridge.as_pycuda(x[:, ::2])
    part += bridge.as_pycuda(x[:, 1:].copy())
    assert x.get().tolist() == [[3, 2, 6], [9, 5, 12]]
    assert gpuarray.maximum(fortran[:, :2], 5, out=part) is part
    assert x[:, ::2].get().tolist() == [[5, 5], [5, 5]]


@pytest.mark.parametrize("as_source", [lambda part: part, bridge.as_cupy])
@pytest.mark.parametrize(
    ("target", "source"),
    [
        ((...,), (slice(None), slice(None, None, -1))),
        ((slice(1, None),), (slice(None, -1),)),
        ((slice(None), 0), (0,)),
    ],
)
def test_an_array_may_be_assigned_to_itself(target, source, as_source):
    host = np.arange(9, dtype=np.float32).reshape(3, 3)
    a = gpuarray.to_gpu(host)
    a[target] = as_source(a[source])
    host[target] = host[source].copy()
    assert np.array_equal(a.get(), host)


def test_copies_have_steps_along_three_axes():
    host = np.arange(64, dtype=np.float32).reshape(4, 4, 4)
    a = gpuarray.to_gpu(host)
    part = a[::2, ::2, ::2]
    assert np.array_equal(part.get(), host[::2, ::2, ::2])
    part.set(host[1::2, 1::2, 1::2].copy())
    assert np.array_equal(a.get()[::2, ::2, ::2], host[1::2, 1::2, 1::2])
    assert np.array_equal(a[:, :, 1].view("i4").get(), host[:, :, 1].view("i4"))


def test_with_a_cupy_array_the_result_is_one():
    c, _, x = arrays()
    for result, expected in (
        (cumath.sqrt(x), np.sqrt(HOST)),
        (gpuarray.maximum(c, x.T.copy().T), HOST),
        (gpuarray.concatenate((c, x)), np.concatenate((HOST, HOST))),
        (gpuarray.take(x, cupy.array([4], np.uint32)), HOST.ravel()[[4]]),
        (c.mul_add(2, x, 1), 3 * HOST),
    ):
        assert type(result) is cupy.ndarray
        assert np.allclose(result.get(), expected)
    assert type(gpuarray.to_gpu(x)) is gpuarray.GPUArray  # the name says so
    c.set(x * 2)
    assert np.array_equal(c.get(), 2 * HOST)


def test_matrices_are_multiplied(package):
    package("cupy_backends.cuda.libs.cublas")
    c, _, x = arrays()
    products = (c @ c.T, gpuarray.GPUArray), (c @ x.T, cupy.ndarray), (x @ c.T, cupy.ndarray)
    for result, kind in products:
        assert type(result) is kind
        assert np.allclose(result.get(), HOST @ HOST.T)


def test_results_keep_the_class_and_the_allocator():
    class Special(gpuarray.GPUArray):
        pass

    allocator = bridge.pycuda_allocator()
    special = Special((3, 2), np.float32, allocator)
    bridge.as_cupy(special)[...] = cupy.asarray(HOST.T)
    other = gpuarray.to_gpu(np.asfortranarray(HOST.T))
    for result in special + other, cumath.exp(Special((4, 3), np.float32, allocator).fill(1)[::2]):
        assert result.allocator is allocator
    assert type(special + other) is Special


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, x: gpuarray.maximum(a, a[0, :2].copy()), "have the shapes (2, 3), (2,); pass"),
        (lambda a, x: gpuarray.dot(a, a[0].copy()), "dot: the arrays have the shapes"),
        (lambda a, x: cumath.fmod(a.astype(np.float64), a), "PyCUDA reads arrays as float32; pass"),
        (lambda a, x: gpuarray.subset_sum(a, a[:, ::2]), "an array is not in C order; pass"),
        (lambda a, x: a[:, ::2].view(np.int16), "items are not side by side; pass"),
        (lambda a, x: a.transpose((0, 0)), "axes are (0, 0); name each axis once"),
        (
            lambda a, x: a[:, ::-1].set_async(np.ones((2, 6), np.float32)[:, ::2]),
            "GPUArray: pass a contiguous host array to an asynchronous copy",
        ),
        (
            lambda a, x: cumath.exp(a, stream=cupy.cuda.Stream()),
            "PyCUDA does not take a cupy.cuda.stream.Stream here; make the stream by",
        ),
        (lambda a, x: a.__setitem__(0, [1, 2, 3]), "src must be GPUArray or ndarray"),
        (lambda a, x: a[True], "masks, arrays and lists are no indices; index bridge.as_cupy(a)"),
        (lambda a, x: a[a > 1], "masks, arrays and lists are no indices; index bridge.as_cupy(a)"),
        (lambda a, x: a[x > 1], "masks, arrays and lists are no indices; index bridge.as_cupy(a)"),
        (lambda a, x: a[[0, 1]], "masks, arrays and lists are no indices; index bridge.as_cupy(a)"),
        (lambda a, x: np.asarray(a), "NumPy takes no GPUArray; pass a.get()"),
        (lambda a, x: a + HOST, "an operator of PyCUDA takes another GPUArray, e.g. pycuda.gpuarr"),
        (lambda a, x: np.testing.assert_allclose(a, HOST), "NumPy takes no GPUArray; pass a.get()"),
        (lambda a, x: cupy.sum(a), "no attribute 'sum'; use bridge.as_cupy(a)"),
        (lambda a, x: cupy.pad(a, 1), "use bridge.as_cupy(a)"),
        (lambda a, x: cupy.copyto(x, a), "no attribute 'data'; use bridge.as_cupy(a)"),
        (
            lambda a, x: a.__setitem__(..., gpuarray.zeros((3, 2), np.float64).T),
            "src and dst must have same dtype",
        ),
        (lambda a, x: a.set(cupy.ones((2, 2))), "ary and self must be the same size"),
    ],
)
def test_what_is_refused_says_what_to_write(call, message):
    a, _, x = arrays()
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call(a, x)
    assert message in str(raised.value)


def test_a_property_of_a_subclass_raises_its_own_error():
    class Image(gpuarray.GPUArray):
        @property
        def width(self):
            return self.columns

    with pytest.raises(AttributeError, match="no attribute 'columns'; use bridge.as_cupy"):
        _ = Image(3, np.float32).width


def test_an_element_becomes_a_number_of_python():
    a = arrays()[0]
    assert float(a[1, 2]) == 6
    assert not hasattr(a, "sum")
