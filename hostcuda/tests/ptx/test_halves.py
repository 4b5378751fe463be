"""Half precision and bfloat16."""

import numpy as np
import pytest

from hostcuda import _build

HALF = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n====\n"


@pytest.fixture
def value(gpu):
    """Return one number of a kernel."""

    def run(body, *inputs, kind="f4", count=1, options=()):
        include = [f"-I{_build.cuda_include()}"]
        out = gpu.run(
            HALF + body, *inputs, out=(count, kind), block=1, options=(*include, *options)
        )
        return out[0] if count == 1 else out

    return run


H = np.float16
F = np.float32


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__float2half(2048.f * a) + __half(1.f * a) + __half(1.f * a)", 2048),
        ("__half(60000.f * a) + __half(60000.f * a) - __half(60000.f * a)", np.inf),
        ("__half(1.0009765625 * a + 0.0002)", H(1.0011765625)),
        ("__half(1.0 * a) / __half(3.0 * a)", H(1 / 3)),
        ("__half(65504.f * a) * __half(2.f)", np.inf),
        ("hsqrt(__half(2.f * a))", H(np.sqrt(2))),
        ("__hmax(__half(a), __half(NAN_))", 1),
        ("__hmin_nan(__half(a), __half(NAN_))", np.nan),
        (
            "__hfma(__half(a * 1.0009765625f), __half(a * 1.0009765625f), __half(-1.001953125f))",
            H(2.0**-20),
        ),
        ("__hadd_sat(__half(a), __half(a))", 1),
        ("__hneg(__half(a))", -1),
        ("__habs(__half(-a))", 1),
        ("__half(6e-8f * a)", H(6e-8)),
        ("__half(2e-8f * a)", 0),
        ("hexp2(__half(3.f * a))", 8),
        ("htrunc(__half(-2.5f * a))", -2),
        ("hrint(__half(2.5f * a))", 2),
        ("__half(a) > __half(0.5f) ? __half(2.f) : __half(3.f)", 2),
    ],
)
def test_half(value, expression, expected):
    expression = expression.replace("NAN_", "__int_as_float(0x7fffffff)")
    found = value(f"o[0] = __half2float({expression});", F(1))
    assert found == np.float32(expected) or (np.isnan(expected) and np.isnan(found))


def test_size_of_a_sum(value):
    assert value("__half x = a; o[0] = sizeof(x + x);", F(1)) == 2


@pytest.mark.parametrize(
    ("suffix", "expected"), [("rn", 2048), ("rz", 2048), ("rd", 2048), ("ru", 2050)]
)
def test_rounding_to_half(value, suffix, expected):
    assert value(f"o[0] = __half2float(__float2half_{suffix}(a));", F(2049)) == expected
    assert value(f"o[0] = __half2float(__int2half_{suffix}((int)a));", F(2049)) == expected


def test_half_to_integers(value):
    assert value("o[0] = __half2int_rn(__half(a));", F(2.5)) == 2
    assert value("o[0] = __half2int_ru(__half(a));", F(2.5)) == 3
    assert value("o[0] = __half2uint_rz(__half(a));", F(-2.5)) == 0
    assert value("o[0] = __half2short_rz(__half(a));", F(60000)) == 32767


def test_half2(value):
    body = """
    __half2 x = __floats2half2_rn(a, 2 * a), y = __float2half2_rn(3 * a);
    float2 s = __half22float2(x + y), p = __half22float2(__hfma2(x, y, x));
    float2 m = __half22float2(__hmax2(x, __float2half2_rn(1.5f)));
    __half2 c = __hgt2(x, __float2half2_rn(1.5f));
    o[0] = s.x; o[1] = s.y; o[2] = p.x; o[3] = p.y; o[4] = m.x; o[5] = m.y;
    o[6] = __low2float(c); o[7] = __high2float(c); o[8] = __hbeq2(x, x);
    o[9] = __low2float(__lowhigh2highlow(x));"""
    assert value(body, F(1), count=10).tolist() == [4, 5, 4, 8, 1.5, 2, 0, 1, 1, 2]


def test_a_product_and_a_sum_of_halves_are_fused(value):
    body = "__half x = a, y = b; o[0] = __half2float(x * x + y);"
    x = H(1 + 2**-10)
    assert value(body, F(x), F(-H(x * x))) == 2.0**-20


def test_atomics(value):
    body = """
    __shared__ __half h; __shared__ __half2 h2; __shared__ __nv_bfloat16 b;
    h = 1.f; h2 = __float2half2_rn(1.f); b = 1.f;
    atomicAdd(&h, __half(a)); atomicAdd(&h2, __floats2half2_rn(a, 2 * a));
    atomicAdd(&b, __nv_bfloat16(a));
    o[0] = __half2float(h); o[1] = __low2float(h2); o[2] = __high2float(h2);
    o[3] = __bfloat162float(b);"""
    assert value(body, F(2), count=4).tolist() == [3, 3, 5, 3]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__nv_bfloat16(256.f * a) + __nv_bfloat16(a)", 256),
        ("__float2bfloat16(1.00390625f * a)", 1),
        ("__float2bfloat16_ru(1.00390625f * a)", 1.0078125),
        ("__nv_bfloat16(3e38f * a) * __nv_bfloat16(2.f * a)", np.inf),
        ("__hfma(__nv_bfloat16(a), __nv_bfloat16(3.f), __nv_bfloat16(0.5f))", 3.5),
        ("__nv_bfloat16(a) / __nv_bfloat16(3.f)", 0.333984375),
        ("__hmax(__nv_bfloat16(a), __nv_bfloat16(2.f))", 2),
        ("__int2bfloat16_rn(257 * (int)a)", 256),
        ("__ll2bfloat16_rn((1ll << 62) + (1ll << 54) + (int)a)", 2.0**62 + 2.0**55),
        ("__ll2bfloat16_rn(-(1ll << 62) - (1ll << 54) - (int)a)", -(2.0**62) - 2.0**55),
        ("__ll2bfloat16_rn((1ll << 62) + (1ll << 54) - 1 + (int)a)", 2.0**62),
        ("__ull2bfloat16_rn((1ull << 63) + (1ull << 55) + (int)a)", 2.0**63 + 2.0**56),
    ],
)
def test_bfloat16(value, expression, expected):
    assert value(f"o[0] = __bfloat162float({expression});", F(1)) == F(expected)
