"""Compile, launch and compare the kernels of `cases`, in forks: a kernel may end its process.

This module never uses CUDA in its own process, which a fork could not use then.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import signal
import struct
import tempfile
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Pipe, wait
from typing import Any, NamedTuple

import cupy
import numpy as np
from cases import Fails, Kernel, load

RIGHT, REFUSED, WRONG, ERROR = KINDS = "right", "refused", "wrong", "error"
NOT_SUPPORTED = 801  # cudaErrorNotSupported
COMPILE_S, RUN_S = 240, 10
TYPES = {
    **{"i1": "signed char", "u1": "unsigned char", "i2": "short", "u2": "unsigned short"},
    **{"i4": "int", "u4": "unsigned", "i8": "long long", "u8": "unsigned long long"},
    **{"f4": "float", "f8": "double"},
}

UNREAD = np.zeros(64, np.uint32)  # the output of a kernel that fails


class Result(NamedTuple):
    """How a kernel ended: one of KINDS, and what is to be said of it."""

    kind: str
    text: str = ""


def _type(value: Any) -> str:
    return TYPES[value.dtype.str[1:]]


def source(name: str, kernel: Kernel) -> str:
    """Return a kernel, and what is before it in a namespace of its own."""
    written = UNREAD if isinstance(kernel.expected, Fails) else kernel.expected
    parameters = [f"{_type(written)} *o"]
    for letter, given in zip("abcd", kernel.inputs, strict=False):
        if isinstance(given, tuple):
            parameters.append(f"{given[0]} {letter}")
        else:
            parameters.append(f"const {_type(given)} {'*' * bool(given.ndim)}{letter}")
    space, using = "", ""
    if kernel.before:
        space = f"namespace of_{name} {{\n{kernel.before}\n}}\n"
        using = f"using namespace of_{name};\n"
    return (
        f'{space}extern "C" __global__ void {kernel.bounds} k_{name}({", ".join(parameters)}) {{\n'
        f"const int t = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;\n{using}"
        f"{kernel.body}\n}}\n"
    )


def compile_kernels(kernels: dict[str, Kernel]) -> Any:
    """Return a module with kernels that have the same headers and options."""
    one = next(iter(kernels.values()))
    code = one.headers + "\n" + "".join(source(*item) for item in kernels.items())
    options = ("-std=c++17", *one.options)
    if one.ftz:
        module = cupy.RawModule(
            code=code, options=options, enable_cooperative_groups=one.cooperative
        )
        module.compile()
        return module
    binary, _ = cupy.cuda.compiler.compile_using_nvrtc(code, options)
    module = cupy.cuda.function.Module()
    module.load(binary)
    return module


def _triple(extent: Any) -> tuple[int, ...]:
    return extent if isinstance(extent, tuple) else (extent,)


def launch(module: Any, name: str, kernel: Kernel) -> Any:
    """Run a kernel, and return what it wrote."""
    fails = isinstance(kernel.expected, Fails)
    like = UNREAD if fails else kernel.expected
    if kernel.start is None:
        start = np.full(like.nbytes, 0xAA, np.uint8).view(like.dtype).reshape(like.shape)
    else:
        start = np.broadcast_to(np.asarray(kernel.start, like.dtype), like.shape)
    o = cupy.asarray(start)
    kept: list[Any] = [o]
    for given in kernel.inputs:
        if isinstance(given, tuple):
            kept.append(given[1]())
        else:
            kept.append(cupy.asarray(given) if given.ndim else given)
    for variable, value in kernel.fill.items():
        place = module.get_global(variable)
        place = getattr(place, "ptr", place)
        cupy.cuda.runtime.memcpy(place, value.ctypes.data, value.nbytes, 1)
    function = module.get_function(f"k_{name}")
    extents = _triple(kernel.grid), _triple(kernel.block)
    function(*extents, tuple(kept), shared_mem=kernel.shared)
    cupy.cuda.runtime.deviceSynchronize()
    return o.get()


def difference(got: Any, kernel: Kernel) -> str:
    """Say where the numbers differ; "" if they do not."""
    expected = kernel.expected
    bits = f"u{expected.dtype.itemsize}"
    bad = got.view(bits) != expected.view(bits)
    if expected.dtype.kind == "f":
        bad &= ~(np.isnan(got) & np.isnan(expected))
        if kernel.ulp:
            with np.errstate(all="ignore"):
                away = np.abs(got.astype("f8") - expected) / np.spacing(np.abs(expected))
            bad &= ~(away <= kernel.ulp)
    if not bad.any():
        return ""
    at = np.argwhere(bad)[0]
    at = tuple(map(int, at))
    index = ", ".join(map(str, at))
    shown = f"o[{index}] is {got[at]!s}, not {expected[at]!s}"
    if expected.dtype.kind == "f":
        shown += f" ({got.view(bits)[at]:#x}, not {expected.view(bits)[at]:#x})"
    return f"{shown}; {int(bad.sum())} of {bad.size} differ"


def _is_refusal(error: BaseException) -> bool:
    """Tell the host driver's own refusals, which say its name or have the status for it."""
    return getattr(error, "status", 0) == NOT_SUPPORTED or "hostcuda:" in str(error)


def run(module: Any, name: str, kernel: Kernel) -> tuple[Result, bool]:
    """Return a kernel's result, and whether the context can be used after it."""
    fails = kernel.expected if isinstance(kernel.expected, Fails) else ()
    try:
        with tempfile.TemporaryFile() as printed:
            if kernel.prints:
                os.dup2(printed.fileno(), 1)
            got = launch(module, name, kernel)
            ctypes.CDLL(None).fflush(None)
            printed.seek(0)
            said = printed.read().decode()
    except Exception as error:
        status = getattr(error, "status", 0)
        text = " ".join(str(error).split())[:300]
        if _is_refusal(error):
            return Result(REFUSED, text), True
        return (Result(RIGHT) if status in fails else Result(ERROR, text or repr(error))), False
    if fails:
        return Result(WRONG, f"no error; expected one of {[*fails]}"), False
    text = difference(got, kernel)
    if not text and said != kernel.prints:
        text = f"printed {said!r}, not {kernel.prints!r}"
    return Result(WRONG if text else RIGHT, text), True


def groups(kernels: dict[str, Kernel]) -> Iterator[dict[str, Kernel]]:
    """Yield kernels that can be compiled together."""

    def key(item: tuple[str, Kernel]) -> Any:
        return item[1].headers, item[1].options, item[1].ftz, item[1].cooperative

    for _, group in itertools.groupby(sorted(kernels.items(), key=key), key):
        yield dict(group)


def _compiled(kernels: dict[str, Kernel], send: Any) -> Iterator[tuple[Any, dict[str, Kernel]]]:
    """Yield modules with their kernels; send the results of those that are not compiled."""
    try:
        module = compile_kernels(kernels)
    except Exception as error:
        if len(kernels) > 1:  # one of them is refused, or wrong
            for item in kernels.items():
                yield from _compiled(dict([item]), send)
            return
        said = " ".join(str(error).split())[:300]
        result = Result(REFUSED if _is_refusal(error) else ERROR, said)
        send(("done", next(iter(kernels)), result))
    else:
        yield module, kernels


def _work(kernels: dict[str, Kernel], send: Any) -> None:
    """Send each kernel's result; end early if the context is lost."""
    for group in groups(kernels):
        send(("compiles", next(iter(group)), COMPILE_S))
        for module, members in _compiled(group, send):
            for name, kernel in members.items():
                send(("runs", name, RUN_S))
                result, goes_on = run(module, name, kernel)
                send(("done", name, result))
                if not goes_on:
                    return
            send(("compiles", name, COMPILE_S))


class _Child:
    """A fork that runs some kernels of one area, or none if they have all run."""

    def __init__(self, area: str, kernels: dict[str, Kernel]) -> None:
        self.area, self.left, self.at, self.doing = area, dict(kernels), "", "starts"
        self.latest = time.monotonic() + COMPILE_S
        self.pipe, other = Pipe(duplex=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                warnings.simplefilter("ignore")
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what kernels print
                _work(self.left, other.send)
                status = 0
            finally:
                os._exit(status)
        other.close()

    def read(self) -> tuple[str, Result] | None:
        """Take one message; return a result."""
        try:
            self.doing, self.at, what = self.pipe.recv()
        except (EOFError, pickle.UnpicklingError, struct.error, OSError):
            return self.end()
        if self.doing != "done":
            self.latest = time.monotonic() + what
            return None
        self.latest = time.monotonic() + COMPILE_S
        self.left.pop(self.at)
        return self.at, what

    def end(self, late: bool = False) -> tuple[str, Result] | None:
        """Collect the process; return the result of a kernel that has none."""
        if late:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.pipe.close()
        self.pid = 0
        if self.doing == "done" and not status:
            return None
        name = self.at if self.at in self.left else next(iter(self.left), "")
        if not name:
            return None
        self.left.pop(name)
        code = os.waitstatus_to_exitcode(status)
        how = "no end" if late else f"signal {-code}" if code < 0 else f"exit status {code}"
        return name, Result(ERROR, f"{how}, while it {self.doing}")


def run_areas(names: dict[str, set[str] | None], jobs: int) -> Iterator[tuple[str, str, Result]]:
    """Yield area, name and result of kernels, all of an area if its names are None."""
    queue = []
    for area, wanted in names.items():
        kernels = {n: k for n, k in load(area).items() if wanted is None or n in wanted}
        queue.append((area, kernels))
    running: list[_Child] = []
    while queue or running:
        while queue and len(running) < jobs:
            area, kernels = queue.pop(0)
            if kernels:
                running.append(_Child(area, kernels))
        ready: list[Any] = wait([child.pipe for child in running], timeout=0.2)
        for child in list(running):
            found = None
            if child.pipe in ready:
                found = child.read()
            elif time.monotonic() > child.latest:
                found = child.end(late=True)
            if found:
                yield child.area, *found
            if not child.pid:
                running.remove(child)
                queue.insert(0, (child.area, child.left))
