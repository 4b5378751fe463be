"""Floating point: contraction, subnormal numbers, NaN, directed rounding, conversions."""

import numpy as np
import pytest


def value(gpu, expression, *inputs, kind="f4", options=()):
    """Return one number of a kernel; inputs keep NVRTC from computing it."""
    return gpu.run(f"o[0] = {expression};", *inputs, out=(1, kind), block=1, options=options)[0]


F = np.float32
EPS = F(1 + 2**-12)


def test_a_product_and_a_sum_are_fused(gpu):
    assert value(gpu, "a * a + b", EPS, -F(EPS * EPS)) == F(2.0**-24)
    assert value(gpu, "a * a - b", EPS, F(EPS * EPS)) == F(2.0**-24)
    assert value(gpu, "b - a * a", EPS, F(EPS * EPS)) == F(-(2.0**-24))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p = a * a; o[0] = p + b; o[1] = b - p; o[2] = p + 1;", 2.0**-24),
        ("p = a * a; float q = -p; o[0] = q - b;", -(2.0**-24)),
        ("p = a * a; if (c > 1) o[0] = p + b; else o[1] = p - c;", 2.0**-24),
        ("p = a * a; __syncthreads(); o[0] = p + b;", 2.0**-24),
        ("p = a * a; o[0] = p + b; o[1] = p;", 0),
        ("p = a * a; o[0] = p + b; o[1] = p * c;", 0),
        ("p = a * a; o[0] = max(p + b, p);", EPS * EPS),
        ("p = a * a; float q = c * c; o[1] = p + q; o[0] = p - q;", -float.fromhex("0x1.001cp-10")),
    ],
)
def test_products_with_several_uses(gpu, body, expected):
    """The numbers of an H200: a product is fused if all its uses are sums."""
    c = F(1 + 3 * 2.0**-12)
    out = gpu.run(f"float p; {body}", EPS, -F(EPS * EPS), c, out=(3, "f4"), block=1)
    assert out[0] == F(expected)


def test_no_fusing_if_asked(gpu):
    assert value(gpu, "a * a + b", EPS, -F(EPS * EPS), options=("-fmad=false",)) == 0
    assert value(gpu, "__fmul_rn(a, a) + b", EPS, -F(EPS * EPS)) == 0


def test_a_product_with_one_flushes(gpu):
    body = 'float y; asm("mul.ftz.f32 %0, %1, 0f3F800000;" : "=f"(y) : "f"(a)); o[0] = y;'
    assert gpu.run(body, F(1e-39), out=(1, "f4"), block=1, options=("-ftz=true",))[0] == 0


def test_subnormal_numbers(gpu):
    a = F(1e-20)
    assert value(gpu, "a * a", a) == a * a != 0
    assert value(gpu, "a * a", a, options=("-ftz=true",)) == 0
    assert value(gpu, "a + a", F(1e-39), options=("-ftz=true",)) == 0
    assert value(gpu, "a * b", F(1e-39), F(1e10), options=("-ftz=true",)) == 0
    assert (
        value(
            gpu,
            "(double)(a * a) + 1e-300 * b",
            a,
            np.float64(1e-10),
            kind="f8",
            options=("-ftz=true",),
        )
        == 1e-310
    )
    assert value(gpu, "fmaxf(a, b)", F(1e-39), F(-1), options=("-ftz=true",)) == 0


BF16 = "#include <cuda_bf16.h>\n#define B(x) __ushort_as_bfloat16(x)\n====\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("o[0] = __bfloat16_as_ushort(__hadd(B(1), B(o[2] + 2)));", 3),
        ("o[0] = __hlt(B(1), B(o[2] + 2));", 1),
        ("o[0] = __bfloat16_as_ushort(__float2bfloat16_rn(b));", 0x8001),
        ("__nv_bfloat162 v = __floats2bfloat162_rn(b, 0); o[0] = *(int *)&v;", 0x8001),
        ("__shared__ float s; s = 0; atomicAdd(&s, b); o[0] = __float_as_int(s) << 1;", 2**17),
        (
            "__shared__ double s; s = 0; atomicAdd(&s, __longlong_as_double(1 + o[2]));"
            "o[0] = __double_as_longlong(s);",
            1,
        ),
        ('asm("slct.s32.f32 %0, 7, 9, %1;" : "=r"(o[0]) : "f"(b));', 9),
        ('asm("cvt.rmi.s32.f32 %0, %1;" : "=r"(o[0]) : "f"(b));', -1),
    ],
    ids=["bf16", "bf16 <", "to bf16", "to bf16x2", "float", "double", "slct", "cvt"],
)
def test_what_keeps_subnormals_beside_arithmetic_that_flushes(gpu, body, expected):
    options = ("-ftz=true", *_include())
    b = F(-(2.0**-133))
    out = gpu.run(f"{BF16}o[1] = a * a; {body}", F(2), b, out=(3, "i4"), block=1, options=options)
    assert out[:2].tolist() == [expected, 4]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("set.lt.u32.f32 %0, %1, %2;", 0xFFFFFFFF),
        ("slct.u32.f32 %0, %3, 0, %1;", 0xFFC00001),
        ("slct.f32.f32 %0, %3, 0f00000000, %1;", 0xFFC00001),
        ("cvt.rzi.s32.f32 %0, %4; .reg .f32 x; add.f32 x, %0, %0; add.f32 x, x, %0;", 0xFFFFFFFF),
    ],
    ids=["set", "slct", "slct.f32", "cvt"],
)
def test_words_that_comparisons_of_floats_give(gpu, code, expected):
    """They are no floats, whose NaN has other bits."""
    bits = np.uint32(0xFFC00001)
    names = ': "=r"(o[0]) : "f"(a), "f"(b), "r"(c), "f"(d)'
    body = f'asm("{{ {code} }}" {names});'
    given = F(1), F(2), bits, F(-1)
    assert gpu.run(body, *given, out=(1, "u4"), block=1)[0] == expected


def test_atomic_sums_flush_outside_of_shared_memory(gpu):
    assert gpu.run("atomicAdd(o, a);", F(1e-40), out=(1, "f4"), block=1)[0] == 0


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("max(a, 0.f)", 0),
        ("fmaxf(a, -2.f)", -2),
        ("fminf(3.f, a)", 3),
        ("__saturatef(a)", 0),
        ("(int)a", 0),
        ("(unsigned char)a", 0),
        ("(float)(long long)a", -(2.0**63)),
        ("isnan(a) ? 5 : 6", 5),
        ("a < 1 ? 1 : a >= 1 ? 2 : 3", 3),
        ("a != a", 1),
    ],
)
def test_nan(gpu, expression, expected):
    assert value(gpu, expression, F("nan")) == expected


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("expression", ["-a", "fabs(a)", "-fabs(a)", "-(a + 1)", "fmin(a, a)"])
def test_a_double_nan_keeps_its_sign(gpu, expression, sign):
    """A GPU adds zero for the sign or the size, and a sum with NaN is that NaN."""
    nan = np.uint64(0x7FF8000000000123 | sign << 63).view(np.float64)
    found = gpu.run(f"o[0] = {expression};", nan, out=(1, "f8"), block=1)
    assert found.view(np.uint64)[0] == nan.view(np.uint64)


@pytest.mark.parametrize("expression", ["-a", "fabsf(a)", "-fabsf(a)", "-(a + 1)"])
def test_the_nan_of_a_float_is_the_canonical_one(gpu, expression):
    nan = np.uint32(0xFFC00123).view(np.float32)
    found = gpu.run(f"o[0] = {expression};", nan, out=(1, "f4"), block=1)
    assert found.view(np.uint32)[0] == 0x7FFFFFFF


def test_min_of_double_and_nan(gpu):
    assert value(gpu, "min(a, 1.0)", np.float64("nan"), kind="f8") == 1


def test_signs_of_zeros(gpu):
    assert np.signbit(value(gpu, "fminf(a, b)", F(0), F(-0.0)))
    assert not np.signbit(value(gpu, "fmaxf(a, b)", F(-0.0), F(0)))


@pytest.mark.parametrize(("suffix", "steps"), [("rn", 0), ("ru", 1), ("rd", 0), ("rz", 0)])
def test_directed_rounding_of_floats(gpu, suffix, steps):
    one, tiny = F(1), F(1e-10)
    nearest = F(1) if not steps else np.nextafter(F(1), F(2))
    assert value(gpu, f"__fadd_{suffix}(a, b)", one, tiny) == nearest
    third = np.float64(1) / 3
    low = F(third) if np.float64(F(third)) < third else np.nextafter(F(third), F(0))
    high = np.nextafter(low, F(1))
    expected = {"rn": F(third), "ru": high, "rd": low, "rz": low}[suffix]
    assert value(gpu, f"__fdiv_{suffix}(a, b)", F(1), F(3)) == expected
    assert (
        value(gpu, f"__fdiv_{suffix}(a, b)", F(-1), F(3))
        == -{"rn": F(third), "ru": low, "rd": high, "rz": low}[suffix]
    )
    assert value(gpu, f"__frcp_{suffix}(a)", F(3)) == expected
    root = np.sqrt(np.float64(2))
    near = F(root)
    below = near if np.float64(near) < root else np.nextafter(near, F(0))
    assert (
        value(gpu, f"__fsqrt_{suffix}(a)", F(2))
        == {"rn": near, "ru": np.nextafter(below, F(9)), "rd": below, "rz": below}[suffix]
    )


def test_directed_rounding_of_doubles(gpu):
    third = 1 / 3  # it is below
    assert value(gpu, "__ddiv_ru(a, b)", 1.0, 3.0, kind="f8") == np.nextafter(third, 1)
    assert value(gpu, "__ddiv_rd(a, b)", 1.0, 3.0, kind="f8") == third
    assert value(gpu, "__dadd_ru(a, b)", 1.0, 1e-30, kind="f8") == np.nextafter(1, 2)
    assert value(gpu, "__dsub_rd(a, b)", 1.0, 1e-30, kind="f8") == np.nextafter(1, 0)
    assert value(gpu, "__dmul_rz(a, b)", 1 + 2.0**-30, 1 + 2.0**-30, kind="f8") == 1 + 2.0**-29
    assert value(gpu, "__fma_ru(a, b, 1e-40)", 1.0, 1.0, kind="f8") == np.nextafter(1, 2)


@pytest.mark.parametrize(
    ("expression", "x", "expected"),
    [
        ("(int)a", 3e9, 2**31 - 1),
        ("(int)a", -3e9, -(2**31)),
        ("(unsigned)a", -5.0, 0),
        ("(unsigned)a", 5e9, 2**32 - 1),
        ("__float2int_rn(a)", 2.5, 2),
        ("__float2int_rn(a)", 3.5, 4),
        ("__float2int_ru(a)", 2.1, 3),
        ("__float2int_rd(a)", -2.1, -3),
        ("__float2int_rz(a)", -2.9, -2),
        ("rintf(a)", 0.5, 0),
        ("roundf(a)", 0.5, 1),
        ("floorf(a)", -0.5, -1),
        ("truncf(a)", -1.5, -1),
        ("__double2float_ru(1.0 + a)", 2.0**-40, np.nextafter(F(1), F(2))),
        ("__double2float_rd(1.0 - a)", 2.0**-40, np.nextafter(F(1), F(0))),
        ("__int2float_rz(16777217 + (int)a)", 0.0, 16777216),
        ("__int2float_ru(16777217 + (int)a)", 0.0, 16777218),
        ("__ull2float_rn(0xffffffffffffffffull - (unsigned long long)a)", 0.0, 2.0**64),
        ("__ll2float_rd(9223372036854775807ll - (long long)a)", 0.0, 2.0**63 - 2.0**39),
        ("__float_as_int(a)", 1.0, 0x3F800000),
        ("copysignf(a, -0.f)", 3.0, -3),
        ("fabsf(a)", -3.0, 3),
        ("__saturatef(a)", 1.5, 1),
        ("__saturatef(a)", -1.5, 0),
        ("fmodf(a, 3.f)", 7.5, 1.5),
        ("ldexpf(a, 4)", 1.5, 24),
        ("logbf(a)", 9.0, 3),
        ("scalbnf(a, -3)", 8.0, 1),
        ("nextafterf(a, 2.f)", 1.0, np.nextafter(F(1), F(2))),
    ],
)
def test_conversions(gpu, expression, x, expected):
    assert value(gpu, expression, F(x), kind="f8") == float(expected)


@pytest.mark.parametrize(
    ("expression", "x", "expected", "error"),
    [
        ("erfinv(a)", 1e-20, 8.862269254527581e-21, 1e-15),
        ("normcdfinv(a)", 1e-300, -37.0471, 1e-5),
        ("sinpi(a)", 1.0, 0, 0),
        ("norm3d(a, a, a)", 1e200, 1.7320508075688772e200, 1e-15),
        ("tgamma(a)", 5.0, 24, 1e-14),
        ("lgamma(a)", 10.0, 12.801827480081469, 1e-14),
        ("cyl_bessel_i0(a)", 1.0, 1.2660658777520084, 1e-14),
        ("j0(a)", 2.0, 0.22389077914123567, 1e-14),
        ("exp(a)", 700.0, np.exp(700.0), 1e-14),
        ("log1p(a)", 1e-20, 1e-20, 1e-15),
        ("expm1(a)", 1e-20, 1e-20, 1e-15),
        ("sin(a)", 1e22, -0.8522008497671888, 1e-14),
        ("cbrt(a)", 27.0, 3, 1e-15),
        ("rsqrt(a)", 4.0, 0.5, 1e-15),
        ("atan2(a, -a)", 1.0, 2.356194490192345, 1e-15),
        ("pow(a, 0.5)", 2.0, np.sqrt(2), 1e-15),
        ("erfc(a)", 10.0, 2.088487583762545e-45, 1e-13),
        ("hypot(a, a)", 3e200, 4.242640687119285e200, 1e-15),
    ],
)
def test_functions_of_doubles(gpu, expression, x, expected, error):
    assert value(gpu, expression, x, kind="f8") == pytest.approx(expected, rel=error, abs=0)


@pytest.mark.parametrize(
    ("expression", "function", "error"),
    [
        ("sinf(a[i])", np.sin, 2e-7),
        ("cosf(a[i])", np.cos, 2e-7),
        ("tanf(a[i])", np.tan, 5e-7),
        ("expf(a[i])", np.exp, 3e-7),
        ("logf(a[i] + 11)", lambda x: np.log(x + 11), 3e-7),
        ("atanf(a[i])", np.arctan, 3e-7),
        ("tanhf(a[i])", np.tanh, 3e-7),
        ("__sinf(a[i] / 4)", lambda x: np.sin(x / 4), 5e-6),
        ("__expf(a[i])", np.exp, 2e-6),
        ("__logf(a[i] + 11)", lambda x: np.log(x + 11), 2e-6),
        ("__fdividef(a[i], 3)", lambda x: x / 3, 5e-7),
        ("__powf(a[i] + 11, 1.5f)", lambda x: (x + 11) ** 1.5, 3e-6),
        ("rsqrtf(a[i] + 11)", lambda x: (x + 11) ** -0.5, 3e-7),
        ("powf(a[i] + 11, 2.5f)", lambda x: (x + 11) ** 2.5, 3e-6),
        ("sqrtf(a[i] + 11)", lambda x: np.sqrt(x + 11), 1e-7),
    ],
)
@pytest.mark.parametrize("options", [(), ("-use_fast_math",)], ids=["exact", "fast"])
def test_functions_of_floats(gpu, expression, function, error, options):
    x = np.linspace(-10, 10, 64, dtype="f4")
    out = gpu.run(f"o[i] = {expression};", x, out=(64, "f4"), block=64, options=options)
    error = max(error, 1e-5) if options else error
    assert np.allclose(out, function(x.astype("f8")), rtol=error, atol=error)


@pytest.mark.parametrize("kind", ["", "b"])
def test_division_of_floats_by_zero(gpu, kind):
    assert value(gpu, "a / b", F(1), F(0)) == np.inf
    assert np.isnan(value(gpu, "a / b", F(0), F(0)))


def _include():
    from hostcuda import _build

    return [f"-I{_build.cuda_include()}"]
