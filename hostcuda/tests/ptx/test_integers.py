"""Integers: shifts, fields of bits, carries, products, atomics."""

import numpy as np
import pytest

M = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("expression", "a", "b", "expected"),
    [
        ("__mul24(a, b)", 0x01000003, 7, 21),
        ("__umul24(a, b)", 0xFF000003, 7, 21),
        ("__hadd((int)a, (int)b)", 3, 6, 4),
        ("__rhadd((int)a, (int)b)", 3, 6, 5),
        ("__umulhi(a, b)", M, M, 0xFFFFFFFE),
        ("__mulhi((int)a, (int)b)", M, M, 0),
        ("a << b % 64", 1, 33, 0),
        ("(int)a >> b % 64", 0x80000000, 40, M),
        ("a >> b % 64", 0x80000000, 40, 0),
        ("__funnelshift_l(a, b, 8)", 0x12345678, 0x9ABCDEF0, 0xBCDEF012),
        ("__funnelshift_r(a, b, 8)", 0x12345678, 0x9ABCDEF0, 0xF0123456),
        ("__funnelshift_lc(a, b, 40)", 0x12345678, 0x9ABCDEF0, 0x12345678),
        ("__funnelshift_rc(a, b, 40)", 0x12345678, 0x9ABCDEF0, 0x9ABCDEF0),
        ("__popc(a)", 0xF0F0, 0, 8),
        ("__popcll((unsigned long long)a << 32 | b)", M, M, 64),
        ("__clz(a)", 0, 0, 32),
        ("__clz(a)", 1, 0, 31),
        ("__clzll(a)", 1, 0, 63),
        ("__ffs(a)", 8, 0, 4),
        ("__ffs(a)", 0, 0, 0),
        ("__brev(a)", 1, 0, 0x80000000),
        ("__byte_perm(a, b, 0x5140)", 0x33221100, 0x77665544, 0x55114400),
        ("__byte_perm(a, b, 0x8888)", 0x80, 0, 0x80808080),
        ("__sad((int)a, (int)b, 5)", M, 1, 7),
        ("__usad(a, b, 5)", 10, 3, 12),
        ("__dp4a((int)a, (int)b, 10)", 0x01FF0203, 0x01010101, 15),
        ("__dp4a(a, b, 10u)", 0x01FF0203, 0x01010101, 271),
        ("__dp2a_lo((int)a, (int)b, 0)", 0x0002FFFF, 0x04030201, 3),
        ("__vadd4(a, b)", 0x01FF0102, 0x01010101, 0x02000203),
        ("__vmaxs2(a, b)", 0x0001FFFF, 0xFFFF0001, 0x00010001),
        ("__vabsdiffu4(a, b)", 0x01020304, 0x04030201, 0x03010103),
        ("(int)a / (int)b", 0x80000000, M, 0x80000000),
        ("(int)a % (int)b", 0x80000000, M, 0),
        ("(int)a / (int)b", M - 6, 2, M - 2),
        ("(int)a % (int)b", M - 6, 2, M),
        ("a / b", M, 10, M // 10),
        ("min((int)a, (int)b)", M, 1, M),
        ("max(a, b)", M, 1, M),
        ("abs((int)a)", M - 4, 0, 5),
        ("(short)a + (signed char)b", 0x18000, 0x180, 0xFFFF7F80),
        ("__viaddmax_s32((int)a, (int)b, 3)", M, M, 3),
    ],
)
def test_functions(gpu, expression, a, b, expected):
    out = gpu.run(f"o[0] = {expression};", np.uint32(a), np.uint32(b), out=(1, "u4"), block=1)
    assert out[0] == expected


@pytest.mark.parametrize(
    ("assembler", "a", "b", "expected"),
    [
        ("shl.b32 %0, %1, %2;", 1, 32, 0),
        ("shl.b32 %0, %1, %2;", 1, 31, 0x80000000),
        ("shr.u32 %0, %1, %2;", M, 99, 0),
        ("shr.s32 %0, %1, %2;", 0x80000000, 99, M),
        ("bfe.u32 %0, %1, 8, 4;", 0xABCDEF, 0, 0xD),
        ("bfe.s32 %0, %1, 4, 4;", 0xF0, 0, M),
        ("bfe.s32 %0, %1, 28, 8;", 0x80000000, 0, 0xFFFFFFF8),
        ("bfe.u32 %0, %1, 28, 8;", 0x80000000, 0, 8),
        ("bfe.s32 %0, %1, 40, 8;", 0x80000000, 0, M),
        ("bfe.u32 %0, %1, 3, 0;", M, 0, 0),
        ("bfi.b32 %0, %1, %2, 4, 8;", 0xAB, M, 0xFFFFFABF),
        ("bfi.b32 %0, %1, %2, 28, 8;", 0xAB, 0, 0xB0000000),
        ("bfi.b32 %0, %1, %2, 32, 8;", 0xAB, 7, 7),
        ("bfind.u32 %0, %1;", 0x00F0, 0, 7),
        ("bfind.u32 %0, %1;", 0, 0, M),
        ("bfind.s32 %0, %1;", M, 0, M),
        ("bfind.s32 %0, %1;", 0xFFFFFF00, 0, 7),
        ("bfind.shiftamt.u32 %0, %1;", 0x00F0, 0, 24),
        (
            "lop3.b32 %0, %1, %2, 0x0f0f0f0f, 0xe8;",
            0xFF00FF00,
            0xF0F0F0F0,
            0xFF00FF00 & 0xF0F0F0F0 | (0xFF00FF00 ^ 0xF0F0F0F0) & 0x0F0F0F0F,
        ),
        ("add.sat.s32 %0, %1, %2;", 0x7FFFFFFF, 1, 0x7FFFFFFF),
        ("sub.sat.s32 %0, %1, %2;", 0x80000000, 1, 0x80000000),
        ("mad.hi.s32 %0, %1, %2, 5;", 0x40000000, 8, 7),
        ("mul.hi.u32 %0, %1, %2;", 0x40000000, 8, 2),
        ("fns.b32 %0, %1, 0, 3;", 0b1011010, 0, 4),
        ("cvt.sat.s8.s32 %0, %1;", 300, 0, 127),
        ("cvt.sat.u8.s32 %0, %1;", M, 0, 0),
        ("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0x1234;", 300, M, 0x1234FF00),
        ("slct.u32.s32 %0, %1, 7, %2;", 5, M, 7),
        ("set.lt.u32.s32 %0, %1, %2;", M, 1, M),
        ("cnot.b32 %0, %1;", 0, 0, 1),
        ("sad.s32 %0, %1, %2, 1;", M, 2, 4),
        ("mul24.hi.u32 %0, %1, %2;", 0xFFFFFF, 0xFFFFFF, 0xFFFFFE00),
        ("{.reg .pred p, q; setp.lt.s32 p|q, %1, %2; selp.u32 %0, 1, 2, q;}", M, 1, 2),
        ("{.reg .pred p; setp.gt.and.u32 p, %1, %2, 1; selp.u32 %0, 1, 2, p;}", M, 1, 1),
        (
            "{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, lo};}",
            0x12345678,
            0,
            0x56781234,
        ),
        ("{.reg .u32 t; add.cc.u32 t, %1, %2; addc.u32 %0, 0, 0;}", M, 1, 1),
        ("{.reg .u32 t; sub.cc.u32 t, %1, %2; subc.u32 %0, 9, 0;}", 0, 1, 8),
        ("{.reg .u32 t; mad.lo.cc.u32 t, %1, %2, %1; madc.hi.u32 %0, %1, %2, 0;}", M, M, M),
        ("mov.u32 %0, %laneid;", 0, 0, 0),
    ],
)
def test_instructions(gpu, assembler, a, b, expected):
    code = assembler.replace("%laneid", "%%laneid")
    out = gpu.run(
        f'unsigned r; asm volatile("{code}" : "=r"(r) : "r"(a), "r"(b)); o[0] = r;',
        np.uint32(a),
        np.uint32(b),
        out=(1, "u4"),
        block=1,
    )
    assert out[0] == expected


def test_products_of_64_bits(gpu):
    a, b = 0x123456789ABCDEF0, 0xFEDCBA9876543210
    out = gpu.run(
        "o[0] = __umul64hi(a, b); o[1] = __mul64hi(a, b); o[2] = a * b;",
        np.uint64(a),
        np.uint64(b),
        out=(3, "u8"),
        block=1,
    )
    assert int(out[0]) == a * b >> 64
    assert int(out[1]) == (a * (b - 2**64) >> 64) % 2**64
    assert int(out[2]) == a * b % 2**64


def test_sums_of_128_bits(gpu):
    out = gpu.run(
        "unsigned __int128 x = a; x = x * b + a; o[0] = (unsigned long long)x; o[1] = x >> 64;",
        np.uint64(2**64 - 1),
        np.uint64(2**63 + 5),
        out=(2, "u8"),
        block=1,
        options=("--device-int128",),
    )
    total = (2**64 - 1) * (2**63 + 5) + 2**64 - 1
    assert [int(x) for x in out] == [total % 2**64, total >> 64]


@pytest.mark.parametrize(
    ("call", "kind", "start", "expected"),
    [
        ("atomicAdd(o, 3)", "i4", 5, 5 + 96),
        ("atomicAdd(o, 3ull)", "u8", 5, 101),
        ("atomicAdd(o, .5f)", "f4", 1, 17),
        ("atomicAdd(o, .5)", "f8", 1, 17),
        ("atomicSub(o, 1)", "i4", 5, -27),
        ("atomicMin(o, -(int)l)", "i4", 5, -31),
        ("atomicMax(o, (int)l)", "i4", 5, 31),
        ("atomicMin(o, l + 3)", "u4", 1000, 3),
        ("atomicMax(o, (long long)l - 40)", "i8", -50, -9),
        ("atomicAnd(o, ~(1 << l))", "i4", -1, 0),
        ("atomicOr(o, 1u << l)", "u4", 0, M),
        ("atomicXor(o, 1u << l)", "u4", M, 0),
        ("atomicExch(o, 7)", "i4", 0, 7),
        ("atomicInc(o, 9)", "u4", 0, 2),
        ("atomicDec(o, 9)", "u4", 5, 3),
        ("for (unsigned x = *o, y; y = atomicCAS(o, x, x + 1), y != x; x = y)", "u4", 0, 32),
        ("atomicAdd_block(o, 1)", "i4", 0, 32),
        ("atomicAdd_system(o, 1)", "i4", 0, 32),
    ],
)
def test_atomics(gpu, call, kind, start, expected):
    out = gpu.run(f"if (!i) o[0] = {start}; __syncwarp(); {call};", out=(1, kind))
    assert out[0] == expected


def test_what_atomics_return(gpu):
    out = gpu.run("__shared__ int s; if (!i) s = 0; __syncthreads(); o[atomicAdd(&s, 1)] += 1;")
    assert (out == 1).all()
