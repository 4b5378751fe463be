"""The headings of docs/troubleshooting.md are messages, word for word: of whom the page says."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ON_GPU, ROOT, run_python

pytestmark = pytest.mark.nightly
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ENTRIES = {
    found["message"]: found["source"]
    for found in re.finditer(
        r"^### (?P<ticks>`+) ?(?P<message>.*?) ?(?P=ticks)\n+\*From\* (?P<source>[\w+.' ]+)",
        PAGE,
        re.MULTILINE,
    )
}


def pattern(message):
    """Return what finds a message, in which "..." stands for what differs."""
    return re.escape(message).replace(re.escape("..."), ".*?")


@functools.cache
def strings_of_the_package():
    """Return every text of the package's sources, with "..." for what is filled in."""
    found = []
    folder = ROOT / "bridge"
    for path in (*folder.rglob("*.py"), *folder.rglob("*.pyx")):
        for literals in re.findall(r'(?:f?"[^"\n]*"\s*)+', path.read_text()):
            text = "".join(re.findall(r'"([^"\n]*)"', literals))
            found.append(re.sub(r"\{.*?\}", "...", text))
    return found


@functools.cache
def texts_of_cuda():
    import cupy

    return {str(cupy.cuda.runtime.CUDARuntimeError(n)).partition(": ")[2] for n in range(1, 1000)}


def files_of(package, end):
    found = importlib.util.find_spec(package)
    folders = found.submodule_search_locations if found else []
    return [path for folder in folders for path in Path(folder).rglob(f"*{end}")]


# Messages that are made of several parts, or that lie in a file: where to look, and for what.
WRITTEN = {
    "CuPy may not function correctly because multiple CuPy packages are installed": (
        "cupy",
        "_environment.py",
    ),
    'this declaration may not have extern "C" linkage': ("nvidia", "libnvrtc.so.1[23]"),
    "surface_functions.h: No such file or directory": ("pycuda", "pycuda-helpers.hpp"),
    "device_allocation in out-of-thread context could not be cleaned up": ("pycuda", ".so"),
    "PyCUDA ERROR: The context stack was not empty upon module cleanup.": ("pycuda", ".so"),
    "invalid device context - no currently active context?": ("pycuda", ".so"),
    "invalid type on parameter #... (0-based)": ("pycuda", "driver.py"),
    "src must be GPUArray or ndarray": ("pycuda", "gpuarray.py"),
}
LOOK_FOR = {
    "surface_functions.h: No such file or directory": "#include <surface_functions.h>",
    "invalid device context - no currently active context?": "no currently active context?",
    "invalid type on parameter #... (0-based)": "invalid type on parameter #%d (0-based)",
}
# Those of compilers, of the loader and of builds, which take what is not here.
ELSEWHERE = {
    "fatal error: cuda.h: No such file or directory",
    "No module named 'pycuda._driver'",
    "catastrophic error: cannot open source file",
    "texture is not a template",
}

SAY = """
import json
import numpy as np, cupy, pycuda.driver as drv
import bridge, bridge.autoinit
from pycuda import gpuarray

found = []

def say(call):
    try:
        call()
    except BaseException as error:
        found.append(str(error))

a, x = gpuarray.to_gpu(np.zeros((4, 4), np.float32)), cupy.zeros((4, 4), np.float32)
source = 'extern "C" __global__ void f(int *p) { }'
module = drv.module_from_buffer(cupy.cuda.compiler.compile_using_nvrtc(source)[0])
f = module.get_function("f")
k = cupy.RawKernel('extern "C" __global__ void k(float *x) { }', "k")
one = (1, 1, 1)
say(lambda: module.get_function("g"))
say(lambda: f(x, block=one, grid=(1, 1 << 20)))
say(lambda: f(x, block=(np.int64(1), 1, 1)))
say(lambda: f(7, block=one))
say(lambda: f.prepare("P").prepared_call((1, 1), one, a))
say(lambda: k((1,), (1,), (a,)))
say(lambda: drv.mem_alloc(1 << 50))
say(lambda: cupy.empty(1 << 50, np.uint8))
say(lambda: drv.DeviceAllocation(4096))
say(lambda: cupy.asarray(gpuarray.empty((0, 5), np.float32)))
say(lambda: a[:, ::2] + 1)
say(lambda: np.asarray(x))
bridge.autoinit.restore_gpuarray()
say(lambda: cupy.from_dlpack(a))
say(lambda: gpuarray.to_gpu(x))
print(json.dumps(found))
"""
PROCESSES = {  # scripts with their own
    "terminate called after throwing an instance of 'pycuda::error'": """
        import threading, numpy as np, bridge.autoinit
        from pycuda import gpuarray
        from pycuda.tools import DeviceMemoryPool
        pool = DeviceMemoryPool()
        held = [gpuarray.to_gpu(np.zeros(3), allocator=pool.allocate)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        """,
    "cuInit failed: initialization error": """
        import os, cupy, pycuda.driver as drv
        cupy.zeros(3)
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            drv.init()
        """,
    "'ndarray' object has no attribute 'gpudata'": """
        import cupy, bridge.autoinit
        from pycuda.elementwise import ElementwiseKernel
        ElementwiseKernel("float *x", "x[i] = 1")(cupy.zeros(3, "f"))
        """,
    "No such file or directory: 'nvcc'": """
        import os, bridge.autoinit
        from pycuda.compiler import SourceModule
        os.environ["PATH"] = "/nowhere"
        SourceModule("__global__ void f() { }", cache_dir=False)
        """,
    "The device where the array resides (...) is different from the current device (...).": """
        import cupy
        x = cupy.zeros(3)
        with cupy.cuda.Device(1):
            x + 1
        """,
}
if not ON_GPU:
    PROCESSES["libcuda.so.1: cannot open shared object file"] = "import pycuda.driver"


@functools.cache
def said():
    done = run_python(SAY)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_known(message, source):
    """Tell whether whom the page names would say that."""
    if source.startswith("bridge"):
        return any(re.search(pattern(message), text) for text in strings_of_the_package())
    if message in ELSEWHERE or message in PROCESSES or message in texts_of_cuda():
        return True  # processes have a test of their own
    if message not in WRITTEN:
        return any(re.search(pattern(message), text, re.DOTALL) for text in said())
    files = files_of(*WRITTEN[message])
    wanted = LOOK_FOR.get(message, message).encode()
    return not files or any(wanted in path.read_bytes() for path in files)  # NVRTC may be elsewhere


def test_the_page_has_entries_of_each_kind():
    headings = re.findall(r"^### `", PAGE, re.MULTILINE)
    assert len(ENTRIES) == len(headings) >= 40
    for source in ("bridge", "PyCUDA", "CuPy", "CUDA", "NVRTC"):
        assert any(source in text for text in ENTRIES.values()), source


@pytest.mark.parametrize(("message", "source"), ENTRIES.items(), ids=ENTRIES)
def test_a_heading_is_a_message(message, source):
    if message == "libcuda.so.1: cannot open shared object file" and ON_GPU:
        return
    assert is_known(message, source)


def test_another_message_is_noticed():
    assert not is_known("PyCUDA has no context on that thread", "bridge")
    assert not is_known("invalid type on parameter #... (1-based)", "PyCUDA")
    assert not is_known("out of memories", "CUDA")
    assert not is_known("UnownedMemory requires a device", "CuPy")


@pytest.mark.parametrize(("message", "script"), PROCESSES.items(), ids=PROCESSES)
def test_a_process_says_so(message, script, request):
    if "gpudata" in message:
        request.getfixturevalue("nvcc")
    if "libcuda" in message:
        command = ["env", "-u", "PYTHONPATH", sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True)
    else:
        done = run_python(script, devices=1 + ("Device(1)" in script))
    assert re.search(pattern(message), done.stderr), done.stderr


def test_nothing_is_looked_for_in_vain():
    libcuda = "libcuda.so.1: cannot open shared object file"
    assert {*WRITTEN, *PROCESSES, *ELSEWHERE} <= {*ENTRIES, libcuda}
