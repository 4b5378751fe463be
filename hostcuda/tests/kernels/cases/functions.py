"""Mathematical functions over special values, and exact results.

Source: CUDA Math API, whose pages give the special cases, and the CUDA C++ Programming Guide,
"Mathematical Functions", whose tables give the greatest error in ulp; where a result is exact by its
definition (fmod, remainder, ldexp, ...), it is that. Where an error is allowed, the number is that of
Python's `math` in double, rounded to the type; the tolerance is the table's,
and 1 for `math` where the type is double.
"""

import math

from . import Kernel, f4, f8, i4, np, ones

INF, NAN = float("inf"), float("nan")
X = [0.1, 0.5, 1.0, 2.5, 7.0]


def near(name, ulp, ulp_of_double, of=None, values=X, call="{}({})"):
    """Return two kernels of a function: of float and of double, each with its greatest error."""
    of = of or getattr(math, name)
    for suffix, kind, error in (("f", f4, ulp), ("", f8, ulp_of_double + 1)):
        given = kind(values)
        yield (
            name + suffix,
            Kernel(
                f"o[t] = {call.format(name + suffix, 'a[t]')};",
                kind([of(float(x)) for x in given]),
                (given,),
                block=len(given),
                ulp=error,
            ),
        )


def of_0(expressions, kind):
    """Return a kernel of expressions, with zeros, NaN and infinity that no compiler can fold."""
    name = "float" if kind is f4 else "double"
    start = f"{name} z = a[0], one = a[1], inf = a[2], nan = a[3]; int n, q;"
    lines = [f"o[{n}] = {expression};" for n, expression in enumerate(expressions)]
    return Kernel(
        start + "\n".join(lines), kind([*expressions.values()]), (kind([0, 1, INF, NAN]),), block=1
    )


KERNELS = {
    "sinpi_cospi": of_0(
        {
            **{f"sinpif({x}.f + z) + z": 0 for x in (0, 1, 2)},  # of either sign
            **{f"sinpif({x}f + z) + z": y for x, y in [("0.5", 1), ("1.5", -1), ("1e10", 0)]},
            **{f"cospif({x}f + z) + z": y for x, y in [("0.5", 0), ("1.0", -1), ("2.0", 1)]},
            **{"sinpif(-z)": -0.0, "cospif(inf)": NAN, "sinpif(inf)": NAN, "cospif(1e10f + z)": 1},
        },
        f4,
    ),
    "sinpi_cospi_of_double": of_0(
        {
            **{f"sinpi({x} + z) + z": y for x, y in [(1.0, 0), (2.5, 1), (3.5, -1), (1e18, 0)]},
            **{f"cospi({x} + z) + z": y for x, y in [(1.0, -1), (2.5, 0), (3.0, -1), (1e18, 1)]},
        },
        f8,
    ),
    "exp2_of_integers": Kernel(
        "o[t] = exp2f(t - 40); o[t + 80] = exp2(t - 40.);",
        f8([2.0**n for n in range(-40, 40)] * 2),
        block=80,
    ),
    "exp_special": of_0(
        {
            **{"expf(z)": 1, "expf(-inf)": 0, "expf(inf)": INF, "expf(100.f + z)": INF},
            **{"expf(nan)": NAN, "expm1f(-z)": -0.0, "expm1f(-inf)": -1, "exp10f(one + one)": 100},
        },
        f4,
    ),
    "log_special": of_0(
        {
            **{
                "log(z)": -INF,
                "log(-one)": NAN,
                "log(inf)": INF,
                "log(one)": 0,
                "log1p(-one)": -INF,
            },
            **{"log2(2 * one)": 1, "log10(1000 * one)": 3, "log1p(-z)": -0.0, "log2(z)": -INF},
        },
        f8,
    ),
    "pow_special": of_0(
        {
            **{"pow(z, z)": 1, "pow(nan, z)": 1, "pow(one, nan)": 1, "pow(-one, inf)": 1},
            **{"pow(-one - one, 3.)": -8, "pow(-one - one, .5)": NAN, "pow(z, -one)": INF},
            **{"pow(-z, -one)": -INF, "pow(one + one, inf)": INF, "pow(one + one, -inf)": 0},
            **{"pow(-inf, 3.)": -INF, "pow(-inf, -3.)": -0.0, "pow(3 * one, 2.)": 9},
        },
        f8,
    ),
    "cbrt_of_cubes": Kernel(
        # Within 1 ulp; the cubes' roots are small integers.
        "o[t] = cbrt(a[t]);",
        f8([0, 1, -2, 3, -10, 100]),
        (f8([0, 1, -8, 27, -1000, 1e6]),),
        block=6,
        ulp=1,
    ),
    "norms_do_not_overflow": of_0(
        {
            **{"hypotf(3e20f * one, 4e20f)": 5e20, "norm3df(z, 3e30f, 4e30f)": 5e30},
            **{"hypotf(inf, nan)": INF, "norm4df(one, one, one, one)": 2, "rhypotf(z, z)": INF},
            **{"hypotf(1e-30f * one, z)": 1e-30, "rnorm3df(z, z, 4 * one)": 0.25},
        },
        f4,
    )._replace(ulp=4),
    "norms_of_double": of_0(
        {
            **{"hypot(3e200 * one, 4e200)": 5e200, "norm3d(2e300 * one, 3e300, 6e300)": 7e300},
            **{
                "hypot(nan, -inf)": INF,
                "rhypot(3 * one, 4 * one)": 0.2,
                "rnorm4d(one,one,one,one)": 0.5,
            },
        },
        f8,
    )._replace(ulp=2),
    "fmod_remainder": of_0(
        {
            **{"fmod(7.5 + z, 2)": 1.5, "fmod(-7.5 + z, 2)": -1.5, "fmod(one, inf)": 1},
            **{"fmod(inf, one)": NAN, "fmod(one, z)": NAN, "fmod(1e300 * one, 3)": 1e300 % 3},
            **{
                "remainder(7.5 + z, 2)": -0.5,
                "remainder(5 * one, 2)": 1,
                "remainder(7 * one, 2)": -1,
            },
            **{"remainder(6 * one, 4)": -2, "fmod(-6 * one, 3)": -0.0},
        },
        f8,
    ),
    "fmodf_remainderf": of_0(
        {
            **{"fmodf(5.5f + z, 2)": 1.5, "fmodf(1e30f * one, 7)": float(np.float32(1e30)) % 7},
            **{"remainderf(5.5f + z, 2)": -0.5, "remainderf(-3 * one, 2)": 1, "fmodf(z, nan)": NAN},
        },
        f4,
    ),
    "remquo": of_0(
        {
            "(remquo(29 * one, 3., &n))": -1,
            "(n & 7)": 10 & 7,
            "remquof(-29.f * one, 3.f, &q)": 1,
            "(-q & 7)": 10 & 7,
        },
        f8,
    ),
    "ldexp_frexp": of_0(
        {
            **{"ldexp(one, 1023)": 2.0**1023, "ldexp(one, -1074)": 2.0**-1074},
            **{"ldexp(one, 2000)": INF, "scalbn(3 * one, 4)": 48, "scalbln(one, -3l)": 0.125},
            **{"frexp(48 * one, &n)": 0.75, "n": 6, "frexp(z, &q)": 0, "q + 0": 0},
            **{"frexp(ldexp(one, -1074), &n)": 0.5, "(double)n": -1073},
        },
        f8,
    ),
    "logb_ilogb": of_0(
        {
            **{"logb(48 * one)": 5, "logb(z)": -INF, "logb(-inf)": INF, "ilogb(0.3 * one)": -2},
            **{"logb(ldexp(one, -1074))": -1074, "ilogb(z)": -(2**31), "ilogb(inf)": 2**31 - 1},
        },
        f8,
    ),
    "modf": of_0(
        {"modf(-2.75 * one, o + 1)": -0.75, "o[1]": -2, "modf(inf, o + 3)": 0, "o[3]": INF}, f8
    ),
    "nextafter": of_0(
        {
            **{"nextafter(one, inf)": 1 + 2.0**-52, "nextafter(one, z)": 1 - 2.0**-53},
            **{"nextafter(z, one)": 2.0**-1074, "nextafter(z, -one)": -(2.0**-1074)},
            **{"nextafter(inf, z)": (2 - 2.0**-52) * 2.0**1023, "nextafter(nan, z)": NAN},
            **{"nextafterf(1.f + z, 2.f)": 1 + 2.0**-23},
        },
        f8,
    ),
    "erf_family": of_0(
        {
            **{"erf(z)": 0, "erf(inf)": 1, "erf(-inf)": -1, "erfc(-inf)": 2, "erfc(inf)": 0},
            **{"erfinv(one)": INF, "erfinv(z)": 0, "erfinv(2 * one)": NAN, "erfcinv(z)": INF},
            **{
                "normcdf(z)": 0.5,
                "normcdf(inf)": 1,
                "normcdfinv(z)": -INF,
                "normcdfinv(.5 + z) + z": 0,
            },
        },
        f8,
    ),
    "erfinv_near_0": Kernel(
        # erfinv(x) = sqrt(pi) / 2 * (x + pi / 12 * x^3 + ...); within 5 ulp
        "o[t] = erfinv(a[t]);",
        f8([math.sqrt(math.pi) / 2 * x for x in (1e-20, -1e-100, 1e-12)]),
        (f8([1e-20, -1e-100, 1e-12]),),
        block=3,
        ulp=5 + 2,
    ),
    "erfinvf_near_0": Kernel(
        "o[t] = erfinvf(a[t]);",
        f4([math.sqrt(math.pi) / 2 * float(x) for x in f4([1e-20, -1e-9])]),
        (f4([1e-20, -1e-9]),),
        block=2,
        ulp=2,
    ),
    "gamma": of_0(
        {
            **{"tgamma(5 * one)": 24, "tgamma(z)": INF, "tgamma(-z)": -INF, "tgamma(-one)": NAN},
            **{"lgamma(one)": 0, "lgamma(2 * one)": 0, "lgamma(z)": INF, "lgamma(-inf)": INF},
        },
        f8,
    )._replace(ulp=10),
    "rounding": Kernel(
        """double x = a[t];
        double y[] = {rint(x), round(x), trunc(x), floor(x), ceil(x), nearbyint(x)};
        for (int n = 0; n < 6; n++) o[t * 6 + n] = y[n];""",
        f8(
            [
                *[2, 3, 2, 2, 3, 2],
                *[-2, -2, -1, -2, -1, -2],
                *[-0.0, -1, -0.0, -1, -0.0, -0.0],
                *[0, 0, 0, 0, 1, 0],
                *[2.0**53 - 1] * 6,
            ]
        ),
        (f8([2.5, -1.5, -0.5, 0.49999999999999994, 2.0**53 - 1]),),
        block=5,
    ),
    "rounding_of_float": Kernel(
        """float x = a[t];
        float y[] = {rintf(x), roundf(x), truncf(x), floorf(x), ceilf(x)};
        for (int n = 0; n < 5; n++) o[t * 5 + n] = y[n];""",
        f4([*[4, 4, 3, 3, 4], *[-2, -3, -2, -3, -2], *[0, 0, 0, 0, 1], *[8388609] * 5]),
        (f4([3.5, -2.5, 0.49999997, 8388609]),),
        block=4,
    ),
    "lround_lrint": Kernel(
        """o[0] = lrint(a[0]); o[1] = lround(a[0]); o[2] = lroundf(-2.5f + t); o[3] = llrint(a[1]);
        o[4] = llround(a[1]); o[5] = lrintf(3.5f + t);""",
        i4([2, 3, -3, -4, -4, 4]),
        (f8([2.5, -3.5]),),
        block=1,
    ),
    "fdim_copysign_fma": of_0(
        {
            **{"fdim(3 * one, one)": 2, "fdim(one, 3 * one)": 0, "fdim(nan, one)": NAN},
            **{"copysign(3 * one, -z)": -3, "copysign(nan, one)": NAN, "fabs(-z)": 0},
            **{"fma(one, 3., -2 * one)": 1, "fmax(one, nan)": 1, "fdim(inf, -inf)": INF},
        },
        f8,
    ),
    "trigonometry_special": of_0(
        {
            **{
                "sin(-z)": -0.0,
                "cos(z)": 1,
                "sin(inf)": NAN,
                "tan(-z)": -0.0,
                "asin(2 * one)": NAN,
            },
            **{"atan(-z)": -0.0, "atan2(z, one)": 0, "atan2(-z, one)": -0.0, "acos(one)": 0},
            **{"atan2(z, -one)": math.pi, "atan2(-z, -one)": -math.pi, "atan2(z, -z)": math.pi},
            **{"atan2(one, z)": math.pi / 2, "atan(inf)": math.pi / 2, "acos(2 * one)": NAN},
        },
        f8,
    )._replace(ulp=2),
    "hyperbolic_special": of_0(
        {
            **{"sinh(-z)": -0.0, "cosh(z)": 1, "tanh(inf)": 1, "tanh(-inf)": -1, "asinh(-z)": -0.0},
            **{"acosh(one)": 0, "acosh(z)": NAN, "atanh(one)": INF, "atanh(2 * one)": NAN},
            **{"cosh(-inf)": INF, "sinh(-inf)": -INF, "tanhf(-z)": -0.0},
        },
        f8,
    ),
    "bessel": of_0({"j0(z)": 1, "j1(z)": 0, "y0(z)": -INF, "y1(z)": -INF}, f8)._replace(ulp=7),
    "sincos": Kernel(
        "double s, c; sincospi(0.5 * t, &s, &c); o[2 * t] = s + 0.; o[2 * t + 1] = c + 0.;",
        f8([0, 1, 1, 0, 0, -1, -1, 0]),
        block=4,
    ),
    "large_arguments": Kernel(
        # Payne and Hanek's reduction: sin(1e22) is a classic; within 2 ulp
        "o[0] = sin(a[0]); o[1] = cos(a[0]); o[2] = tan(a[1]);",
        f8([-0.8522008497671888, 0.5232147853951389, math.tan(1e15)]),
        (f8([1e22, 1e15]),),
        block=1,
        ulp=3,
    ),
    "large_arguments_of_float": Kernel(
        "o[0] = sinf(a[0]); o[1] = cosf(a[0]);",
        f4([math.sin(float(np.float32(1e20))), math.cos(float(np.float32(1e20)))]),
        (f4([1e20]),),
        block=1,
        ulp=2,
    ),
    "rsqrt_rcbrt": of_0(
        {
            **{"rsqrt(4 * one)": 0.5, "rsqrt(z)": INF, "rsqrt(inf)": 0, "rsqrt(-one)": NAN},
            **{"rcbrt(8 * one)": 0.5, "rcbrt(-27e3 * one)": -1 / 30},
        },
        f8,
    )._replace(ulp=1),
    **dict(near("exp", 2, 1)),
    **dict(near("log", 1, 1)),
    **dict(near("sin", 2, 2)),
    **dict(near("tanh", 2, 2)),
    **dict(near("erf", 2, 2)),
    **dict(near("atan", 2, 2)),
    **dict(near("log1p", 1, 1)),
    **dict(near("cosh", 2, 1)),
    **dict(near("lgamma", 6, 4, values=[0.5, 4.5, 7.0])),
    "complex_numbers": Kernel(
        """cuFloatComplex x = make_cuFloatComplex(3, 4), y = make_cuFloatComplex(t + 1, -2), z = cuCmulf(x, y);
        cuDoubleComplex w = cuCadd(make_cuDoubleComplex(1, 2), cuConj(make_cuDoubleComplex(t, 5)));
        z = cuCaddf(z, cuCsubf(y, x));
        o[6 * t] = z.x; o[6 * t + 1] = cuCimagf(z); o[6 * t + 2] = w.x; o[6 * t + 3] = w.y;
        o[6 * t + 4] = cuCabsf(x); o[6 * t + 5] = cuCrealf(cuCdivf(cuCmulf(x, y), y));""",
        f4([[3 * n + 8 + n - 3, 4 * n - 6 - 6, n, -3, 5, 3] for n in range(1, 3)]).ravel(),
        block=2,
        headers="#include <cuComplex.h>\n",
        ulp=2,
    ),
    "complex_exponentials": Kernel(
        """cuDoubleComplex sum = make_cuDoubleComplex(0, 0), x = make_cuDoubleComplex(0, 0.5 * t), term = make_cuDoubleComplex(1, 0);
        for (int n = 1; n < 30; n++) {
            sum = cuCadd(sum, term);
            term = cuCdiv(cuCmul(term, x), make_cuDoubleComplex(n, 0));
        }
        double s, c; sincos(0.5 * t, &s, &c);
        o[t] = fabs(sum.x - c) < 1e-14 && fabs(sum.y - s) < 1e-14 && fabs(cuCabs(sum) - 1) < 1e-14;""",
        f8([1] * 6),
        block=6,
        headers="#include <cuComplex.h>\n",
    ),
    "fast_functions": ones(
        "float x = 1.f + t;",
        # Math API: errors in ulp or absolute; at these places the values are exact.
        ("__expf(x - 1)", 1),
        ("__exp10f(x - 1)", 1),
        ("__log2f(x * 8)", 3),
        ("__logf(x)", 0),
        ("__sinf(x - 1)", 0),
        ("__cosf(x - 1)", 1),
        ("__powf(x * 4, .5f)", 2),
        ("__frsqrt_rn(x * 16)", 0.25),
        ("__fsqrt_rn(x * 2)", np.sqrt(np.float32(2))),
        of=f4,
        ulp=1,
    ),
    "softmax": Kernel(
        """float v = a[t], top = v, sum;
        for (int d = 16; d; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        sum = v = expf(v - top);
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        o[t] = v / sum;""",
        f4(np.exp(np.arange(32) / 4.0) / np.exp(np.arange(32) / 4.0).sum()),
        (f4(np.arange(32) / 4),),
        ulp=8,
    ),
    "polar_coordinates": Kernel(
        """float x = a[2 * t], y = a[2 * t + 1];
        o[2 * t] = hypotf(x, y); o[2 * t + 1] = atan2f(y, x);""",
        f4([5, np.arctan2(4, 3), 1, np.pi, 0, 0, 2, -np.pi / 2, 0, np.pi, 1, -np.pi]),
        (f4([3, 4, -1, 0, 0, 0, 0, -2, -0.0, 0, -1, -0.0]),),
        block=6,
        ulp=3,
    ),
    "integral_by_threads": Kernel(
        """double sum = 0, h = 1. / 6400;
        for (int n = t; n < 6400; n += 32) { double x = (n + .5) * h; sum += 4 / (1 + x * x); }
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        o[t] = fabs(sum * h - 3.14159265358979323846) < 1e-8;""",
        f8([1] * 32),
    ),
}
