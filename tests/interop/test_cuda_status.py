"""After a kernel has failed, CUDA answers every call with its error: what bridge then says."""

import re

import pytest
from gpus import ON_GPU

KERNELS = {"trap": ("__trap();", "cudaErrorLaunchFailure: unspecified launch failure")}
if ON_GPU:
    KERNELS["illegal address"] = (
        "*(int *)64 = 1;",
        "cudaErrorIllegalAddress: an illegal memory access was encountered",
    )
    KERNELS["assertion"] = ("assert(!p);", "cudaErrorAssert: device-side assert triggered")

BEFORE = """
import gc
import cupy, numpy as np, pycuda.driver as drv
import bridge, bridge.autoinit
from pycuda import gpuarray
from other_threads import on_a_thread

source = "__global__ void g() {}"
module = bridge.SourceModule('''
#include <assert.h>
__global__ void fail(int *p) { %s }
__device__ int count;
''')
module.get_global('count')
fail = module.get_function("fail")
image = cupy.cuda.compiler.compile_using_nvrtc('extern "C" __global__ void f(int *p) {}')[0]
fail.prepare("P")
f = drv.module_from_buffer(image).get_function("f")
stream, other = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
ours = bridge.pycuda_allocator()
x = cupy.zeros(8, np.int32)  # CuPy says of each module of its own that it cannot unload it
a = gpuarray.GPUArray(8, np.int32, allocator=ours)
views = [
    bridge.as_pycuda(x, stream=stream),
    bridge.as_cupy(a),
    bridge.as_cupy(a, stream=stream)[::2],
    bridge.as_pycuda(bridge.as_cupy(a)[1:], stream=stream)[1:],
]

def under(stream, work):
    with stream:
        work()

fail(x, block=1)
try:
    drv.Context.synchronize()
except drv.Error:
    pass
else:
    raise AssertionError
"""

OF_BRIDGE, OF_PYCUDA = "ContextError", "LaunchError"
ACTIONS = {  # code, the error's type, who it says was called
    "bridge.as_cupy(a, stream=stream)": (OF_BRIDGE, ""),
    "under(other, lambda: bridge.as_cupy(a))": (OF_BRIDGE, ""),
    "bridge.as_pycuda(x, stream=stream)": (OF_BRIDGE, ""),
    "bridge.wait_stream(stream, other)": (OF_BRIDGE, ""),
    "under(other, lambda: bridge.wrap_pycuda(lambda x: x)(x))": (OF_BRIDGE, ""),
    "ours(1 << 24)": (OF_BRIDGE, "pycuda_allocator: "),
    "bridge.show_memory()": (OF_BRIDGE, "show_memory: "),
    "bridge.SourceModule(source).get_function('g')": (OF_PYCUDA, "SourceModule: "),
    "module.get_function('fail')(x, block=1)": (OF_PYCUDA, "SourceModule.get_function: "),
    "module.get_global('g')": (OF_PYCUDA, "SourceModule.get_global: "),
    "fail(x, block=1)": (OF_PYCUDA, "fail: "),
    "fail(a, block=1)": (OF_BRIDGE, ""),
    "fail(x, block=1, time_kernel=True)": (OF_PYCUDA, "fail: "),
    "fail.prepared_timed_call((1, 1), (1, 1, 1), a.gpudata)": (OF_BRIDGE, ""),
    "under(other, lambda: fail(x, block=1))": (OF_PYCUDA, "fail: "),
    "fail.prepared_call((1, 1), (1, 1, 1), x)": (OF_PYCUDA, "fail: "),
    "fail(x, block=1, stream=stream)": (OF_BRIDGE, ""),
    "under(other, lambda: fail(x, block=1, stream=stream))": (OF_BRIDGE, ""),
    "bridge.launch(f, x, grid=1, block=1)": (OF_PYCUDA, "launch: "),
}
# Where nothing is ordered, nothing is asked of CUDA; what is done with the view tells.
UNORDERED = "bridge.as_pycuda(x, stream=-1), bridge.as_cupy(a, stream=-1)"
MESSAGE = (
    "an earlier kernel has failed ({}), and this process cannot use the GPU any more. Start a new "
    "one, with CUDA_LAUNCH_BLOCKING=1 in its environment to see which call fails, or under "
    "compute-sanitizer, which names kernel and line"
)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_call_says_that_a_kernel_has_failed(kernel, python):
    source, error = kernel
    said = MESSAGE.format(error)
    done = python(f"""{BEFORE % source}
for code in {[*ACTIONS, UNORDERED, "bridge.as_cupy(a, stream=-1).get()"]}:
    try:
        exec(code)
    except Exception as error:
        print(code, type(error).__name__, error, sep="|")
""")
    expected = [f"{code}|{kind}|{caller}{said}" for code, (kind, caller) in ACTIONS.items()]
    expected.append(f"bridge.as_cupy(a, stream=-1).get()|CUDARuntimeError|{error}")
    assert done.stdout.splitlines() == expected


DROPS = {
    "here": "views.clear()",
    "on a thread": "on_a_thread(views.clear)",
    "in a cycle": "views.append(views); del views; gc.collect()",
    "at exit": "",
    "a module": "held = [module, fail]; del module, fail; held.clear()",
    "a module, on a thread": "held = [module, fail]; del module, fail; on_a_thread(held.clear)",
}


@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_views_and_modules_go_in_silence(kernel, drop, python):
    """But for PyCUDA, which warns of each stream, module and block of its own."""
    done = python(BEFORE % kernel[0] + drop)
    warning = r"PyCUDA WARNING: a clean-up operation failed .*\ncu\w+ failed: .*\n"
    said = re.sub(warning, "", done.stderr)
    assert re.sub(r"kernel.cu:3: .* Assertion `!p` failed.\n", "", said) == ""
    assert (done.returncode, done.stdout) == (0, "")
