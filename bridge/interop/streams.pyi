"""Types of ``streams.pyx``."""

from collections.abc import Callable

Note = Callable[[int, int], None] | None

def is_capturing(handle: int) -> bool: ...
def trace_waits(function: Note) -> Note: ...
