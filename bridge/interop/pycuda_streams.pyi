"""Types of ``pycuda_streams.pyx``."""

from typing import Any

def as_cupy_stream(stream: Any, /) -> Any: ...
