"""Integer intrinsics, SIMD in a word, and the edges of division and shifts.

Source: CUDA Math API, "Integer Intrinsics" and "SIMD Intrinsics"; CUDA C++ Programming Guide and PTX
ISA: "div" by zero gives an unspecified value (not tested), shifts of C beyond the width are
undefined (tested as instructions of PTX alone, which clamp, or as intrinsics, which say what they do).
"""

from . import Kernel, i4, i8, np, ones, u4, u8

M = 0xFFFFFFFF
LOW = -(2**31)


def _bytes(word):
    """Return a word's bytes as numbers with a sign, the lowest first."""
    return [(word >> s & 255) - (word >> s & 128) * 2 for s in (0, 8, 16, 24)]


def _word(values, bits=8):
    """Return the word of these fields, the lowest first."""
    return sum((int(v) & (1 << bits) - 1) << bits * n for n, v in enumerate(values))


X, Y = 0x80FF7F01, 0x01027FFE
SX, SY = _bytes(X), _bytes(Y)
UX, UY = [v & 255 for v in SX], [v & 255 for v in SY]
_XY = f"unsigned x = {X:#x}u + t, y = {Y:#x}u + t;"

KERNELS = {
    "mul24": ones(
        "int n = 0x01000003 + t;",
        ("__mul24(n, 7)", 21),
        ("__mul24(-3, 5)", -15),
        ("__mul24(0x00800000, 1)", -0x800000),
        ("__umul24(n, 0xff000002)", 6),
        of=i4,
    ),
    "mulhi": ones(
        "int n = t + 0x7fffffff; unsigned u = ~0u - t;",
        ("__mulhi(n, n)", 0x3FFFFFFF),
        ("__mulhi(-1, 1)", -1),
        ("__umulhi(u, u)", -2),
        ("__mulhi(0x80000000, 0x80000000)", 0x40000000),
        of=i4,
    ),
    "mulhi_of_64_bits": ones(
        "long long n = t + (1ll << 62);",
        ("__mul64hi(n, 8)", 2),
        ("__mul64hi(-n, 8)", -2),
        ("__umul64hi(~0ull, ~0ull)", -2),
        of=i8,
    ),
    "hadd_rhadd": ones(
        "int big = 0x7fffffff - t; unsigned u = ~0u - t;",
        ("__hadd(big, big)", 0x7FFFFFFF),
        ("__hadd(-3, 0)", -2),
        ("__rhadd(-3, 0)", -1),
        ("__rhadd(big, big - 1)", 0x7FFFFFFF),
        ("__uhadd(u, 1u)", LOW),
        ("__urhadd(u, 0u)", LOW),
        of=i4,
    ),
    "sad": ones(
        "int low = t - 0x7fffffff - 1;",
        ("__sad(5, -7, 100)", 112),
        ("__sad(low, 0x7fffffff, 1u)", 0),  # 2^32 - 1 + 1
        ("__usad(5u, 0xfffffff9u, 0u)", 0xFFFFFFF4),
        of=u4,
    ),
    "clz_ffs_popc": ones(
        "int z = t;",
        ("__clz(z)", 32),
        ("__clz(z + 1)", 31),
        ("__clz(z - 1)", 0),
        ("__clzll((long long)z)", 64),
        ("__clzll(1ll << 40)", 23),
        ("__ffs(z)", 0),
        ("__ffs(z + 8)", 4),
        ("__ffsll((long long)z)", 0),
        ("__ffsll(1ll << 63)", 64),
        ("__popc(z - 1)", 32),
        ("__popcll(~0ull << 7)", 57),
        of=i4,
    ),
    "brev": ones(
        "unsigned n = t + 1;",
        ("__brev(n)", 0x80000000),
        ("__brev(0x12345678u)", 0x1E6A2C48),
        ("__brevll(n)", 1 << 63),
        ("__brevll(0x123456789abcdef0ull)", 0x0F7B3D591E6A2C48),
        of=u8,
    ),
    "byte_perm": ones(
        "unsigned x = 0x44332211u + t, y = 0x88776655u + t;",
        ("__byte_perm(x, y, 0x3210)", 0x44332211),
        ("__byte_perm(x, y, 0x7654)", 0x88776655),
        ("__byte_perm(x, y, 0x0123)", 0x11223344),
        ("__byte_perm(x, y, 0x1357)", 0x22446688),
        of=u4,
    ),
    "funnel_shifts": ones(
        "unsigned lo = 0x89abcdefu + t, hi = 0x01234567u + t; int n = t + 40;",
        ("__funnelshift_l(lo, hi, 8)", 0x23456789),
        ("__funnelshift_r(lo, hi, 8)", 0x6789ABCD),
        ("__funnelshift_l(lo, hi, n)", 0x23456789),  # by 40 & 31
        ("__funnelshift_lc(lo, hi, n)", 0x89ABCDEF),  # by min(40, 32)
        ("__funnelshift_rc(lo, hi, n)", 0x01234567),
        ("__funnelshift_l(lo, hi, 0)", 0x01234567),
        of=u4,
    ),
    "dp4a": ones(
        "int a = 0x80ff7f01 + t, b = 0x7f807f02 + t;",
        # -128 * 127 + -1 * -128 + 127 * 127 + 1 * 2
        ("__dp4a(a, b, 5)", -128 * 127 + 128 + 127 * 127 + 2 + 5),
        ("__dp4a((unsigned)a, (unsigned)b, 5u)", 128 * 127 + 255 * 128 + 127 * 127 + 2 + 5),
        ("__dp4a((int)0x80808080, (int)0x80808080, 0)", 4 * 16384),
        of=i4,
    ),
    "dp2a": ones(
        "int a = 0x8000ffff + t, b = 0x7f80fe03 + t;",
        # The halves -1 and -32768 by the bytes 3 and -2, or -128 and 127
        ("__dp2a_lo(a, b, 1)", -3 + 65536 + 1),
        ("__dp2a_hi(a, b, 1)", 128 - 32768 * 127 + 1),
        of=i4,
    ),
    "vadd4": ones(
        _XY,
        ("__vadd4(x, y)", _word(p + q for p, q in zip(UX, UY, strict=True))),
        ("__vsub4(x, y)", _word(p - q for p, q in zip(UX, UY, strict=True))),
        ("__vaddss4(x, y)", _word(np.clip(np.add(SX, SY), -128, 127))),
        ("__vaddus4(x, y)", _word(np.clip(np.add(UX, UY), 0, 255))),
        ("__vsubss4(x, y)", _word(np.clip(np.subtract(SX, SY), -128, 127))),
        ("__vsubus4(x, y)", _word(np.clip(np.subtract(UX, UY), 0, 255))),
        of=u4,
    ),
    "vadd2": ones(
        "unsigned x = 0x7fff8000u + t, y = 0x0001ffffu + t;",
        ("__vadd2(x, y)", 0x80007FFF),
        ("__vaddss2(x, y)", 0x7FFF8000),
        ("__vaddus2(x, y)", 0x8000FFFF),
        ("__vsub2(x, y)", 0x7FFE8001),
        ("__vavgs2(0x00030005u, 0x00040008u)", 0x00040007),
        ("__vhaddu2(0x00030005u, 0x00040008u)", 0x00030006),
        of=u4,
    ),
    "vmin_vmax_4": ones(
        _XY,
        ("__vmins4(x, y)", _word(np.minimum(SX, SY))),
        ("__vmaxs4(x, y)", _word(np.maximum(SX, SY))),
        ("__vminu4(x, y)", _word(np.minimum(UX, UY))),
        ("__vmaxu4(x, y)", _word(np.maximum(UX, UY))),
        of=u4,
    ),
    "vabs_vneg": ones(
        _XY,
        ("__vabs4(x)", _word(abs(v) for v in SX)),  # |-128| wraps to 0x80
        ("__vabsss4(x)", _word(min(abs(v), 127) for v in SX)),
        ("__vneg4(x)", _word(-v for v in SX)),
        ("__vabsdiffu4(x, y)", _word(abs(p - q) for p, q in zip(UX, UY, strict=True))),
        ("__vsadu4(x, y)", sum(abs(p - q) for p, q in zip(UX, UY, strict=True))),
        of=u4,
    ),
    "vcmp_vset": ones(
        _XY,
        ("__vcmpeq4(x, y)", _word(255 * (p == q) for p, q in zip(UX, UY, strict=True))),
        ("__vcmpgts4(x, y)", _word(255 * (p > q) for p, q in zip(SX, SY, strict=True))),
        ("__vcmpltu4(x, y)", _word(255 * (p < q) for p, q in zip(UX, UY, strict=True))),
        ("__vsetges4(x, y)", _word(p >= q for p, q in zip(SX, SY, strict=True))),
        ("__vsetne2(0x00010002u + t, 0x00010003u)", 1),
        of=u4,
    ),
    "dpx": ones(
        "int x = t + 7;",
        ("__viaddmax_s32(x, -9, 3)", 3),
        ("__viaddmin_s32(x, -9, 3)", -2),
        ("__vimax3_s32(x, -9, 30)", 30),
        ("__vimin3_s32(x, -9, 30)", -9),
        ("__vimax_s32_relu(-x, -9)", 0),
        ("__viaddmax_s32_relu(x, -9, -3)", 0),
        of=i4,
    ),
    "division_to_zero": Kernel(
        "for (int n = 0; n < 6; n++) { o[2 * n] = a[n] / b[n]; o[2 * n + 1] = a[n] % b[n]; }",
        i4([3, 1, -3, -1, -3, 1, 3, -1, 0, 5, -(2**30), 0]),
        inputs=(i4([7, -7, 7, -7, 5, LOW]), i4([2, 2, -2, -2, 9, 2])),
        block=1,
    ),
    "division_unsigned": Kernel(
        "for (int n = 0; n < 4; n++) { o[2 * n] = a[n] / b[n]; o[2 * n + 1] = a[n] % b[n]; }",
        u4([M // 7, M % 7, 1, 0, 0, M - 1, 0x80000000 // 3, 0x80000000 % 3]),
        inputs=(u4([M, M, M - 1, 0x80000000]), u4([7, M, M, 3])),
        block=1,
    ),
    "division_of_64_bits": Kernel(
        "for (int n = 0; n < 4; n++) { o[2 * n] = a[n] / b[n]; o[2 * n + 1] = a[n] % b[n]; }",
        i8([10**17, 0, -(10**17) // 1, -5, -142857142857, -1, -(2**62), 0]),
        inputs=(i8([10**18, -(10**18) - 5, 10**12 * -1, -(2**63)]), i8([10, 10, 7, 2])),
        block=1,
    ),
    "division_by_constants": Kernel(
        "o[0] = a[0] / 7; o[1] = a[0] % 7; o[2] = a[1] / 10; o[3] = a[1] % 8; o[4] = a[1] / -16;",
        i4([LOW // 7 + 1, LOW + 7 * 306783378, -12, -7, 7]),
        inputs=(i4([LOW, -127]),),
        block=1,
    ),
    "division_by_0_does_not_stop": Kernel(
        "int q = 100 / a[t]; o[t] = t ? q : 7;", i4([7, 50]), inputs=(i4([0, 2]),), block=2
    ),
    "shift_right_of_negatives": Kernel(
        "o[0] = a[0] >> 1; o[1] = a[0] >> 31; o[2] = (unsigned)a[0] >> 28; o[3] = a[0] << 4;",
        i4([-4, -1, 15, -128]),
        inputs=(i4([-8]),),
        block=1,
    ),
    "shifts_of_ptx_clamp": Kernel(
        """unsigned s = 32 + t, l, r; int q;
        asm("shl.b32 %0, %1, %2;" : "=r"(l) : "r"(~0u), "r"(s));
        asm("shr.u32 %0, %1, %2;" : "=r"(r) : "r"(~0u), "r"(s));
        asm("shr.s32 %0, %1, %2;" : "=r"(q) : "r"(-5), "r"(s + 1000));
        o[0] = l; o[1] = r; o[2] = q;""",
        u4([0, 0, M]),
        block=1,
    ),
    "shifts_of_64_bits": Kernel(
        "o[0] = a[0] << 40; o[1] = a[0] >> 3; o[2] = (unsigned long long)a[1] >> 60; o[3] = a[1] >> 60;",
        i8([5 << 40, 0, 15, -1]),
        inputs=(i8([5, -1]),),
        block=1,
    ),
    "small_types_wrap": Kernel(
        """unsigned char u = a[0]; signed char s = a[1]; short h = a[2]; unsigned short w = a[3];
        u += 10; s += 10; h *= 2; w -= 10;
        o[0] = u; o[1] = s; o[2] = h; o[3] = w; o[4] = (char)a[0] < 0;""",
        i4([4, -119, -2, 65531, 1]),
        inputs=(i4([250, 127, 32767, 5]),),
        block=1,
    ),
    "wrapping_products": Kernel(
        "o[0] = (unsigned)a[0] * a[0]; o[1] = (unsigned long long)a[0] * a[0]; o[2] = (long long)-1 * a[1];",
        u8([1, (M) ** 2 & (2**64 - 1), 2**64 - 5]),
        inputs=(u4([M, 5]),),
        block=1,
    ),
    "int128": Kernel(
        """__int128 p = (__int128)a[0] * a[1];
        o[0] = (long long)(p >> 64); o[1] = (long long)p; o[2] = (long long)(p / 1000000007);""",
        i8([1, 3 * 10**19 - 2 * 2**64, 3 * 10**19 // 1000000007]),
        inputs=(i8([3 * 10**18, 10]),),
        block=1,
        options=("--device-int128",),
    ),
    "minmax_abs": Kernel(
        """o[0] = min(a[0], a[1]); o[1] = max(a[0], a[1]); o[2] = abs(a[0]); o[3] = umax(a[0], a[1]);
        o[4] = min((unsigned)a[0], 3u); o[5] = labs(-7l) + llabs(-9ll);""",
        i4([-5, 4, 5, -5, 3, 16]),
        inputs=(i4([-5, 4]),),
        block=1,
    ),
    "averages_of_bytes": ones(
        _XY,
        ("__vavgu4(x, y)", _word((p + q + 1) // 2 for p, q in zip(UX, UY, strict=True))),
        ("__vhaddu4(x, y)", _word((p + q) // 2 for p, q in zip(UX, UY, strict=True))),
        ("__vabsdiffs4(x, y)", _word(abs(p - q) for p, q in zip(SX, SY, strict=True))),
        ("__vsads4(x, y)", sum(abs(p - q) for p, q in zip(SX, SY, strict=True))),
        ("__vnegss4(x)", _word(min(-v, 127) for v in SX)),
        of=u4,
    ),
    "halves_of_words": ones(
        "unsigned x = 0x80007fffu + t, y = 0x0001fffeu + t;",
        ("__vsubss2(x, y)", 0x80007FFF),  # -32768 - 1 and 32767 + 2 do not fit
        ("__vsubus2(x, y)", 0x7FFF0000),
        ("__vabs2(x)", 0x80007FFF),
        ("__vabsss2(x)", 0x7FFF7FFF),
        ("__vneg2(y)", 0xFFFF0002),
        ("__vmaxs2(x, y)", 0x00017FFF),
        ("__vminu2(x, y)", 0x00017FFF),
        ("__vabsdiffu2(x, y)", 0x7FFF7FFF),
        ("__vsadu2(x, y)", 0x7FFF + 0x7FFF),
        of=u4,
    ),
    "comparisons_of_halves": ones(
        "unsigned x = 0x80007fffu + t, y = 0x00017fffu + t;",
        ("__vcmpeq2(x, y)", 0x0000FFFF),
        ("__vcmplts2(x, y)", 0xFFFF0000),
        ("__vcmpgtu2(x, y)", 0xFFFF0000),
        ("__vcmpges2(x, y)", 0x0000FFFF),
        ("__vseteq2(x, y)", 1),
        ("__vsetltu2(x, y)", 0),
        ("__vsetles4(x, y)", 0x01010101),
        of=u4,
    ),
    "dpx_of_halves": ones(
        "unsigned x = 0x0005fffbu + t;",  # 5 and -5
        ("__viaddmax_s16x2(x, 0x0001fffeu, 0x00070000u)", 0x00070000),
        ("__viaddmin_s16x2(x, 0x0001fffeu, 0x00070000u)", 0x0006FFF9),
        ("__vimax3_s16x2(x, 0xfffe0003u, 0x00040002u)", 0x00050003),
        ("__vimin3_u16x2(x, 0xfffe0003u, 0x00040002u)", 0x00040002),
        ("(unsigned)__viaddmax_u32(7u + t, 0xffffffffu, 3u)", 6),
        of=u4,
    ),
    "products_of_128_bits": Kernel(
        """unsigned long long x = a[0], y = a[1], low = x * y, high = __umul64hi(x, y), sum = low + a[2];
        high += sum < low;
        o[0] = sum; o[1] = high;""",
        u8([((2**64 - 3) * (2**63 + 5) + 2**64 - 1) >> s & (2**64 - 1) for s in (0, 64)]),
        inputs=(u8([2**64 - 3, 2**63 + 5, 2**64 - 1]),),
        block=1,
    ),
    "root_of_whole_numbers": Kernel(
        """unsigned n = a[t], r = 0;
        for (unsigned bit = 1u << 30; bit; bit >>= 2) {
            if (n >= r + bit) { n -= r + bit; r = (r >> 1) + bit; } else r >>= 1;
        }
        o[t] = r;""",
        u4([0, 1, 1, 2, 65535, 65535, 46340, 1000]),
        inputs=(u4([0, 1, 3, 4, M, 65535**2, 2**31 - 1, 10**6]),),
        block=8,
    ),
    "bits_woven": Kernel(
        """auto spread = [](unsigned x) {
            x = (x | x << 8) & 0x00ff00ff; x = (x | x << 4) & 0x0f0f0f0f;
            x = (x | x << 2) & 0x33333333; return (x | x << 1) & 0x55555555;
        };
        o[t] = spread(a[2 * t]) | spread(a[2 * t + 1]) << 1;""",
        u4(
            [
                0,
                3,
                0x55555555,
                0xAAAAAAAA,
                sum(4**n for n in (1, 3)) + 2 * sum(4**n for n in (0, 15)),
            ]
        ),
        inputs=(u4([0, 0, 1, 1, 0xFFFF, 0, 0, 0xFFFF, 0b1010, 0x8001]),),
        block=5,
    ),
    "greatest_common_divisors": Kernel(
        """long long x = a[2 * t], y = a[2 * t + 1];
        while (y) { long long r = x % y; x = y; y = r; }
        o[t] = llabs(x);""",
        i8([6, 1, 2**40, 7, 12]),
        inputs=(i8([54, 24, 10**18, 10**18 - 1, 2**60, 3 * 2**40, 0, 7, -36, 48]),),
        block=5,
    ),
    "digits": Kernel(
        """unsigned long long n = a[t], r = 0; int count = 0;
        do { r = r * 10 + n % 10; n /= 10; count++; } while (n);
        o[t] = r + count;""",
        u8([1, 54321 + 5, 1 + 19]),
        inputs=(u8([0, 12345, 10**18]),),
        block=3,
    ),
}
