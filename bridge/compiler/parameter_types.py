"""The types of parameters that are known by name: NumPy's dtype of each.

All other types are structs, enums and pointers, which are known by their size.  To add a type of
CUDA, give its dtype here.  If the dtype is new to arrays, too, add it to `PLAIN_DTYPES` in
`bridge.interop.dtypes`, or to `is_common` there if NumPy does not define it.  Conversions and
the packing of numbers follow from these two.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

_PLAIN = {
    **{"bool": "?", "char": "b", "signed char": "b", "unsigned char": "B"},
    **{"short": "h", "unsigned short": "H", "int": "i", "unsigned int": "I"},
    **{"long": "l", "unsigned long": "L", "long long": "q", "unsigned long long": "Q"},
    **{"float": "f", "double": "d", "__half": "e"},
    **{f"{space}::complex<float>": "F" for space in ("pycuda", "thrust")},
    **{f"{space}::complex<double>": "D" for space in ("pycuda", "thrust")},
}
_VECTORS = {
    **{"char": "b", "uchar": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I"},
    **{"long": "l", "ulong": "L", "longlong": "q", "ulonglong": "Q", "float": "f", "double": "d"},
}
DTYPES = {name: np.dtype(code) for name, code in _PLAIN.items()} | {
    f"{name}{size}": np.dtype([(axis, code) for axis in "xyzw"[:size]])
    for name, code in _VECTORS.items()
    for size in range(1, 5)
}
ADDRESS = np.dtype(np.uintp)
with suppress(ImportError):  # without it, there are no such arrays
    import ml_dtypes

    DTYPES["__nv_bfloat16"] = np.dtype(ml_dtypes.bfloat16)
for _pair, _half in ("__half2", "__half"), ("__nv_bfloat162", "__nv_bfloat16"):
    if _half in DTYPES:
        DTYPES[_pair] = np.dtype([(axis, DTYPES[_half]) for axis in "xy"])
