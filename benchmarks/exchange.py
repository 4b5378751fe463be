"""Who reads old data with whom: each library's array, taken in each way, on each pair of streams.

``python -m benchmarks.exchange`` prints two tables.  For the first, a write is queued on a stream
of the array's library, behind a kernel of 30 ms or more.  Then a reader takes the array, and copies
it to the host on its own stream.  The read is stale if the copy is not what was written.  With CuPy
and PyTorch, this is done under ``with stream:``.  The writer leaves its block before the reader
takes the array, unless the row says "inside".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import cycle, product
from types import SimpleNamespace
from typing import Any

import cupy
import cupyx
import numpy as np
from cupy.cuda import runtime

from benchmarks import libraries
from benchmarks.libraries import BYTE, SHAPE, arrays, handle_of, layout, left_out, streams, ways
from benchmarks.report import machine
from bridge.interop.exporting import export_in_order, restore_gpuarray

AS_SHIPPED = "PyCUDA, without bridge.autoinit"
INSIDE = ", inside"
BUSY = 60_000_000  # clocks: longer than the host needs to take an array
SPIN = "{ long long start = clock64(); while (clock64() - start < n); }"
spin = cupy.RawKernel(f'extern "C" __global__ void spin(long long n) {SPIN}', "spin")
values = cycle(range(1, 121))  # a result of JAX may be where an earlier one was
host = cupyx.empty_pinned(SHAPE, BYTE)
kept: list[Any] = []  # CuPy's objects for writers' streams: the default stream waits where one ends


def current(stream: Any) -> AbstractContextManager[Any]:
    """Return a block in which CuPy or PyTorch works on a stream; the others have none."""
    if hasattr(stream, "cuda_stream"):
        return libraries.torch.cuda.stream(stream)
    return stream if hasattr(stream, "use") else nullcontext()


def write(name: str, stream: Any, array: Any, value: int, clocks: int) -> Any:
    """Queue a write behind work that takes a while; return the array."""
    handle = handle_of(stream)
    if handle is None:
        return arrays[name](value)
    kept.append(
        cupy.cuda.Stream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, handle)))
    )
    with kept[-1]:
        spin((1,), (1,), (np.int64(clocks),))
    runtime.memsetAsync(layout(array)[0], value, host.nbytes, handle)
    return array


def read(view: Any, stream: Any) -> Any:
    """Copy an array to the host on a stream, and wait for this stream only."""
    handle = handle_of(stream)
    if handle is None:
        return np.asarray(view + 0)
    kind = runtime.memcpyDeviceToHost
    runtime.memcpyAsync(host.ctypes.data, layout(view)[0], host.nbytes, kind, handle)
    runtime.streamSynchronize(handle)
    return host.copy()


def one_read(
    name: str, take: Callable[..., Any], inside: bool, ours: Any, theirs: Any, clocks: int
) -> bool:
    """Write on one stream, and read on another; tell whether the read is stale."""
    value, array = next(values), arrays[name](0)
    host[...] = 0
    runtime.deviceSynchronize()
    with ExitStack() as blocks:
        blocks.enter_context(current(ours))
        array = write(name, ours, array, value, clocks)
        if not inside:
            blocks.close()
        blocks.enter_context(current(theirs))
        view = take(array, handle_of(theirs))
        found = read(view, theirs)
    runtime.deviceSynchronize()  # before `array` and `view` are freed
    return not (found == value).all()


def is_stale(*arguments: Any) -> bool:
    """Read twice, since the first time is slow.  Freed memory would make the second wait."""
    try:
        one_read(*arguments, 1)
        return one_read(*arguments, BUSY)
    finally:
        kept.clear()  # before the streams end


def named(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, or the name of its error."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__


def stale_pairs(name: str, library: str, take: Callable[..., Any], inside: bool) -> str:
    """Count the pairs of streams on which a read is stale, of those without an error."""
    if library == name:
        return "-"
    pairs = product(streams[name](), streams[library]())
    found = Counter(named(is_stale, name, take, inside, *pair) for pair in pairs)
    stale, right = found.pop(True, 0), found.pop(False, 0)
    return ", ".join([f"{stale}/{stale + right}"] * bool(stale + right) + sorted(found))


def survives(part: Any, take: Callable[..., Any]) -> str:
    """Say whether a reader has the same memory, strides and flag."""
    (pointer, strides, flag), (theirs, others, kept) = layout(part), layout(take(part, 1))
    if (pointer, strides) != (theirs, others):
        return "copy" if pointer != theirs else "other strides"
    return "writable" if flag and not kept else "view"


def row(cells: Iterable[str]) -> None:
    """Print a row of a table."""
    print("|", " | ".join(cells), "|", flush=True)


def main() -> None:
    """Print the tables."""
    print(", ".join([f"{k} {v}" for k, v in machine().items()] + libraries.versions), end="\n\n")
    head = [way for _, way in ways]
    inside = [name + INSIDE for name in ("CuPy", "PyTorch") if name in arrays]
    row(["stale pairs of streams", *head])
    row(["---"] * (1 + len(head)))
    for title in (AS_SHIPPED, *arrays, *inside):
        (restore_gpuarray if title == AS_SHIPPED else export_in_order)()
        name, is_inside = title.split(",")[0], title.endswith(INSIDE)
        takes = [(library, take) for (library, _), take in ways.items()]
        row([title, *(named(stale_pairs, name, *one, is_inside) for one in takes)])
    print()
    row(["layout, or flag", *head])
    row(["---"] * (1 + len(head)))
    for name in arrays:
        parts = named(dict, libraries.parts(name))
        if isinstance(parts, str):
            parts = {parts: None}  # the error of making them, for all cells
        for part, array in parts.items():
            row([f"{name}: {part}", *(named(survives, array, take) for take in ways.values())])
    print(f"\nLeft out: {', '.join(left_out) or 'nothing'}.")


if __name__ == "__main__":
    main()
