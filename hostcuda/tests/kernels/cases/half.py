"""Arithmetic and conversions of half, half2 and bfloat16.

Source: CUDA Math API, "Half Precision Intrinsics" (round to nearest even unless the name says
otherwise), "Bfloat16 Precision Intrinsics". Bits of a half: 1, 5 and 10, bias 15; of a bfloat16: 1,
8 and 7. Each number below is worked out from these.
"""

import struct

from . import Kernel, L, f4, i4, i8, np, ones, u2, u4

HEADERS = "#include <cuda_fp16.h>\n"
BF16 = "#include <cuda_bf16.h>\n"


def _half(*values):
    """Return the bits of halves."""
    return [struct.unpack("<H", struct.pack("<e", value))[0] for value in values]


_BITS = "auto bits = [](__half h) { return __half_as_ushort(h); };"
_BF = "auto bits = [](__nv_bfloat16 h) { return __bfloat16_as_ushort(h); };"
H = "__float2half"
B = "__float2bfloat16"
INF, NAN = float("inf"), float("nan")

KERNELS = {
    "sum_beyond_2048": ones(
        _BITS + f"__half h = {H}(2048.f), one = {H}(1.f);",
        ("bits(h + one + one)", _half(2048)[0]),  # a tie goes to the even 2048, twice
        ("bits(h + (one + one))", _half(2050)[0]),
        of=u2,
    ),
    "overflow_between": ones(
        f"__half h = {H}(60000.f);",
        ("__half2float(h + h - h)", INF),
        ("__half2float(h * h)", INF),
        ("__half2float(-h - h)", -INF),
        of=f4,
    ),
    "sizes": ones(
        "__half a{}; __half2 b{};",
        *[(f"sizeof({e})", n) for e, n in [("a + a", 2), ("a * a", 2), ("b + b", 4)]],
        ("sizeof(__half2) + alignof(__half2)", 8),
        of=i4,
    ),
    "from_float_rounds_to_even": ones(
        _BITS,
        # The spacing at 1 is 2^-10: 1 + 2^-11 is a tie.
        (f"bits({H}(1.f + 0.00048828125f))", 0x3C00),
        (f"bits({H}(1.f + 3 * 0.00048828125f))", 0x3C02),
        (f"bits({H}(65519.f))", 0x7BFF),
        (f"bits({H}(65520.f))", 0x7C00),
        (f"bits({H}(2.98023223876953125e-8f))", 0),  # 2^-25: a tie with 0
        (f"bits({H}(5.9604644775390625e-8f))", 1),
        (f"bits({H}(-0.f))", 0x8000),
        of=u2,
    ),
    "from_double_rounds_once": ones(
        _BITS,
        # 1 + 2^-11 + 2^-40 is above a tie; by way of float it would be the tie.
        ("bits(__double2half(1.0 + 0x1p-11 + 0x1p-40))", 0x3C01),
        ("bits(__half(1.001))", 0x3C01),
        of=u2,
    ),
    "directed_from_float": ones(
        _BITS,
        ("bits(__float2half_ru(1.0001f))", 0x3C01),
        ("bits(__float2half_rd(1.0001f))", 0x3C00),
        ("bits(__float2half_rz(-1.0009f))", 0xBC00),
        ("bits(__float2half_rd(-1.0001f))", 0xBC01),
        ("bits(__float2half_rz(1e9f))", 0x7BFF),
        ("bits(__float2half_ru(1e9f))", 0x7C00),
        of=u2,
    ),
    "to_integers": ones(
        f"__half a = {H}(2.5f), b = {H}(-3.5f), big = {H}(60000.f), nan = __ushort_as_half(0x7fff);",
        ("__half2int_rn(a)", 2),
        ("__half2int_rz(b)", -3),
        ("__half2int_ru(b)", -3),
        ("__half2int_rd(b)", -4),
        ("__half2short_rz(big)", 32767),
        ("__half2uint_rz(b)", 0),
        ("__half2int_rz(nan)", 0),
        ("(int)a", 2),
        of=i4,
    ),
    "from_integers": ones(
        _BITS,
        ("bits(__int2half_rn(2049))", _half(2048)[0]),
        ("bits(__int2half_ru(2049))", _half(2050)[0]),
        ("bits(__uint2half_rn(70000u))", 0x7C00),
        ("bits(__short2half_rn(-32768))", _half(-32768)[0]),
        ("bits(__int2half_rz(70000))", 0x7BFF),
        of=u2,
    ),
    "fma_rounds_once": ones(
        _BITS + "__half a = __ushort_as_half(0x3c01), one = __ushort_as_half(0x3c00);",
        # (1 + 2^-10)^2 - 1 - 2^-9 = 2^-20, which is subnormal in half: 16 * 2^-24.
        ("bits(__hfma(a, a, __hneg(__ushort_as_half(0x3c02))))", 16),
        ("bits(__hsub(__hmul_rn(a, a), __ushort_as_half(0x3c02)))", 0),
        ("bits(__hfma_sat(a, a, one))", 0x3C00),
        ("bits(__hfma_relu(a, a, __ushort_as_half(0xc400)))", 0),
        of=u2,
    ),
    "saturating": ones(
        _BITS + f"__half a = {H}(0.75f), nan = __ushort_as_half(0x7fff);",
        ("bits(__hadd_sat(a, a))", 0x3C00),
        (f"bits(__hsub_sat(a, {H}(1.f)))", 0),
        ("bits(__hmul_sat(a, a))", _half(0.5625)[0]),
        ("bits(__hadd_sat(a, nan))", 0),
        of=u2,
    ),
    "compare_with_nan": ones(
        f"__half a = {H}(1.f), n = __ushort_as_half(0x7e00);",
        ("__heq(a, n) + 2 * __hne(a, n) + 4 * __hlt(a, n) + 8 * __hgeu(a, n)", 8),
        ("__hneu(a, n) + 2 * __hequ(a, n) + 4 * __hisnan(n) + 8 * __hisnan(a)", 7),
        (f"__hisinf({H}(1e9f)) + 10 * __hisinf({H}(-1e9f)) + 100 * __hisinf(a)", -9),
        ("(a < n) + 2 * (a != n) + 4 * (n == n)", 2),
        of=i4,
    ),
    "min_max": ones(
        _BITS + f"__half a = {H}(1.f), n = __ushort_as_half(0x7e00), z = {H}(0.f), m = {H}(-0.f);",
        ("bits(__hmax(a, n))", 0x3C00),
        ("bits(__hmin(n, a))", 0x3C00),
        ("bits(__hmax_nan(a, n))", 0x7FFF),
        ("bits(__hmax(m, z))", 0),
        ("bits(__hmin(z, m))", 0x8000),
        of=u2,
    ),
    "divide_and_roots": ones(
        _BITS + f"__half a = {H}(1.f), b = {H}(3.f);",
        ("bits(a / b)", 0x3555),
        ("bits(hsqrt(__float2half(2.25f)))", _half(1.5)[0]),
        ("bits(hrcp(__float2half(4.f)))", _half(0.25)[0]),
        ("bits(a / __float2half(0.f))", 0x7C00),
        ("bits(hsqrt(__float2half(-1.f))) & 0x7c00", 0x7C00),
        of=u2,
    ),
    "rounding_functions": ones(
        f"__half a = {H}(2.5f), b = {H}(-1.5f);",
        ("__half2float(hrint(a))", 2),
        ("__half2float(hfloor(b))", -2),
        ("__half2float(hceil(b))", -1),
        ("__half2float(htrunc(b))", -1),
        ("__half2float(__habs(b))", 1.5),
        of=f4,
    ),
    "half2_arithmetic": ones(
        """auto bits = [](__half2 h) { return *(unsigned *)&h; };
        __half2 a = __floats2half2_rn(1.f, 2.f), b = __floats2half2_rn(3.f, 5.f);""",
        ("bits(__hadd2(a, b))", _half(7)[0] << 16 | _half(4)[0]),
        ("bits(__hmul2(a, b))", _half(10)[0] << 16 | _half(3)[0]),
        ("bits(__hfma2(a, b, a))", _half(12)[0] << 16 | _half(4)[0]),
        ("bits(__lowhigh2highlow(a))", _half(1)[0] << 16 | _half(2)[0]),
        ("bits(__lows2half2(a, b))", _half(3)[0] << 16 | _half(1)[0]),
        ("bits(__highs2half2(a, b))", _half(5)[0] << 16 | _half(2)[0]),
        ("bits(__hgt2(b, __half2half2(__float2half(4.f))))", 0x3C000000),
        ("__hgt2_mask(b, __half2half2(__float2half(4.f)))", 0xFFFF0000),
        ("__hbeq2(a, a) + 2 * __hblt2(b, a)", 1),
        of=u4,
    ),
    "half_shuffles": Kernel(
        "o[t] = __half2float(__shfl_xor_sync(~0u, __int2half_rn(t), 1));", f4(L ^ 1)
    ),
    "subnormal_half": ones(
        _BITS,
        ("bits(__ushort_as_half(1) + __ushort_as_half(2))", 3),
        ("bits(__ushort_as_half(0x400) - __ushort_as_half(1))", 0x3FF),
        ("bits(__hmul(__ushort_as_half(0x400), __float2half(0.5f)))", 0x200),
        ("bits(__float2half(__half2float(__ushort_as_half(5))))", 5),
        of=u2,
    ),
    # Beside floats that are flushed to zero: CuPy's options have -ftz=true.
    "subnormal_bf16": Kernel(
        """auto x = __ushort_as_bfloat16(a[0]); __nv_bfloat162 y = __floats2bfloat162_rn(b, c * c);
        o[0] = __bfloat16_as_ushort(__hadd(x, x)); o[1] = *(unsigned *)&y; o[2] = __hlt(x, __hadd(x, x));
        o[3] = __float_as_uint(b * c);""",
        u4([2, 0x40800001, 1, 0]),
        inputs=(u2([1]), np.float32(9.2e-41), np.float32(2)),
        headers=BF16,
        block=1,
    ),
    "bf16_from_integer": Kernel(
        "o[0] = __bfloat16_as_ushort(__ll2bfloat16_rn(a[0]));",
        u4([0x5E81]),
        inputs=(i8([2**62 + 2**54 + 1]),),
        headers=BF16,
        block=1,
    ),
    "bf16_from_float": ones(
        _BF,
        # The spacing at 1 is 2^-7: 1 + 2^-8 is a tie.
        (f"bits({B}(1.00390625f))", 0x3F80),
        (f"bits({B}(1.01171875f))", 0x3F82),
        (f"bits({B}(3.4e38f))", 0x7F80),
        ("bits(__float2bfloat16_rz(3.4e38f))", 0x7F7F),
        ("bits(__float2bfloat16_ru(1.0001f))", 0x3F81),
        ("bits(__float2bfloat16_rd(-1.0001f))", 0xBF81),
        of=u2,
        headers=BF16,
    ),
    "bf16_arithmetic": ones(
        _BF + f"__nv_bfloat16 a = {B}(256.f), one = {B}(1.f), b = __ushort_as_bfloat16(0x3f81);",
        ("bits(a + one)", 0x4380),  # the spacing at 256 is 2: a tie, to even
        ("bits(a + one + one + one)", 0x4380),
        ("bits(__hfma(b, b, __hneg(__ushort_as_bfloat16(0x3f82))))", 0x3880),  # 2^-14
        ("bits(one / __float2bfloat16(3.f))", 0x3EAB),
        ("bits(__hmax(one, b))", 0x3F81),
        ("bits(__int2bfloat16_rn(257))", 0x4380),
        of=u2,
        headers=BF16,
    ),
    "bf16x2": ones(
        """auto bits = [](__nv_bfloat162 h) { return *(unsigned *)&h; };
        __nv_bfloat162 a = __floats2bfloat162_rn(1.f, -2.f);""",
        ("bits(a)", 0xC0003F80),
        ("bits(__hadd2(a, a))", 0xC0804000),
        ("bits(__habs2(a))", 0x40003F80),
        of=u4,
        headers=BF16,
    ),
    "atomics_of_half2": Kernel(
        """__shared__ __half2 s;
        if (!t) s = __floats2half2_rn(0.f, 0.f);
        __syncthreads();
        atomicAdd(&s, __floats2half2_rn(1.f, 2.f));
        __syncthreads();
        if (!t) { o[0] = __low2float(s); o[1] = __high2float(s); }""",
        f4([32, 64]),
    ),
    "integer_hadd_beside": ones(
        "int x = 3, y = 6; unsigned v = ~0u;",
        ("__hadd(x, y)", 4),
        ("__rhadd(x, y)", 5),
        ("__uhadd(v, v) == v", 1),
        of=i4,
    ),
    "loads_of_vectors": Kernel(
        """const __half2 *h = (const __half2 *)a;
        float2 f = __half22float2(h[t]);
        o[t] = f.x + f.y;""",
        f4(L * 4 + 1),
        inputs=(u2(_half(*map(float, range(64)))),),
    ),
    "dot_product": Kernel(
        """const __half2 *x = (const __half2 *)a, *y = (const __half2 *)b;
        __half2 p = __hmul2(x[t], y[t]); float sum = __low2float(p) + __high2float(p);
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        o[t] = sum;""",
        f4(L * 0 + int((np.arange(64) % 9) @ (np.arange(64) % 5))),
        inputs=(u2(_half(*np.arange(64) % 9 * 1.0)), u2(_half(*np.arange(64) % 5 * 1.0))),
    ),
    "polynomial_of_halves": ones(
        _BITS + f"__half x = {H}(0.5f + t), s = {H}(1.f);",
        # 1, 1.5, 1.75, 1.875
        (
            f"bits(__hfma(__hfma(__hfma(s, x, {H}(1.f)), x, {H}(1.f)), x, {H}(1.f)))",
            _half(1.875)[0],
        ),
        ("bits(-x * x + s / x)", _half(1.75)[0]),
        ("bits(x += s)", _half(1.5)[0]),
        (f"bits(__hsub(x, {H}(1.5f)))", 0),
        of=u2,
    ),
    "pairs_by_masks": ones(
        "auto bits = [](__half2 h) { return *(unsigned *)&h; };"
        "__half2 a = __floats2half2_rn(1.f + t, -2.f), b = __floats2half2_rn(-1.f, 5.f);",
        ("bits(__hmax2(a, b))", _half(5)[0] << 16 | _half(1)[0]),
        ("bits(__hmin2(a, b))", _half(-2)[0] << 16 | _half(-1)[0]),
        ("bits(__habs2(a))", _half(2)[0] << 16 | _half(1)[0]),
        ("bits(__hneg2(a))", _half(2)[0] << 16 | _half(-1)[0]),
        ("bits(__hfma2_relu(a, b, a))", _half(0)[0] << 16 | _half(0)[0]),
        ("bits(h2rint(__hmul2(b, __float2half2_rn(0.5f))))", _half(2)[0] << 16 | _half(-0.0)[0]),
        ("bits(__hadd2_sat(a, b))", 0x3C000000),
        (
            "bits(__low2half2(b)) - bits(__high2half2(a))",
            0xBC00BC00 - 0xC0004000 + 0x4000 - 0xC000 & 0xFFFFFFFF,
        ),
        of=u4,
    ),
    "sums_of_bf16": Kernel(
        """__nv_bfloat16 s = __float2bfloat16(0.f); float f = 0;
        for (int n = 0; n < 300; n++) { s += __float2bfloat16(1.f); f += __bfloat162float(__float2bfloat16(1.f / 3)); }
        o[0] = __bfloat162float(s); o[1] = f;""",
        # 8 bits: at 256, the spacing is 2, and 257 is rounded to 256. A third is 171 / 512.
        f4([256, 300 * 171 / 512]),
        block=1,
        headers=BF16,
    ),
}
