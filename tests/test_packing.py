"""Random parameter lists: a kernel reads each argument byte for byte.

``BRIDGE_EXAMPLES=1000`` in the environment runs that many.
"""

from __future__ import annotations

import os

import cupy
import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

import bridge

EXAMPLES = int(os.environ.get("BRIDGE_EXAMPLES", "25"))
DECLARED = """
struct pair { char key; double value; };
struct triple { short of[3]; };
"""
TYPES = {
    **{"bool": "?", "char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2"},
    **{"int": "i4", "unsigned": "u4", "long": "i8", "unsigned long long": "u8"},
    **{"float": "f4", "double": "f8", "float *": "u8", "const double *": "u8"},
    **{f"float{n}": [(axis, "f4") for axis in "xyzw"[:n]] for n in (2, 3, 4)},
    "double2": [("x", "f8"), ("y", "f8")],
    "uchar4": [(axis, "u1") for axis in "xyzw"],
    "pair": np.dtype([("key", "i1"), ("value", "f8")], align=True),
    "triple": [("of", "i2", 3)],
}  # fmt: skip


def value(kind, draw, array):
    """Return an argument of a type in C, and the bytes that the kernel reads."""
    dtype = np.dtype(TYPES[kind])
    if "*" in kind:
        pointer = array.view("f8" if "double" in kind else "f4")
        return pointer, np.uint64(pointer.data.ptr).tobytes()
    number = np.frombuffer(draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)), dtype)
    if dtype.kind == "b":
        number = np.frombuffer(number.tobytes(), np.uint8) > 127
    elif dtype.kind == "f":  # no signalling NaN, which a conversion changes
        number = np.array([draw(st.floats(width=8 * dtype.itemsize, allow_nan=False))], dtype)
    elif dtype.fields:
        number, read = np.zeros(1, dtype), number
        for name in dtype.names:  # and zeros between them
            number[name] = read[name]
    found = number[0]
    as_python = dtype.fields is None and draw(st.booleans())
    return (found.item() if as_python else found), found.tobytes()


@settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(data=st.data())
def test_a_kernel_reads_what_was_given(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=12))
    parameters = "".join(f", {kind} p{index}" for index, kind in enumerate(kinds))
    reads = "".join(
        f"at = (const unsigned char *)&p{index};"
        f"for (int i = 0; i < (int)sizeof p{index}; ++i) *out++ = at[i];"
        for index in range(len(kinds))
    )
    source = (
        f"{DECLARED} __global__ void f(unsigned char *out{parameters})"
        f"{{ const unsigned char *at; {reads} }}"
    )
    f = bridge.SourceModule(source).get_function("f")
    array = cupy.zeros(4)
    given = [value(kind, data.draw, array) for kind in kinds]
    args, expected = [one for one, _ in given], b"".join(read for _, read in given)
    out = cupy.full(len(expected) + 1, 7, np.uint8)
    f(out, *args, block=1)
    assert out.get().tobytes() == expected + b"\x07"
    codes = [np.intp if "*" in kind else np.dtype(TYPES[kind]) for kind in kinds]
    out[...] = 7
    f.prepare([np.intp, *codes]).prepared_call((1, 1), (1, 1, 1), out, *args)
    assert out.get().tobytes() == expected + b"\x07"
