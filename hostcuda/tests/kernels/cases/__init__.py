"""Small CUDA kernels by area, each with its launch, its inputs and the numbers it must give.

A module has one area. `KERNELS` maps a name to a `Kernel`; `OPTIONS` and `HEADERS`, if they are
there, hold for all kernels of the module. A kernel's body finds these names:

- `o`: the output, of the type of `expected`, filled with the byte 0xAA
- `a`, `b`, `c`, `d`: the inputs in their order: pointers to constant arrays, or scalars
- `t`, `i`: the thread's number in its block, and in the grid (both in x)

Expected numbers come from the CUDA C++ Programming Guide, the PTX ISA or the CUDA Math API, or by
reasoning; never from a run. Bits are compared, but each NaN equals each other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

AREAS = (
    *("masks", "exits", "half", "floats", "integers", "conversions", "functions", "atomics"),
    *("memory", "waits", "groups", "cub", "language", "ptx", "textures", "errors"),
    *("algorithms",),
)

i1, u1, i2, u2, i4, u4, i8, u8, f4, f8 = (
    partial(np.array, dtype=np.dtype(code).type)
    for code in ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
)
L = np.arange(32)  # the lanes of a warp


class Fails(tuple[int, ...]):
    """What a kernel must end with: one of these statuses of CUDA."""


class Kernel(NamedTuple):
    """One kernel; see the package's text."""

    body: str
    expected: Any  # an array, or Fails
    inputs: tuple[Any, ...] = ()  # arrays, NumPy scalars, or a type in C and a function
    grid: Any = 1
    block: Any = 32
    shared: int = 0  # bytes of dynamic shared memory
    before: str = ""  # before the kernel, in a namespace of its own
    headers: str = ""  # lines at the top of the file
    options: tuple[str, ...] = ()
    start: Any = None  # what `o` holds before
    fill: Mapping[str, Any] = MappingProxyType({})  # variables of the module that the host writes
    ulp: int = 0  # of the greatest error
    prints: str = ""
    ftz: bool = True  # CuPy's RawModule always has -ftz=true
    cooperative: bool = False
    bounds: str = ""  # such as __launch_bounds__(64)


def ones(body: str, *values: tuple[Any, ...], of: Callable[..., Any], **more: Any) -> Kernel:
    """Make a kernel of one thread from pairs of an expression and its value."""
    lines = [f"o[{n}] = {expression};" for n, (expression, _) in enumerate(values)]
    return Kernel("\n".join([body, *lines]), of([v for _, v in values]), block=1, **more)


def load(area: str) -> dict[str, Kernel]:
    """Return an area's kernels by their names."""
    module = importlib.import_module(f"cases.{area}")
    headers = getattr(module, "HEADERS", "")
    options = getattr(module, "OPTIONS", ())
    return {
        name: kernel._replace(headers=headers + kernel.headers, options=options + kernel.options)
        for name, kernel in module.KERNELS.items()
    }
