"""Arithmetic of float and double: directed rounding, contraction, flushing to zero, NaN.

Source: IEEE 754 (add, multiply, divide, root and fma are exact but for one rounding); CUDA Math
API, "Single Precision Intrinsics"; CUDA C++ Programming Guide, "Floating-Point Standard"; PTX ISA,
"add", "min", "max" (a NaN loses against a number) and ".ftz" (a subnormal is a zero of its sign).
NVRTC contracts a * b + c by default, and CuPy compiles with -ftz=true.
"""

import math
from fractions import Fraction

from . import Kernel, f4, f8, i4, np, ones, u4, u8

INF, NAN = float("inf"), float("nan")
TINY = 2.0**-126  # the least normal float
E = 2.0**-23  # spacing of floats at 1
D = 2.0**-52  # spacing of doubles at 1


def _third(down):
    """Return 1/3 in float, rounded down or up."""
    n = Fraction(2**25, 3)
    return (math.floor(n) if down else math.ceil(n)) / 2**25


KERNELS = {
    "add_directed": ones(
        "float e = 0x1p-30f;",
        ("__fadd_rn(1.f, e)", 1),
        ("__fadd_ru(1.f, e)", 1 + E),
        ("__fadd_rd(1.f, e)", 1),
        ("__fadd_rz(-1.f, -e)", -1),
        ("__fadd_rd(-1.f, -e)", -1 - E),
        ("__fsub_rz(1.f, e)", 1 - E / 2),
        ("__fsub_ru(1.f, e)", 1),
        of=f4,
    ),
    "multiply_directed": ones(
        "float a = 1 + 0x1p-23f;",
        # a * a = 1 + 2^-22 + 2^-46
        ("__fmul_rn(a, a)", 1 + 2 * E),
        ("__fmul_ru(a, a)", 1 + 3 * E),
        ("__fmul_rd(-a, a)", -1 - 3 * E),
        ("__fmul_rz(a, -a)", -1 - 2 * E),
        ("__fmul_ru(1e-30f, 1e-30f)", 0),  # -ftz=true: below the least subnormal, and flushed
        ("__fmul_rz(1e30f, 1e30f)", (2 - E) * 2.0**127),
        ("__fmul_ru(1e30f, 1e30f)", INF),
        of=f4,
    ),
    "divide_and_root_directed": ones(
        "",
        ("__fdiv_rn(1.f, 3.f)", np.float32(1 / 3)),
        ("__fdiv_rd(1.f, 3.f)", _third(True)),
        ("__fdiv_ru(1.f, 3.f)", _third(False)),
        ("__fdiv_rz(-1.f, 3.f)", -_third(True)),
        ("__frcp_ru(3.f)", _third(False)),
        ("__frcp_rd(3.f)", _third(True)),
        ("__fsqrt_ru(4.f)", 2),
        # sqrt(1 + 2^-22) is 2^-47 below 1 + 2^-23
        ("__fsqrt_rd(1 + 0x1p-22f)", 1),
        ("__fsqrt_ru(1 + 0x1p-22f)", 1 + E),
        ("__frsqrt_rn(4.f)", 0.5),
        of=f4,
    ),
    "fma_directed": ones(
        "float a = 1 + 0x1p-23f;",
        ("__fmaf_rn(a, a, -1.f)", 2 * E + E * E),
        ("__fmaf_ru(a, a, 0.f)", 1 + 3 * E),
        ("__fmaf_rd(a, a, 0.f)", 1 + 2 * E),
        ("__fmaf_rz(-a, a, 0.f)", -1 - 2 * E),
        of=f4,
    ),
    "double_directed": ones(
        "double e = 0x1p-60, a = 1 + 0x1p-52;",
        ("__dadd_ru(1., e)", 1 + D),
        ("__dadd_rd(1., -e)", 1 - D / 2),
        ("__dadd_rz(-1., -e)", -1),
        ("__dmul_ru(a, a)", 1 + 3 * D),
        ("__dmul_rd(a, a)", 1 + 2 * D),
        ("__ddiv_ru(1., 3.) - __ddiv_rd(1., 3.)", D / 4),
        ("__dsqrt_rd(1 + 0x1p-51)", 1),
        ("__dsqrt_ru(1 + 0x1p-51)", 1 + D),
        ("__fma_rn(a, a, -1.)", 2 * D + D * D),
        ("__drcp_rz(3.)", float.fromhex("0x1.5555555555555p-2")),
        of=f8,
    ),
    "contraction_of_float": Kernel(
        "o[t] = a[t] * a[t] + b[t];",
        # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, and a product rounded to float is 1 + 2^-11.
        f4([2.0**-24]),
        inputs=(f4([1 + 2.0**-12]), f4([-1 - 2.0**-11])),
        block=1,
    ),
    "contraction_of_double": Kernel(
        "o[t] = a[t] * a[t] + b[t];",
        f8([2.0**-60]),
        inputs=(f8([1 + 2.0**-30]), f8([-1 - 2.0**-29])),
        block=1,
    ),
    "contraction_of_a_difference": Kernel(
        "o[0] = b[0] - a[0] * a[0];",
        f4([-(2.0**-24)]),
        inputs=(f4([1 + 2.0**-12]), f4([1 + 2.0**-11])),
        block=1,
    ),
    "contraction_of_a_product_minus": Kernel(
        "o[0] = a[0] * a[0] - b[0];",
        f4([2.0**-24]),
        inputs=(f4([1 + 2.0**-12]), f4([1 + 2.0**-11])),
        block=1,
    ),
    "no_contraction_by_option": Kernel(
        "o[t] = a[t] * a[t] + b[t];",
        f4([0]),
        inputs=(f4([1 + 2.0**-12]), f4([-1 - 2.0**-11])),
        block=1,
        options=("-fmad=false",),
    ),
    "no_contraction_of_intrinsics": Kernel(
        "o[0] = __fmul_rn(a[t], a[t]) + b[t]; o[1] = __fadd_rn(a[t] * a[t], b[t]);",
        f4([0, 0]),
        inputs=(f4([1 + 2.0**-12]), f4([-1 - 2.0**-11])),
        block=1,
    ),
    "fma_of_infinity": ones(
        "float z = t, inf = 1 / z;",
        ("fmaf(inf, z, 1.f)", NAN),
        ("fmaf(inf, 1.f, -inf)", NAN),
        ("fmaf(3e38f, 10.f, -inf)", -INF),
        ("fmaf(-0.f, 1.f, -0.f)", -0.0),
        ("fmaf(-0.f, 1.f, 0.f)", 0),
        of=f4,
    ),
    "flushed": Kernel(
        """o[0] = a[0] * a[0]; o[1] = -a[0] * a[0]; o[2] = a[1] + 0.f; o[3] = a[1] * 2.f;
        o[4] = a[2] * 0.5f; o[5] = a[2] - a[3]; o[6] = sqrtf(a[1]); o[7] = fabsf(a[1]);""",
        f4([0, -0.0, 0, 0, 0, -0.0, 0, 0]),
        inputs=(f4([1e-20, 1e-40, TINY, 1.5 * TINY]),),
        block=1,
    ),
    # What has 24 bits and is subnormal is flushed, although fewer bits would round it to a normal
    # number: (1 - 2^-24) * TINY is, (1 - 2^-13) * (1 + 2^-13) * TINY is not.
    "flushed_before_bits_are_lost": Kernel(
        """double d = a[0]; unsigned short h;
        asm("mul.ftz.f16 %0, %1, %2;" : "=h"(h) : "h"((short)0x3bff), "h"((short)0x400));
        o[0] = a[0] * a[1]; o[1] = -a[0] * a[1]; o[2] = fmaf(a[0], a[1], 0.f);
        o[3] = __fmul_ru(a[0], a[1]); o[4] = __fdiv_ru(a[1], a[4]); o[5] = float(d * a[1]); o[6] = h;
        o[7] = a[2] * a[3]; o[8] = __fmul_ru(a[2], a[3]); o[9] = float(double(a[2]) * a[3]);
        asm("mul.ftz.f16 %0, %1, %2;" : "=h"(h) : "h"((short)0x3bf0), "h"((short)0x408)); o[10] = h;""",
        f4([0, -0.0, 0, 0, 0, 0, 0, TINY, TINY, TINY, 1024]),
        inputs=(f4([1 - E / 2, TINY, 1 - 2.0**-13, (1 + 2.0**-13) * TINY, 1 + E]),),
        block=1,
    ),
    "not_flushed_by_option": Kernel(
        "o[0] = a[0] * a[0]; o[1] = a[1] + 0.f; o[2] = a[1] * 2.f; o[3] = a[2] * 0.5f;"
        "o[4] = a[3] - a[2]; o[5] = fabsf(a[1]);",
        f4([2.0**-140, 2.0**-133, 2.0**-132, TINY / 2, TINY / 2, 2.0**-133]),
        inputs=(f4([2.0**-70, 2.0**-133, TINY, 1.5 * TINY]),),
        block=1,
        ftz=False,
    ),
    "subnormal_directed": Kernel(
        "o[0] = __fmul_ru(a[0], a[0]); o[1] = __fmul_rd(a[0], a[0]); o[2] = __fmul_rn(a[1], .5f);"
        "o[3] = __fmul_rn(a[2], .5f); o[4] = __fdiv_rn(a[1], 3.f); o[5] = sqrtf(a[3]);",
        # In units of the least subnormal: 1 / 2 is a tie (to 0), 3 / 2 is one, too (to 2).
        f4([2.0**-149, 0, 0, 2.0**-148, 0, 2.0**-74]),
        inputs=(f4([2.0**-100, 2.0**-149, 3 * 2.0**-149, 2.0**-148]),),
        block=1,
        ftz=False,
    ),
    "comparisons_flush": Kernel(
        "o[0] = a[0] > 0.f; o[1] = a[0] == 0.f; o[2] = a[0] < 1e-39f; o[3] = a[0] >= a[1];",
        i4([0, 1, 0, 1]),
        inputs=(f4([1e-40, 1e-39]),),
        block=1,
    ),
    "copies_do_not_flush": Kernel(
        "o[0] = __float_as_uint(a[0]); o[1] = __float_as_uint(t ? 0.f : a[0]);",
        u4([5, 5]),
        inputs=(f4([5 * 2.0**-149]),),
        block=1,
    ),
    "doubles_do_not_flush": Kernel(
        "o[0] = a[0] * a[1]; o[1] = a[2] * 0.5; o[2] = a[2] + a[2];",
        f8([2.0**-1070, 2.0**-1074, 2.0**-1072]),
        inputs=(f8([2.0**-535, 2.0**-535, 2.0**-1073]),),
        block=1,
    ),
    "min_max_of_nan": Kernel(
        """float n = a[0], x = a[1];
        o[0] = fminf(n, x); o[1] = fmaxf(x, n); o[2] = fmaxf(n, n); o[3] = max(n, 0.f);
        o[4] = min(x, n); o[5] = fmaxf(a[2], a[3]); o[6] = fminf(a[3], a[2]);""",
        f4([3, 3, NAN, 0, 3, 0, -0.0]),
        inputs=(f4([NAN, 3, -0.0, 0]),),
        block=1,
    ),
    "min_max_of_nan_in_double": Kernel(
        """double n = a[0], x = a[1];
        o[0] = fmin(n, x); o[1] = fmax(x, n); o[2] = fmin(n, n); o[3] = max(n, 0.); o[4] = min(1., n);""",
        f8([3, 3, NAN, 0, 1]),
        inputs=(f8([NAN, 3]),),
        block=1,
    ),
    "saturated": Kernel(
        "for (int n = 0; n < 5; n++) o[n] = __saturatef(a[n]);",
        f4([0, 0.5, 1, 1, 0]),
        inputs=(f4([-1, 0.5, 1, 7, NAN]),),
        block=1,
    ),
    "nan_payload": ones(
        "float z = t;",
        # PTX ISA: operations of .f32 that make a NaN give the canonical one.
        ("__float_as_uint(0.f / z + 1.f)", 0x7FFFFFFF),
        ("__float_as_uint(z * (1.f / z))", 0x7FFFFFFF),
        ("__float_as_uint(sqrtf(z - 1))", 0x7FFFFFFF),
        of=u4,
    ),
    "comparisons_with_nan": Kernel(
        """float n = a[0], x = 1;
        o[0] = (n < x) + 2 * (n > x) + 4 * (n == n) + 8 * (n != n) + 16 * !(n >= x);
        o[1] = isnan(n) + 2 * isnan(x) + 4 * isfinite(n) + 8 * isinf(a[1]) + 16 * signbit(a[2]);""",
        i4([24, 25]),
        inputs=(f4([NAN, -INF, -0.0]),),
        block=1,
    ),
    "division_by_0": Kernel(
        "o[0] = a[0] / a[1]; o[1] = a[0] / -a[1]; o[2] = a[1] / a[1]; o[3] = a[0] / (1 / a[1]);",
        f4([INF, -INF, NAN, 0]),
        inputs=(f4([2, 0]),),
        block=1,
    ),
    "division_is_exact": Kernel(
        "o[t] = a[t] / b[t];",
        f4([1, 10, 7, 1e38, 355]) / f4([3, 7, 49, 3, 113]),
        inputs=(f4([1, 10, 7, 1e38, 355]), f4([3, 7, 49, 3, 113])),
        block=5,
    ),
    "division_of_doubles": Kernel(
        "o[t] = a[t] / b[t];",
        f8([1 / 3, 10 / 7, INF, 0, 1 / 49, 2.0**-1073]),  # the fourth is a tie of subnormals
        inputs=(f8([1, 10, 1e308, 5e-324, 1, 2.0**-1070]), f8([3, 7, 1e-5, 2, 49, 8])),
        block=6,
    ),
    "square_roots": Kernel(
        "o[t] = sqrt(a[t]);",
        np.sqrt(f8([2, 3, 1e-300, 1e300, 0.1, 1e-310])),
        inputs=(f8([2, 3, 1e-300, 1e300, 0.1, 1e-310]),),
        block=6,
    ),
    "bits": ones(
        "",
        ("__double_as_longlong(-2.)", 0xC000000000000000),
        ("__float_as_int(-2.f) & 0xffffffffll", 0xC0000000),
        ("__double2hiint(1.5)", 0x3FF80000),
        ("(unsigned)__double2loint(0x1.00000000000ffp0)", 0xFF),
        ("__double_as_longlong(__hiloint2double(0x40000000, 7))", 0x4000000000000007),
        ("__double_as_longlong(__longlong_as_double(5))", 5),
        of=u8,
    ),
    "approximate_division": Kernel(
        "o[0] = __fdividef(a[0], a[1]); o[1] = __fdividef(1.f, a[2]);",
        # Math API: within 2 ulp for 2^-126 <= y <= 2^126; 0 beyond it.
        f4([7 / 3, 0]),
        inputs=(f4([7, 3, 2.0**127]),),
        block=1,
        ulp=2,
    ),
    "sum_of_floats_in_order": Kernel(
        "float s = 0; for (int n = 0; n < 4; n++) s += a[n]; o[0] = s;",
        f4([0]),  # 1e8 + 1 is 1e8 in float, and is taken away again
        inputs=(f4([1e8, 1, 1, -1e8]),),
        block=1,
    ),
    "directed_sums_bound_a_series": Kernel(
        """float low = 0, high = 0; double dlow = 0, dhigh = 0;
        for (int n = 1; n < 100; n++) {
            low = __fadd_rd(low, __frcp_rd(n)); high = __fadd_ru(high, __frcp_ru(n));
            dlow = __dadd_rd(dlow, __drcp_rd(n)); dhigh = __dadd_ru(dhigh, __drcp_ru(n));
        }
        double sum = a;
        o[0] = low < sum; o[1] = high > sum; o[2] = high - low < 1e-4; o[3] = dlow < sum; o[4] = dhigh > sum;
        o[5] = dhigh - dlow < 1e-12 && dhigh > dlow;""",
        i4([1] * 6),
        inputs=(np.float64(sum(Fraction(1, n) for n in range(1, 100))),),
        block=1,
    ),
    "fma_rounded_each_way": ones(
        "float x = 1 + 0x1p-12f + t;",
        # x * x = 1 + 2^-11 + 2^-24
        ("__fmaf_rn(x, x, 0.f)", 1 + 2.0**-11),
        ("__fmaf_ru(x, x, 0.f)", 1 + 2.0**-11 + E),
        ("__fmaf_rd(-x, x, 0.f)", -1 - 2.0**-11 - E),
        ("__fmaf_rz(-x, x, 0.f)", -1 - 2.0**-11),
        ("__fmaf_rn(x, x, -1.f)", 2.0**-11 + 2.0**-24),
        ("__fmaf_rn(x, x, -(1 + 0x1p-11f))", 2.0**-24),
        of=f4,
    ),
    "double_intrinsics_each_way": ones(
        "double x = 1 + 0x1p-30 + t;",
        # x * x = 1 + 2^-29 + 2^-60
        ("__dmul_ru(x, x)", 1 + 2.0**-29 + D),
        ("__dmul_rd(-x, x)", -1 - 2.0**-29 - D),
        ("__dmul_rz(x, -x)", -1 - 2.0**-29),
        ("__fma_rn(x, x, -1 - 0x1p-29)", 2.0**-60),
        ("__fma_ru(x, x, 0.)", 1 + 2.0**-29 + D),
        ("__dsub_rd(1. + t, 0x1p-80)", 1 - D / 2),
        ("__dsub_ru(1. + t, 0x1p-80)", 1),
        ("__dsqrt_rd(x * 4 - x * 4 + 4)", 2),
        ("__dsqrt_ru(1 + 0x1p-52 + t)", 1 + D),
        ("__ddiv_rz(-1., 3. + t)", -1 / 3),  # the nearest double is nearer to zero
        ("__ddiv_ru(1., 3. + t)", np.nextafter(1 / 3, 1)),
        of=f8,
    ),
    "exact_products_in_two_floats": Kernel(
        """float p = a[t] * b[t], e = fmaf(a[t], b[t], -p), s = a[t] + b[t], z = s - a[t];
        float r = (a[t] - (s - z)) + (b[t] - z);
        o[2 * t] = (double)p + e; o[2 * t + 1] = (double)s + r;""",
        np.stack(
            [
                f4([1.1, 3e5, -7.7]).astype("f8") * f4([2.3, 0.1, 1e5]),
                f4([1.1, 3e5, -7.7]).astype("f8") + f4([2.3, 0.1, 1e5]),
            ],
            axis=1,
        ).ravel(),
        inputs=(f4([1.1, 3e5, -7.7]), f4([2.3, 0.1, 1e5])),
        block=3,
    ),
    "inverse_root_by_bits": Kernel(
        """float x = a[t], y = __int_as_float(0x5f3759df - (__float_as_int(x) >> 1));
        for (int n = 0; n < 4; n++) y = y * (1.5f - 0.5f * x * y * y);
        o[t] = y;""",
        f4([1, 0.5, 0.25, 10, 1 / 3]),
        inputs=(f4([1, 4, 16, 0.01, 9]),),
        block=5,
        ulp=2,
    ),
    "fields_of_floats": Kernel(
        """unsigned n = __float_as_uint(a[t]);
        o[3 * t] = n >> 31; o[3 * t + 1] = (int)(n >> 23 & 255) - 127; o[3 * t + 2] = n & 0x7fffff;""",
        i4([0, 0, 0, 1, 1, 0x400000, 0, -127, 1, 0, 128, 0, 0, -4, 0x4CCCCD]),
        inputs=(f4([1, -3, 2.0**-149, INF, 0.1]),),
        block=5,
    ),
    "interpolation": ones(
        "float x = 2.f + t, y = 10.f, w = 0.25f;",
        ("fmaf(w, y - x, x)", 4),
        ("x * (1 - w) + y * w", 4),
        ("__saturatef((6.f - x) / (y - x))", 0.5),
        ("fminf(fmaxf(x * 20, -5.f), 30.f)", 30),
        ("copysignf(x, -0.f) + fdimf(y, x)", 6),
        of=f4,
    ),
    "ordered_as_integers": Kernel(
        """int n = __float_as_int(a[t]);
        int key = n ^ (n >> 31 & 0x7fffffff), rank = 0;
        for (int k = 0; k < 6; k++) { int m = __float_as_int(a[k]); rank += (m ^ (m >> 31 & 0x7fffffff)) < key; }
        o[t] = rank;""",
        i4([3, 0, 4, 2, 5, 1]),
        inputs=(f4([0, -INF, 1e-30, -0.0, 7, -2]),),
        block=6,
    ),
}
