"""Types of the checks (``foreign_arrays.pyx``)."""

from typing import Any

import numpy as np

PLAIN_DTYPES: frozenset[np.dtype[Any]]
BARE_MEMORY: tuple[type, ...]
ADDRESS_END: int
UNPROTECTED: str

def check_dtype(dtype: np.dtype[Any], caller: str) -> None: ...
def check_device(pointer: int, subject: str, device_id: int) -> int: ...
def check_array(array: Any, subject: str, device_id: int) -> int: ...
def no_array(array: Any, caller: str) -> TypeError: ...
