"""``cuda.core`` and Numba on the driver; skipped where they are not installed."""

import cupy
import numpy as np
import pytest

import hostcuda

pathfinder = pytest.importorskip("cuda.pathfinder")

# The first user of the driver's linker says so.
pytestmark = pytest.mark.filterwarnings("ignore:cuda.bindings.nvjitlink is not available")

SOURCE = """
extern "C" __global__ void add(float *x, float a, size_t n) {
  if (threadIdx.x < n) x[threadIdx.x] += a;
}
"""


@pytest.fixture
def core():
    core = pytest.importorskip("cuda.core")
    core.Device().set_current()
    return core


@pytest.fixture(params=["ptx", "cubin"])
def add(core, request):
    options = core.ProgramOptions(arch="sm_90")
    return core.Program(SOURCE, "c++", options).compile(request.param).get_kernel("add")


def test_a_kernel_runs_on_cupys_array(core, add):
    assert [(p.offset, p.size) for p in add.arguments_info] == [(0, 8), (8, 4), (16, 8)]
    x = cupy.zeros(6, "f")
    device = core.Device()
    stream = device.create_stream()
    device.sync()
    config = core.LaunchConfig(grid=1, block=6)
    core.launch(stream, config, add, x.data.ptr, np.float32(3), np.uint64(5))
    stream.sync()
    assert x.tolist() == [3, 3, 3, 3, 3, 0]
    core.launch(stream, config, add, 0, np.float32(3), np.uint64(5))
    with pytest.raises(Exception, match="CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress"):
        device.sync()
    hostcuda.revive()


SOURCES = (
    'extern "C" __device__ int twice(int x) { return 2 * x; }',
    'extern "C" { __device__ int twice(int); __global__ void f(int *x) { *x = twice(*x); } }',
)


def link(core, sources, kinds):
    parts = []
    for source, kind in zip(sources, kinds, strict=True):
        lto = kind == "ltoir"
        options = core.ProgramOptions(
            arch="sm_90", relocatable_device_code=True, link_time_optimization=lto
        )
        parts.append(core.Program(source, "c++", options).compile(kind))
    if "ltoir" in kinds:
        try:
            pathfinder.load_nvidia_dynamic_lib("nvJitLink")
        except pathfinder.DynamicLibNotFoundError:
            pytest.skip("needs nvJitLink")
    options = core.LinkerOptions(arch="sm_90", link_time_optimization="ltoir" in kinds)
    return core.Linker(*parts, options=options).link("cubin")


@pytest.mark.parametrize("kinds", [("ptx", "ptx"), ("ltoir", "ltoir"), ("ptx", "ltoir")])
def test_programs_are_linked(core, kinds):
    f = link(core, SOURCES, kinds).get_kernel("f")
    x = cupy.full(1, 4, "i")
    core.launch(core.Device().default_stream, core.LaunchConfig(grid=1, block=1), f, x.data.ptr)
    assert x.tolist() == [8]


@pytest.mark.parametrize("kind", ["ptx", "ltoir"])
def test_a_link_names_what_is_missing(core, kind):
    with pytest.raises(Exception, match="hostcuda: a call of twice, which is not defined,"):
        link(core, SOURCES[1:], [kind])


def test_a_graph_is_captured(core, add):
    x, device = cupy.zeros(1, "f"), core.Device()
    device.sync()
    builder = device.create_graph_builder().begin_building()
    for number in 1, 2:
        arguments = x.data.ptr, np.float32(number), np.uint64(1)
        core.launch(builder, core.LaunchConfig(grid=1, block=1), add, *arguments)
    graph, stream = builder.end_building().complete(), device.create_stream()
    for expected in 3, 6:
        graph.launch(stream)
        stream.sync()
        assert x.tolist() == [expected]


@pytest.mark.parametrize("name", ["numba.cuda", "numba_cuda_mlir.cuda"])
def test_numba_runs(name):
    cuda = pytest.importorskip(name)
    assert cuda.is_available()

    @cuda.jit("void(float32[:], float32)")
    def add(x, a):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += a

    x = cupy.zeros(40, "f")
    add[128, 32](x, 3)
    cuda.synchronize()
    assert x.tolist() == [3] * 40
