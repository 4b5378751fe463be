"""Show what `bridge` does, step by step: `make demo`.

Each step is printed, run, and checked.  Without a GPU it runs on the CUDA driver of `hostcuda`.
"""

from __future__ import annotations

import os
import sys
import textwrap
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from timeit import repeat
from typing import Any

STEPS = [
    (
        "One buffer, two arrays",
        """
        import numpy as np, cupy, bridge
        import bridge.autoinit  # instead of pycuda.autoinit
        from pycuda import driver, gpuarray

        a = gpuarray.to_gpu(np.arange(6, dtype=np.float32))
        x = bridge.as_cupy(a)  # a cupy.ndarray on a's memory
        x *= 2  # CuPy writes, PyCUDA reads
        print(a.get())
        print(f"PyCUDA {int(a.gpudata):#x}, CuPy {x.data.ptr:#x}")
        """,
        "a.get().tolist() == [0, 2, 4, 6, 8, 10] and int(a.gpudata) == x.data.ptr",
    ),
    (
        "An existing kernel on CuPy arrays, its arguments checked",
        '''
        module = bridge.SourceModule("""
            typedef float real;
            __global__ void scale(real *x, real factor) { x[threadIdx.x] *= factor; }
        """)
        scale = module.get_function("scale")

        y = cupy.ones(6, np.float32)
        scale(y, 3, block=(6, 1, 1))
        print(y)

        try:
            scale(y.astype(np.float64), 3, block=(6, 1, 1))
        except TypeError as error:
            print("TypeError:", error)
        ''',
        "y.tolist() == [3] * 6 and 'TypeError' in output",
    ),
    (
        "PyCUDA's own arithmetic and its SourceModule, without nvcc",
        '''
        bridge.use_nvrtc()
        print((gpuarray.to_gpu(np.arange(3, dtype=np.float32)) + 1).get())

        import pycuda.compiler

        module = pycuda.compiler.SourceModule("""
            __global__ void slow(float *x)
            {
                for (long long end = clock64() + 100000000; clock64() < end;) {}
                *x = 1;
            }
        """)
        slow = module.get_function("slow").prepare("P")
        ''',
        "'[1. 2. 3.]' in output",
    ),
    (
        "The slow kernel works, and CuPy reads the result at once",
        """
        stream = driver.Stream(1)  # CUDA does not order it with CuPy's stream
        a, b = (gpuarray.to_gpu(np.zeros(1, np.float32)) for _ in range(2))

        slow.prepared_async_call((1, 1), (1, 1, 1), stream, a.gpudata)
        memory = cupy.cuda.UnownedMemory(int(a.gpudata), a.nbytes, a)  # the usual recipe
        stale = float(cupy.ndarray(1, np.float32, cupy.cuda.MemoryPointer(memory, 0))[0])
        print(f"UnownedMemory reads {stale:g}, which is too early")

        slow.prepared_async_call((1, 1), (1, 1, 1), stream, b.gpudata)
        right = float(bridge.as_cupy(b)[0])  # so do cupy.asarray(b) and b + x
        print(f"bridge.as_cupy reads {right:g}")
        """,
        "stale == 0 and right == 1",
    ),
]


def main() -> int:
    """Run the steps; return 1 if one of them did not do what it says."""
    names: dict[str, Any] = {}
    for number, (title, code, check) in enumerate(STEPS, 1):
        code = textwrap.dedent(code).strip()
        print(f"\n{number}. {title}\n\n{textwrap.indent(code, '    ')}\n")
        with redirect_stdout(StringIO()) as printed:
            exec(code, names)
        output = printed.getvalue()
        for line in output.splitlines():
            print(textwrap.fill(line, 100, initial_indent="  > ", subsequent_indent="    "))
        if not eval(check, {**names, "output": output}):
            print(f"FAILED: not ({check})", file=sys.stderr)
            return 1
    on_host = "hostcuda" in sys.modules
    if not on_host:  # times on host memory say nothing
        print_times(names)
    print("\nall steps did what they say")
    driver = "-m hostcuda " if on_host else ""
    print(f"Run your own script: {os.path.relpath(sys.executable)} {driver}SCRIPT")
    return 0


def print_times(names: dict[str, Any]) -> None:
    """Print what a conversion takes, beside CuPy's own."""
    import cupy

    import bridge

    a = names["gpuarray"].zeros((30, 40), "float32")
    print("\n5. What a conversion takes\n")
    for name, convert in ("bridge.as_cupy(a)", bridge.as_cupy), ("cupy.asarray(a)", cupy.asarray):
        time = min(repeat(partial(convert, a), number=1000)) * 1000
        print(f"  > {name:20}{time:.2f} us")


if __name__ == "__main__":
    sys.exit(main())
