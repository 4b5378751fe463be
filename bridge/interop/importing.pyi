"""Types of the imports of other libraries' arrays (``importing.pyx``)."""

from typing import Any

from ..errors import Caller

ADDRESS_END: int
UNPROTECTED: str

def check_device(pointer: int, subject: str, device_id: int) -> int: ...
def check_array(array: Any, subject: str, device_id: int) -> int: ...
def not_an_array(array: Any, caller: Caller) -> TypeError: ...
