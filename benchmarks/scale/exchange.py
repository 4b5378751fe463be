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
    """The exchange by NCCL, on CuPy's current stream; one process for each rank.

    Parameters
    ----------
    size, rank : int
        The number of processes, and the number of this one.
    uid : object
        What `unique_id` returned in one of them.
    """

    def __init__(self, size: int, rank: int, uid: Any) -> None:
        nccl = available()
        self._nccl = nccl
        self.communicator = nccl.NcclCommunicator(size, uid, rank)
        self._above = rank - 1 if rank else None
        self._below = rank + 1 if rank + 1 < size else None

    def halos(self, address: int, rows: int, columns: int) -> None:
        """Send the first and the last of a slab's own rows, and receive the neighbours'."""
        nccl, link, row = self._nccl, self.communicator, 4 * columns
        stream = cupy.cuda.get_current_stream().ptr
        nccl.groupStart()
        if self._above is not None:
            link.send(address + row, columns, nccl.NCCL_FLOAT32, self._above, stream)
            link.recv(address, columns, nccl.NCCL_FLOAT32, self._above, stream)
        if self._below is not None:
            last = address + rows * row
            link.send(last, columns, nccl.NCCL_FLOAT32, self._below, stream)
            link.recv(last + row, columns, nccl.NCCL_FLOAT32, self._below, stream)
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
