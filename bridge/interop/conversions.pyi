"""Types of ``conversions.pyx``."""

from typing import Any

from ..errors import Caller

def as_cupy(
    array: Any,
    /,
    shape: Any = None,
    dtype: Any = None,
    *,
    stream: Any = None,
    strides: Any = None,
    order: Any = None,
    offset: int | None = None,
    owner: Any = None,
) -> Any: ...
def as_pycuda(
    array: Any,
    /,
    shape: Any = None,
    dtype: Any = None,
    *,
    stream: Any = None,
    strides: Any = None,
    order: Any = None,
    offset: int | None = None,
    owner: Any = None,
) -> Any: ...
def device_array(value: Any, stream: Any, caller: Caller) -> Any: ...
def call_with_gpuarrays(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...
