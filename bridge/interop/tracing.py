"""trace_order: which waits the bridge queues, and for which lines of the program."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .live_streams import name_of
from .streams import trace_waits

LIBRARIES = "bridge", "contextlib", "cupy", "pycuda"  # their lines are none of the program's


class Wait(NamedTuple):
    """A wait of one stream for another, which a line of the program has queued."""

    waiter: str
    awaited: str
    where: traceback.FrameSummary

    def __str__(self) -> str:
        place = f"{self.where.filename}:{self.where.lineno}: {self.where.line}"
        return f"{place}\n    {self.waiter} waits for {self.awaited}"


@contextmanager
def trace_order() -> Iterator[list[Wait]]:
    """Collect the waits that the bridge queues inside of a block, on all threads.

    For the question why streams do not overlap: a call that orders more than the program needs can
    name its stream by ``stream=``.

    Returns
    -------
    list of Wait
        It grows inside of the block.  A wait has the names of the two streams, `waiter` and
        `awaited`, and the line that made the call, or dropped a view: `where`, a
        ``traceback.FrameSummary``.  ``print(wait)`` shows all.

    Examples
    --------
    >>> import cupy, numpy, bridge, bridge.autoinit
    >>> import pycuda.driver as drv
    >>> x, s = cupy.zeros(3), drv.Stream(1)
    >>> with bridge.trace_order() as waits:
    ...     a = bridge.as_pycuda(x, stream=s)
    >>> [wait.awaited for wait in waits]
    ['the default stream']

    Notes
    -----
    *Ownership:* none.
    *Ordering:* none.  Waits that the program or a library queues by itself are not seen.
    *Cost:* some microseconds for each wait inside of the block; nothing outside.
    """
    waits: list[Wait] = []

    def note(waiter: int, awaited: int) -> None:
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES and frame.f_back:
            frame = frame.f_back
        code = frame.f_code
        where = traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)
        waits.append(Wait(name_of(waiter), name_of(awaited), where))
        if before:
            before(waiter, awaited)

    before = trace_waits(note)
    try:
        yield waits
    finally:
        trace_waits(before)
