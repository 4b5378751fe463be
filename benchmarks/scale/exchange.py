"""How the slabs of a membrane exchange their halos, and sum over all GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import cupy

import bridge


class Alone:
    """The exchange of a GPU that has no neighbours: the rows above and below are the edge."""

    def halos(self, address: int, rows: int, columns: int) -> None:
        """Do nothing."""

    def total(self, address: int) -> None:
        """Do nothing: the sum is the whole one."""


class Nccl:
    """The exchange by NCCL, on CuPy's current stream, of one of `size` processes.

    One of them calls `unique_id`, and all get what it returns.
    """

    def __init__(self, size: int, rank: int, uid: Any) -> None:
        self._nccl = available()
        self._size, self._rank = size, rank
        self.communicator = self._nccl.NcclCommunicator(size, uid, rank)

    def halos(self, address: int, rows: int, columns: int) -> None:
        """Send the first and the last of a slab's own rows, and receive the neighbours'."""
        nccl, link, row = self._nccl, self.communicator, 4 * columns
        stream = cupy.cuda.get_current_stream().ptr
        nccl.groupStart()
        for other, own, halo in ((self._rank - 1, 1, 0), (self._rank + 1, rows, rows + 1)):
            if 0 <= other < self._size:
                link.send(address + own * row, columns, nccl.NCCL_FLOAT32, other, stream)
                link.recv(address + halo * row, columns, nccl.NCCL_FLOAT32, other, stream)
        nccl.groupEnd()

    def total(self, address: int) -> None:
        """Replace a float32 by its sum over all ranks."""
        stream = cupy.cuda.get_current_stream().ptr
        kind, add = self._nccl.NCCL_FLOAT32, self._nccl.NCCL_SUM
        self.communicator.allReduce(address, address, 1, kind, add, stream)


@contextlib.contextmanager
def exchange(size: int, rank: int, uid: Any) -> Iterator[Alone | Nccl]:
    """Yield the exchange of a rank; a rank that fails aborts it, so that no other waits for it."""
    if size == 1:
        yield Alone()
        return
    link = Nccl(size, rank, uid)
    try:
        yield link
        cupy.cuda.get_current_stream().synchronize()
    except BaseException:
        link.communicator.abort()
        raise
    link.communicator.destroy()


def unique_id() -> Any:
    """Return the id by which the ranks of one exchange find each other."""
    with bridge.primary_context():
        return available().get_unique_id()


def available() -> Any:
    """Return CuPy's module for NCCL; raise ImportError where it finds no NCCL."""
    from cupy.cuda import nccl

    if not nccl.available:
        raise ImportError("CuPy finds no NCCL: install nvidia-nccl-cu12 or nvidia-nccl-cu13")
    return nccl


def version() -> str:
    """Return NCCL's version."""
    number = int(available().get_version())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
