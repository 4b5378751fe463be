"""Types of ``dtypes.pyx``."""

from typing import Any

import numpy as np

DType = np.dtype[Any]

PLAIN_DTYPES: frozenset[DType]
OF_ADDRESSES: str
OF_STRUCTS: str

def check_dtype(dtype: DType, caller: str) -> None: ...
def same_bits(one: DType, other: DType) -> bool: ...
def dtype_mismatch(found: DType, wanted: DType, caller: str) -> TypeError | None: ...
def scalar_type(dtype: DType) -> str: ...
