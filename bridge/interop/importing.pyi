"""Types of the imports of other libraries' arrays (``importing.pyx``)."""

from typing import Any

from ..errors import Caller

class Global(tuple[int, int]):
    _module: Any

BARE_MEMORY: tuple[type, ...]
ADDRESS_END: int
UNPROTECTED: str

def check_device(pointer: int, subject: str, device_id: int) -> int: ...
def check_array(array: Any, subject: str, device_id: int) -> int: ...
def not_an_array(array: Any, caller: Caller) -> TypeError: ...
