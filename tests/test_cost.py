"""What the hot paths do, counted: a guard that does not depend on the machine.

`make bench` measures time, on a GPU.  Here the instructions of Python's interpreter are counted,
the calls among them, and what is asked of the driver, if that is the one of ``hostcuda``.  One more
of the latter two is noticed.  A path that does more than it did fails, and so does one that does
much less: then the figure here is to be lowered, so that what was won is kept.
"""

from __future__ import annotations

import dis
import functools
import gc
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cupy
import hostcuda
import numpy as np
import pycuda.driver as drv
import pytest
from conftest import ON_GPU
from pycuda import gpuarray
from test_interface import Exporter

import bridge
from bridge import context

cuda_calls = (lambda: 0) if ON_GPU else hostcuda.calls
PACKAGE = (bridge.__path__[0], "<bridge")  # the latter is what it generates
MARGIN = 1.12  # Pythons differ in how they cut the same source into instructions
SOURCE = """
__global__ void axpy(float *z, const float *x, const float *y, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = a * x[i] + y[i];
}
"""


class Cost(NamedTuple):
    """Instructions of the package, the calls among them, and calls of CUDA."""

    instructions: int
    calls: int
    cuda: float = math.inf


def cost(action: Callable[[], Any]) -> Cost:
    """Count what the package does in `action`."""
    counts = [0, 0, -cuda_calls()]

    def instruction(code: Any, offset: int) -> None:
        if code.co_filename.startswith(PACKAGE):
            counts[0] += 1
            counts[1] += dis.opname[plain(code)[offset]] in CALLS

    def trace(frame: Any, event: str, _: Any) -> Any:  # Python before 3.12
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            instruction(frame.f_code, frame.f_lasti)
        return trace

    gc.collect()
    gc.disable()  # the package watches the collector
    try:
        if sys.version_info < (3, 12):
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                action()
            finally:
                sys.settrace(before)
        else:
            monitor(instruction, action)
    finally:
        gc.enable()
    counts[2] += cuda_calls()
    return Cost(*counts)


# A type that is called, or a function of C++, is none to `sys.setprofile`.
CALLS = frozenset(
    {"CALL", "CALL_FUNCTION", "CALL_FUNCTION_EX", "CALL_FUNCTION_KW", "CALL_KW", "CALL_METHOD"}
)
plain = functools.cache(operator.attrgetter("co_code"))  # as compiled, not as specialized


def monitor(instruction: Callable[[Any, int], None], action: Callable[[], Any]) -> None:
    tool, event = sys.monitoring.PROFILER_ID, sys.monitoring.events.INSTRUCTION
    sys.monitoring.use_tool_id(tool, "cost")
    try:
        sys.monitoring.register_callback(tool, event, instruction)
        sys.monitoring.set_events(tool, event)
        action()
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)


@pytest.fixture(scope="module", params=["one GPU", "several GPUs"])
def gpus(request: pytest.FixtureRequest) -> Iterator[str]:
    """How many the package takes to be there: where there are several, it looks pointers up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "check_devices", request.param != "one GPU")
        yield request.param


@pytest.fixture(scope="module")
def paths(gpus: str) -> dict[str, Callable[[], Any]]:
    """Each hot path, run before."""
    found = hot_paths()
    for path in found.values():
        path()
    return found


def hot_paths() -> dict[str, Callable[[], Any]]:
    a = gpuarray.zeros(1000, np.float32)
    strided = gpuarray.zeros(1000, np.float32)[::2]
    part = a[2:]
    x, y, z = (cupy.zeros(1000, np.float32) for _ in range(3))
    of_pycuda = bridge.as_pycuda(x)
    of_cupy = bridge.as_cupy(a)
    stream, other = drv.Stream(), cupy.cuda.Stream(non_blocking=True)
    exporter = Exporter(x, strides=None, stream=other.ptr)
    exporter.keeps = other
    axpy = bridge.SourceModule(SOURCE).get_function("axpy")
    axpy.prepare("PPPfi")
    launch = (8, 1, 1), (128, 1, 1)
    sizes = dict(zip(("grid", "block"), launch, strict=True))
    factor, n = np.float32(2), np.int32(1000)
    pointers = [array.data.ptr for array in (z, x, y)]
    image, _ = cupy.cuda.compiler.compile_using_nvrtc(f'extern "C" {SOURCE}')
    module = drv.module_from_buffer(image)  # PyCUDA's: what a library has compiled
    of_library = module.get_function("axpy")
    allocate = bridge.pycuda_allocator()
    second = bridge.wrap_pycuda(lambda one, other: other)
    return {
        "as_cupy(a)": lambda: bridge.as_cupy(a),
        "as_cupy(a[::2])": lambda: bridge.as_cupy(strided),
        "as_cupy(a), the first time": lambda: (
            a.__dict__.pop("_bridge_known", None),
            bridge.as_cupy(a),
        ),
        "as_cupy(a[2:]), the first time": lambda: (
            a.__dict__.pop("_bridge_keeper", None),
            part.__dict__.pop("_bridge_known", None),
            bridge.as_cupy(part),
        ),
        "as_pycuda(x)": lambda: bridge.as_pycuda(x),
        "as_cupy(as_pycuda(x))": lambda: bridge.as_cupy(of_pycuda),
        "as_pycuda(as_cupy(a))": lambda: bridge.as_pycuda(of_cupy),
        "as_cupy(a, stream=s)": lambda: bridge.as_cupy(a, stream=stream),
        "as_pycuda(x, stream=s)": lambda: bridge.as_pycuda(x, stream=stream),
        "as_cupy(exporter)": lambda: bridge.as_cupy(exporter),
        "f(cupy arrays)": lambda: axpy(z, x, y, factor, n, **sizes),
        "f(GPUArrays)": lambda: axpy(of_pycuda, of_pycuda, of_pycuda, factor, n, **sizes),
        "f(allocations)": lambda: axpy(a.gpudata, a.gpudata, a.gpudata, factor, n, **sizes),
        "prepared_call": lambda: axpy.prepared_call(*launch, *pointers, 2.0, 1000),
        "prepared_call(allocations)": lambda: axpy.prepared_call(
            *launch, a.gpudata, a.gpudata, a.gpudata, 2.0, 1000
        ),
        "prepared_call(GPUArrays)": lambda: axpy.prepared_call(*launch, a, a, a, 2.0, 1000),
        "prepared_async_call(allocations)": lambda: axpy.prepared_async_call(
            *launch, stream, a.gpudata, a.gpudata, a.gpudata, 2.0, 1000
        ),
        "prepared_call(None), the long way": lambda: axpy.prepared_call(
            *launch, a, a, None, 2.0, 0
        ),
        "launch(cupy arrays)": lambda: bridge.launch(of_library, z, x, y, factor, n, **sizes),
        "launch(cupy arrays, stream=s)": lambda: bridge.launch(
            of_library, z, x, y, factor, n, **sizes, stream=stream
        ),
        "wrapped(x, y)": lambda: second(x, y),
        "pycuda_allocator()(n)": lambda: allocate(4000),
    }


# With Python 3.11 and CuPy 14, on one GPU.
LIMITS = {
    "as_cupy(a)": Cost(111, 8, 0),
    "as_cupy(a[::2])": Cost(111, 8, 0),
    "as_cupy(a), the first time": Cost(293, 21, 0),
    "as_cupy(a[2:]), the first time": Cost(424, 37, 0),
    "as_pycuda(x)": Cost(129, 9, 0),
    "as_cupy(as_pycuda(x))": Cost(166, 12, 0),
    "as_pycuda(as_cupy(a))": Cost(194, 13, 0),
    "as_cupy(a, stream=s)": Cost(332, 34, 11),
    "as_pycuda(x, stream=s)": Cost(553, 57, 12),
    "as_cupy(exporter)": Cost(448, 46, 14),
    "f(cupy arrays)": Cost(201, 11, 1),
    "f(GPUArrays)": Cost(276, 19, 1),
    "f(allocations)": Cost(249, 22, 1),
    "prepared_call": Cost(158, 12, 1),
    "prepared_call(allocations)": Cost(292, 29, 1),
    "prepared_call(GPUArrays)": Cost(319, 26, 1),
    "prepared_async_call(allocations)": Cost(646, 63, 12),
    "prepared_call(None), the long way": Cost(1599, 151, 3),
    "launch(cupy arrays)": Cost(530, 42, 2),
    "launch(cupy arrays, stream=s)": Cost(759, 64, 12),
    "wrapped(x, y)": Cost(440, 34, 1),
    "pycuda_allocator()(n)": Cost(34, 3, 2),
}
# To look up a pointer takes the host driver some calls of its own, which are not counted.
ON_SEVERAL = {
    "as_cupy(a)": Cost(139, 11),
    "as_cupy(a[::2])": Cost(139, 11),
    "as_cupy(a), the first time": Cost(346, 26),
    "as_cupy(a[2:]), the first time": Cost(477, 42),
    "as_pycuda(x)": Cost(168, 13),
    "as_cupy(as_pycuda(x))": Cost(214, 16),
    "as_pycuda(as_cupy(a))": Cost(233, 17),
    "as_cupy(a, stream=s)": Cost(409, 43),
    "as_pycuda(x, stream=s)": Cost(643, 67),
    "as_cupy(exporter)": Cost(448, 46),
    "f(cupy arrays)": Cost(239, 14),
    "f(GPUArrays)": Cost(341, 25),
    "f(allocations)": Cost(314, 28),
    "prepared_call": Cost(178, 15),
    "prepared_call(allocations)": Cost(345, 35),
    "prepared_call(GPUArrays)": Cost(372, 32),
    "prepared_async_call(allocations)": Cost(728, 71),
    "prepared_call(None), the long way": Cost(1693, 160),
    "launch(cupy arrays)": Cost(548, 42),
    "launch(cupy arrays, stream=s)": Cost(826, 70),
    "wrapped(x, y)": Cost(640, 51),
    "pycuda_allocator()(n)": Cost(87, 11),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_hot_path_does_no_more_than_it_did(name, paths, gpus):
    found, most = cost(paths[name]), (LIMITS if gpus == "one GPU" else ON_SEVERAL)[name]
    assert found.instructions <= most.instructions * MARGIN
    assert found.instructions >= most.instructions / MARGIN**2
    # CuPy 13 has no function for a stream's flags.
    asks = "stream=s" in name or "async" in name
    more = 5 if asks and cupy.__version__.startswith("13.") else 0
    assert found.calls <= most.calls + more
    assert found.cuda <= most.cuda


def test_twice_the_work_is_noticed(paths):
    one = paths["as_cupy(a)"]
    once, twice = cost(one), cost(lambda: (one(), one()))
    assert twice.instructions > once.instructions * MARGIN
    assert twice.calls > once.calls


def test_a_question_to_cuda_is_noticed(paths):
    found = cost(lambda: cupy.cuda.get_current_stream().done).cuda  # a property: no call to Python
    assert found > 0 or ON_GPU
