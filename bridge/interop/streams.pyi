"""Types of ``streams.pyx``."""

from typing import Any

ALL_PYCUDA_STREAMS: int

def is_capturing(handle: int) -> bool: ...
def as_cupy_stream(stream: Any, /) -> Any: ...
