"""trace_order: which waits the bridge queues, and for which lines of the program."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from ..errors import is_hidden
from . import streams


class Wait(NamedTuple):
    """A wait of one stream for another, which a line of the program has queued."""

    waiter: str
    awaited: str
    where: traceback.FrameSummary

    def __str__(self) -> str:
        place = f"{self.where.filename}:{self.where.lineno}: {self.where.line}"
        return f"{place}\n    {self.waiter} waits for {self.awaited}"


def _place(lines: list[tuple[CodeType, int]]) -> traceback.FrameSummary:
    """Return the innermost line of the program; there is none where a thread ends."""
    for code, line in lines:
        if not is_hidden(code.co_filename):
            return traceback.FrameSummary(code.co_filename, line, code.co_name)
    return traceback.FrameSummary("the end of a thread", 0, "")


@contextlib.contextmanager
def trace_order() -> Iterator[list[Wait]]:
    """Collect the waits that the bridge queues inside of a block, on all threads.

    For the question why streams do not overlap: a call that orders more than the program needs can
    name its stream by ``stream=``.

    Returns
    -------
    list of Wait
        It is filled when the block ends.  A wait has the names of the two streams, `waiter` and
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
    seen: streams.Waits = []
    streams.begin_trace(seen)
    try:
        yield waits
    finally:
        streams.end_trace(seen)
        waits += [Wait(waiter, awaited, _place(lines)) for waiter, awaited, lines in seen]
