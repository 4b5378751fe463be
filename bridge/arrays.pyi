"""Types of the compiled conversions (``arrays.pyx``)."""

from typing import Any

def as_cupy(array: Any, /, *, stream: Any = None) -> Any: ...
def as_pycuda(array: Any, /, *, stream: Any = None) -> Any: ...
def address_of(array: Any, caller: str) -> int: ...
def view_in_pycuda(
    array: Any,
    awaited: int,
    waiter: int,
    kept: tuple[Any, ...] | None,
    device_id: int,
    is_ordered: bool = False,
) -> Any: ...
