"""Host memory that queued work reads: its array is kept until the work is done.

CuPy's pool of pinned memory, and PyCUDA's, give a block to the host again as soon as it is free.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cupy
from cupy.cuda import runtime

from .driver import libcuda
from .streams import is_capturing

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

# Events after the work, and what it reads.  Other threads take entries out as well.
_kept: deque[tuple[Any, Any]] = deque()


def keep_until_done(stream: int, objects: Any) -> None:
    """Keep objects until the work that is queued on a stream is done; look which ones may go."""
    if is_capturing(stream):
        return  # a graph keeps no arrays: that is the program's part
    event = cupy.cuda.Event(disable_timing=True)
    runtime.eventRecord(event.ptr, stream)
    _kept.append((event, objects))
    release_done()


def release_done() -> None:
    """Release what was kept for work that is done."""
    with _spoiling_no_capture():
        for _ in range(len(_kept)):
            with suppress(IndexError):  # another thread was here
                entry = _kept.popleft()
                if not entry[0].done:
                    _kept.append(entry)


@contextmanager
def _spoiling_no_capture() -> Iterator[None]:
    """Query events in the block: otherwise that would spoil a capture in the mode "global"."""
    mode = ctypes.c_int(_RELAXED)
    libcuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        libcuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
