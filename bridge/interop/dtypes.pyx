# cython: auto_pickle=False
"""Dtypes: which ones both libraries support, and which ones a kernel may read as another."""

import cupy
import numpy as np

# The plain dtypes that both libraries support; `check_dtype` also accepts structs and bfloat16.
PLAIN_DTYPES = frozenset(np.dtype(char) for char in "?bhilqBHILQefdFD")
# CuPy 13 does not support it; CuPy 14 needs NumPy 2.1.2 for it (seen).
HOLDS_BFLOAT16 = not cupy.__version__.startswith("13.") and (
    np.lib.NumpyVersion(np.__version__) >= "2.1.2"
)


def check_dtype(dtype, caller):
    """Raise TypeError unless both libraries support `dtype`."""
    if dtype in PLAIN_DTYPES or is_common(dtype):
        return
    problem = "is not one that both PyCUDA and CuPy support"
    if not dtype.isnative:
        problem = "is not in native byte order; convert it on the host first, e.g. a.astype('<f4')"
    raise TypeError(
        f"{caller}: dtype {dtype} {problem} (accepted: bool, integers, float16/32/64, "
        "bfloat16 with CuPy 14 and NumPy 2.1.2, complex64/128 and structured dtypes of these)"
    )


cdef is_common(dtype):
    if dtype.subdtype is not None:
        return is_common(dtype.subdtype[0])
    if dtype.fields is not None:
        return all([is_common(field[0]) for field in dtype.fields.values()])
    if dtype.name == "bfloat16":  # from ml_dtypes
        return HOLDS_BFLOAT16
    # Plain bytes: other libraries export structured dtypes as bytes.
    return dtype in PLAIN_DTYPES or (dtype.type is np.void and dtype.itemsize > 0)


def same_bits(one, other):
    """Tell whether a kernel may read one dtype as the other.

    Integers of one width are interchangeable.  16-bit integers also stand for float16 and bfloat16,
    as older kernels declare them.  A complex number is a pair of floats.  A struct that is known by
    its size only may be any struct of that size, and any number of bytes.
    """
    if not one.isnative:
        return False
    if one == other:
        return True
    if other.type is np.void and other.fields is None:  # a struct
        if one.type is np.void and one.itemsize == other.itemsize:
            return True
        return one.str in ("|u1", "|V1", "|S1")
    if other.fields is not None:  # a CUDA vector
        fields = [field[0] for field in (one.fields or {}).values()]
        return all([same_bits(field, other[0]) for field in fields or [one]])
    if one.char == "V" or (one.kind == "S" and other.itemsize == 1):
        return True
    if one.kind == "c":
        return other.kind == "f" and one.itemsize == 2 * other.itemsize
    floats = [dtype.kind for dtype in (one, other) if dtype.kind not in "iub"]
    halves = len(floats) == 1 and floats[0] in "fV" and one.itemsize == 2
    return one.itemsize == other.itemsize and (halves or not floats)


OF_STRUCTS = '; module.dtype("NAME") of a bridge.SourceModule is the dtype of its struct NAME'
OF_ADDRESSES = (
    "for pointers to pointers, pass an array of addresses, e.g. cupy.array([a.data.ptr, "
    "b.data.ptr], dtype=numpy.uintp)"
)


def dtype_mismatch(found, wanted, caller):
    """Return the error for an array of dtype `found` where a kernel takes `wanted`, or None."""
    if same_bits(found, wanted):
        return None
    numbers = wanted if wanted.fields is None else wanted[0]
    if found.kind == "c" and numbers.kind == "f" and numbers.itemsize > 2:  # pairs of floats
        numbers = np.dtype(f"c{2 * numbers.itemsize}")
    takes, name = str(numbers), scalar_type(numbers)
    advice = (
        f"pass a.astype({name}), a copy, if the kernel only reads it, or an array of {numbers} if "
        f"it writes; a.view({name}) reinterprets the bytes"
    )
    if wanted.type is np.void and wanted.fields is None:
        takes = f"items of {wanted.itemsize} bytes"
        advice = "give a.view(numpy.uint8) for raw bytes, or a structured dtype of that size"
        if found.fields is not None:
            advice = f"yours have {found.itemsize}{OF_STRUCTS}"
    elif wanted == np.uintp and found.itemsize != wanted.itemsize:
        advice = OF_ADDRESSES
    return TypeError(f"{caller} is an array of {found}, but the kernel takes {takes}: {advice}")


def scalar_type(dtype):
    """Return how a program names the scalar type of a dtype."""
    return f"{'ml_dtypes' if dtype.name == 'bfloat16' else 'numpy'}.{dtype}"
