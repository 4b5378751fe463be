"""What conversions and launches ask of CUDA: with several GPUs no more than with one.

`make bench` measures time, on a GPU.  Here the calls of the driver are counted, which do not depend
on the machine, if the driver is that of ``hostcuda``.
"""

import json
import sys

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from gpus import ON_GPU
from processes import run_python
from pycuda import gpuarray

import bridge
import bridge.autoinit

COUNT = """
import json
import bridge, bridge.autoinit, cupy, hostcuda, numpy as np, pycuda.driver as drv
from pycuda import gpuarray
from exporters import Exporter

a, x = gpuarray.zeros(1000, np.float32), cupy.zeros(1000, np.float32)
strided, part = a[::2], a[2:]
of_pycuda, of_cupy = bridge.as_pycuda(x), bridge.as_cupy(a)
stream, other = drv.Stream(), cupy.cuda.Stream.ptds
exporter = Exporter(x, strides=None, stream=other.ptr)
source = "__global__ void fill(float *x, float v, int n) { if (n) x[threadIdx.x] = v; }"
fill = bridge.SourceModule(source).get_function("fill").prepare("Pfi")
image, _ = cupy.cuda.compiler.compile_using_nvrtc(f'extern "C" {source}')
plain = drv.module_from_buffer(image).get_function("fill")
sizes = {"grid": (8, 1, 1), "block": (128, 1, 1)}
allocate = bridge.pycuda_allocator()
wrapped = bridge.wrap_pycuda(lambda one, other: other)
PATHS = {name: eval("lambda: " + path) for name, path in CALLS.items()}
PATHS["the control"] = lambda: cupy.cuda.runtime.getDeviceCount() > 1 and other.done

def count(path):
    path()
    before = hostcuda.calls()
    path()
    return hostcuda.calls() - before

print(json.dumps({name: count(path) for name, path in PATHS.items()}))
"""

PATHS = {
    "as_cupy(a)": "bridge.as_cupy(a)",
    "as_cupy(a[::2])": "bridge.as_cupy(strided)",
    "as_cupy(a[2:])": "bridge.as_cupy(part)",
    "as_pycuda(x)": "bridge.as_pycuda(x)",
    "as_cupy(as_pycuda(x))": "bridge.as_cupy(of_pycuda)",
    "as_pycuda(as_cupy(a))": "bridge.as_pycuda(of_cupy)",
    "as_cupy(a, stream=s)": "bridge.as_cupy(a, stream=stream)",
    "as_pycuda(x, stream=s)": "bridge.as_pycuda(x, stream=stream)",
    "as_cupy(exporter)": "bridge.as_cupy(exporter)",
    "f(x)": "fill(x, 2, 1000, **sizes)",
    "f(a)": "fill(of_pycuda, 2, 1000, **sizes)",
    "f(a.gpudata)": "fill(a.gpudata, 2, 1000, **sizes)",
    "prepared_call": "fill.prepared_call(*sizes.values(), a.gpudata, 2.0, 1000)",
    "launch(f, x)": "bridge.launch(plain, x, np.float32(2), np.int32(1000), **sizes)",
    "wrapped(x, x)": "wrapped(x, x)",
    "pycuda_allocator()(n)": "allocate(4000)",
}


@pytest.fixture(scope="module")
def counted():
    """The calls of each path, with one device and with two."""
    if ON_GPU:
        pytest.skip("the driver does not count")
    done = [run_python(f"CALLS = {PATHS!r}\n{COUNT}", devices=devices) for devices in (1, 2)]
    assert [end.stderr for end in done] == ["", ""]
    return [json.loads(end.stdout) for end in done]


@pytest.mark.parametrize("path", PATHS)
def test_several_gpus_cost_no_more_calls_than_one(path, counted):
    one, two = counted
    assert two[path] == one[path]


def test_one_call_more_is_noticed(counted):
    """The control: a path that asks only where there are several."""
    one, two = counted
    assert two["the control"] > one["the control"]


@pytest.mark.parametrize("path", ["as_cupy(a)", "as_cupy(a[::2])", "as_pycuda(x)"])
def test_a_plain_conversion_asks_cuda_at_most_once(path, counted):
    assert counted[0][path] <= 1


SIZES = {"ints": {"block": 8, "grid": 2}, "tuples": {"block": (8, 1, 1), "grid": (2, 1, 1)}}
FORMS = {
    "ints": lambda f, x, s: f(x, 2.0, 8, block=8, grid=2),
    "NumPy's numbers": lambda f, x, s: f(x, np.float32(2), np.int32(8), block=8, grid=2),
    "tuples": lambda f, x, s: f(x, 2.0, 8, block=(8, 1, 1), grid=(2, 1, 1)),
    "shorter tuples": lambda f, x, s: f(x, 2.0, 8, block=(8,), grid=(2, 1)),
    "lists": lambda f, x, s: f(x, 2.0, 8, block=[8, 1, 1], grid=[2]),
    "NumPy's ints": lambda f, x, s: f(x, 2.0, 8, block=np.int64(8), grid=(np.uint8(2), 1)),
    "without a grid": lambda f, x, s: f(x, 2.0, 8, block=8),
    "with a stream": lambda f, x, s: f(x, 2.0, 8, block=8, grid=2, stream=s),
    "ints in a dict": lambda f, x, s: f(x, 2.0, 8, **SIZES["ints"]),
    "tuples in a dict": lambda f, x, s: f(x, 2.0, 8, **SIZES["tuples"]),
}


def frames(action, *arguments):
    """Return the Python functions that run while one is called, beside it."""
    action(*arguments)
    found = []
    sys.setprofile(lambda frame, event, _: event == "call" and found.append(frame.f_code.co_name))
    try:
        action(*arguments)
    finally:
        sys.setprofile(None)
    return found[1:]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", [cupy.zeros, gpuarray.zeros], ids=["CuPy's", "a GPUArray"])
def test_each_form_of_a_launch_runs_in_no_python_frame(form, memory):
    source = "__global__ void fill(float *x, float v, int n) { if (n) x[threadIdx.x] = v; }"
    fill = bridge.SourceModule(source).get_function("fill")
    x, stream = memory(8, "f4"), drv.Stream()
    assert frames(FORMS[form], fill, x, stream) == []
    assert (x.get() == 2).all()
    assert frames(lambda: fill(x, 2.0, 8, block=8, shared=np.int32(0)))  # the control
