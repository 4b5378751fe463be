"""Conversions between all pairs of types, with values that do not fit.

Source: PTX ISA, "cvt": a float that does not fit an integer gives the nearest end of its range; NaN
gives 0, but from .f64, or to a type of 64 bits, the bit pattern 0x80...0. A cast of C to a smaller
integer type goes by way of a conversion to 32 bits. Integers wrap.
"""

import numpy as np

from . import Kernel, f4, f8, i1, i2, i4, i8, ones, u4, u8

INF, NAN = float("inf"), float("nan")
F = f4([-1.5, 0.5, 2.9, 3e9, -3e9, 5e9, INF, -INF, NAN])
FAR = f8([1e19, -1e19, 2e19, 9.3e18, -0.9, INF, -INF, NAN])
HIGH, LOW = 2**31 - 1, -(2**31)
HIGH8, LOW8 = 2**63 - 1, -(2**63)
INTEGERS = {"i1": "signed char", "u1": "unsigned char", "i2": "short", "u2": "unsigned short"}
INTEGERS |= {"i4": "int", "u4": "unsigned", "i8": "long long", "u8": "unsigned long long"}


def _from(inputs, type_in_c, expected):
    return Kernel(f"o[t] = ({type_in_c})a[t];", expected, (inputs,), block=len(inputs))


def _all_integers(source):
    """Cast six integers of a type to all others; they wrap, as NumPy's do."""
    info = np.iinfo(source)
    given = np.array([info.min, info.min + 1, info.max // 3, info.max - 1, info.max, 77], source)
    lines = [
        f"o[{n * 6} + t] = (long long)({name})a[t];" for n, name in enumerate(INTEGERS.values())
    ]
    expected = np.concatenate([given.astype(code).astype("i8") for code in INTEGERS])
    return Kernel("\n".join(lines), expected, (given,), block=6)


def _to_floats(source):
    """Cast integers to both kinds of float: they round to the nearest, as NumPy's do."""
    info = np.iinfo(source)
    given = np.array([info.min, info.max, info.max // 3, info.max - 1, 77], source)
    return Kernel(
        "o[2 * t] = (float)a[t]; o[2 * t + 1] = (double)a[t];",
        np.stack([given.astype("f4").astype("f8"), given.astype("f8")], axis=1).ravel(),
        (given,),
        block=5,
    )


KERNELS = {
    **{f"all_integers_from_{code}": _all_integers(code) for code in INTEGERS},
    **{f"floats_from_{code}": _to_floats(code) for code in INTEGERS},
    "int_from_float": _from(F, "int", i4([-1, 0, 2, HIGH, LOW, HIGH, HIGH, LOW, 0])),
    "unsigned_from_float": _from(
        F, "unsigned", u4([0, 0, 2, 3 * 10**9, 0, 2**32 - 1, 2**32 - 1, 0, 0])
    ),
    "int_from_double": _from(
        F.astype("f8"), "int", i4([-1, 0, 2, HIGH, LOW, HIGH, HIGH, LOW, LOW])
    ),
    "unsigned_from_double": _from(
        F.astype("f8"), "unsigned", u4([0, 0, 2, 3 * 10**9, 0, 2**32 - 1, 2**32 - 1, 0, 2**31])
    ),
    "long_long_from_double": _from(
        FAR, "long long", i8([HIGH8, LOW8, HIGH8, HIGH8, 0, HIGH8, LOW8, LOW8])
    ),
    "unsigned_long_long_from_double": _from(
        FAR,
        "unsigned long long",
        u8([10**19, 0, 2**64 - 1, 93 * 10**17, 0, 2**64 - 1, 0, 2**63]),
    ),
    "long_long_from_float": _from(
        f4([1e19, -1e19, 2.5, INF, -INF, NAN]),
        "long long",
        i8([HIGH8, LOW8, 2, HIGH8, LOW8, LOW8]),
    ),
    "short_from_float": _from(f4([-3.7, 32767, 40.9]), "short", i2([-3, 32767, 40])),
    "bool_from_all": Kernel(
        "o[0] = (bool)a[0]; o[1] = (bool)a[1]; o[2] = (bool)a[2]; o[3] = (bool)0x100;",
        i4([1, 0, 1, 1]),
        (f4([0.1, -0.0, NAN]),),
        block=1,
    ),
    "float_from_double": Kernel(
        "o[t] = (float)a[t];",
        # 1 + 2^-24 and 1 + 3 * 2^-24 are ties; beyond half a spacing above the greatest float is infinity.
        f4([1, 1 + 2.0**-22, INF, (2 - 2.0**-23) * 2.0**127, NAN, 0, -0.0]),
        (f8([1 + 2.0**-24, 1 + 3 * 2.0**-24, 1e39, 3.4028235e38, NAN, 1e-50, -1e-50]),),
        block=7,
    ),
    "float_from_double_directed": ones(
        "double x = 1 + 0x1p-30 + t;",
        ("__double2float_rn(x)", 1),
        ("__double2float_ru(x)", 1 + 2.0**-23),
        ("__double2float_rd(-x)", -1 - 2.0**-23),
        ("__double2float_rz(-x)", -1),
        ("__double2float_rz(1e300)", (2 - 2.0**-23) * 2.0**127),
        of=f4,
    ),
    "float_from_int_directed": ones(
        "int n = (1 << 24) + 1 + t;",
        ("__int2float_rn(n)", 2**24),
        ("__int2float_ru(n)", 2**24 + 2),
        ("__int2float_rd(-n)", -(2**24) - 2),
        ("__int2float_rz(-n)", -(2**24)),
        ("__uint2float_ru(0xffffffffu)", 2.0**32),
        ("__uint2float_rd(0xffffffffu)", 2**32 - 256),
        ("__ll2float_rz(0x7fffffffffffffffll)", 2**63 - 2**39),
        ("__ull2float_rn(0xffffffffffffffffull)", 2.0**64),
        of=f4,
    ),
    "double_from_long_long_directed": ones(
        "long long n = (1ll << 53) + 1 + t;",
        ("__ll2double_rn(n)", 2**53),
        ("__ll2double_ru(n)", 2**53 + 2),
        ("__ll2double_rd(-n)", -(2**53) - 2),
        ("__ull2double_rz(~0ull)", 2**64 - 2**11),
        of=f8,
    ),
    "int_from_float_directed": ones(
        "float x = 2.5f + t;",
        ("__float2int_rn(x)", 2),
        ("__float2int_ru(x)", 3),
        ("__float2int_rd(-x)", -3),
        ("__float2int_rz(-x)", -2),
        ("__float2int_rn(x + 1)", 4),
        ("__float2int_rn(1e20f)", HIGH),
        ("__double2int_rn(x)", 2),
        ("__double2int_rd(-x)", -3),
        ("__float2ll_rn(-x)", -2),
        ("__double2ll_ru(x)", 3),
        ("__float2uint_ru(-x)", 0),
        ("(long long)__double2ull_rz(1.8e19)", 18 * 10**18 - 2**64),
        of=i8,
    ),
    "char_is_signed": Kernel(
        "char c = a[0]; o[0] = c; o[1] = (unsigned)c; o[2] = 'a' + (signed char)200;",
        i4([-56, -56, 97 - 56]),
        (i1([-56]),),
        block=1,
    ),
    "promotions": Kernel(
        """unsigned char x = 200, y = 100; short s = -1; unsigned u = 1;
        o[0] = x + y; o[1] = (unsigned char)(x + y); o[2] = s < u; o[3] = sizeof(x + y);
        o[4] = sizeof(1.f + 1) + sizeof(1.f + 1.) * 10; o[5] = -7 / 2u > 1000; o[6] = ~x;""",
        i4([300, 44, 0, 4, 84, 1, -201]),
        block=1,
    ),
    "double_to_small_floats_and_back": Kernel(
        "o[t] = (double)(float)a[t] - a[t];",
        f8([0, 0, np.float32(0.1).astype("f8") - 0.1, 0, -1]),
        (f8([0.5, 2.0**-126, 0.1, 2**24, 2**24 + 1]),),
        block=5,
    ),
    "unsigned_directed": ones(
        "float x = 2.5f + t; double y = 4e9 + 0.5 + t;",
        ("__float2uint_rn(x)", 2),
        ("__float2uint_ru(x)", 3),
        ("__float2uint_rz(-x)", 0),
        ("__double2uint_rn(y)", 4000000000),
        ("__double2uint_ru(y)", 4000000001),
        ("__double2uint_rz(y * 2)", 2**32 - 1),
        ("__float2uint_rd(5e9f + t)", 2**32 - 1),
        ("__float2ull_ru(x)", 3),
        ("__float2ull_rn(1.5f + t)", 2),
        ("__double2ull_rd(y)", 4000000000),
        of=u8,
    ),
    "bytes_to_floats_and_back": Kernel(
        """uchar4 p = ((const uchar4 *)a)[t];
        float4 f = make_float4(p.x / 255.f, p.y / 255.f, p.z / 255.f, p.w / 255.f);
        ((uchar4 *)o)[t] = make_uchar4(__float2int_rn(f.x * 255), f.y * 255 + .5f, rintf(f.z * 255), lroundf(f.w * 255));""",
        np.arange(128, dtype="u1") * 2,
        (np.arange(128, dtype="u1") * 2,),
    ),
    "clamped_bytes": Kernel(
        "o[t] = (unsigned char)fminf(fmaxf(a[t], 0.f), 255.f);",
        np.array([0, 0, 12, 255, 255, 0], "u1"),
        (f4([-INF, -3, 12.9, 255.5, INF, NAN]),),  # of NaN and 0, the greater is 0
        block=6,
    ),
    "fixed_point": Kernel(
        """int x = __float2int_rn(ldexpf(a[t], 16)), y = __float2int_rn(ldexpf(b[t], 16));
        o[t] = ldexpf((float)(int)((long long)x * y >> 16), -16);""",
        f4([3.75, -0.5, 100.25]),
        (f4([1.5, -2, 401]), f4([2.5, 0.25, 0.25])),
        block=3,
    ),
}
