"""Inline PTX, and special registers.

Source: PTX ISA, the instruction in each kernel.
"""

from . import Kernel, L, f4, i4, i8, np, u2, u4, u8


def asm(text, result="r", inputs=""):
    """Return a statement of one instruction that writes `r`."""
    return f'asm volatile("{text}" : "={result}"(r) : {inputs});'


def of_one(kind, results, *instructions, declared="unsigned", letter="r"):
    """Return a kernel of one thread: each instruction writes `r`, which is stored."""
    lines = [
        f"{asm(text, letter, inputs)} o[{n}] = r;" for n, (text, inputs) in enumerate(instructions)
    ]
    body = f"{declared} r; unsigned z = t;\n" + "\n".join(lines)
    return Kernel(body, kind(results), block=1)


KERNELS = {
    "mad_wide": of_one(
        i8,
        [(-3 * 2**30) + 5, (2**32 - 1) ** 2 + 7 - 2**64],
        ("mad.wide.s32 %0, %1, %2, %3;", '"r"(-3 + z), "r"(1 << 30), "l"(5ll)'),
        ("mad.wide.u32 %0, %1, %2, %3;", '"r"(~0u - z), "r"(~0u), "l"(7ll)'),
        declared="long long",
        letter="l",
    ),
    "mad_hi_lo": of_one(
        u4,
        [1 + 9, 25, 0x7FFFFFFF],
        ("mad.hi.u32 %0, %1, %2, %3;", '"r"(0x80000000u + z), "r"(2u), "r"(9u)'),
        ("mad.lo.u32 %0, %1, %2, %3;", '"r"(5u + z), "r"(4u), "r"(5u)'),
        (
            "mad.hi.sat.s32 %0, %1, %2, %3;",
            '"r"(0x7fffffffu - z), "r"(0x7fffffffu), "r"(0x7fffffffu)',
        ),
    ),
    "prmt": of_one(
        u4,
        [0x44332211, 0x88112288, 0xFF0000FF],
        ("prmt.b32 %0, %1, %2, 0x3210;", '"r"(0x44332211u + z), "r"(0x88776655u)'),
        ("prmt.b32 %0, %1, %2, 0x7017;", '"r"(0x44332211u + z), "r"(0x88776655u)'),
        # The highest bit of a selector gives the sign of the byte, eight times.
        ("prmt.b32 %0, %1, %2, 0xf88f;", '"r"(0x44332211u + z), "r"(0x88776655u)'),
    ),
    "bfe": of_one(
        u4,
        [0x34, 0xFFFFFFF8, 0, 0xF],
        ("bfe.u32 %0, %1, 8, 8;", '"r"(0x123456u + z)'),
        ("bfe.s32 %0, %1, 4, 4;", '"r"(0x85u + z)'),
        ("bfe.u32 %0, %1, 3, 0;", '"r"(~0u - z)'),
        ("bfe.u32 %0, %1, 28, 20;", '"r"(~0u - z)'),
    ),
    "bfi": of_one(
        u4,
        [0x12AB78, 0x123456, 0xF0000000],
        ("bfi.b32 %0, %1, %2, 8, 8;", '"r"(0xabu + z), "r"(0x120078u)'),
        ("bfi.b32 %0, %1, %2, 8, 0;", '"r"(0xabu + z), "r"(0x123456u)'),
        ("bfi.b32 %0, %1, %2, 28, 20;", '"r"(0xffu + z), "r"(0u)'),
    ),
    "lop3": of_one(
        u4,
        [0b10010110, 0b11101000, 0b11001010, 0b10000000],
        *[
            (f"lop3.b32 %0, %1, %2, %3, {table};", '"r"(0xf0u + z), "r"(0xccu), "r"(0xaau)')
            for table in (0x96, 0xE8, 0xCA, 0x80)
        ],
    ),
    "shf": of_one(
        u4,
        [0x23456789, 0x6789ABCD, 0x89ABCDEF, 0x23456789],
        *[
            (f"shf.{mode}.b32 %0, %1, %2, {by};", '"r"(0x89abcdefu + z), "r"(0x01234567u)')
            for mode, by in [("l.wrap", 8), ("r.wrap", 8), ("l.clamp", 40), ("l.wrap", 40)]
        ],
    ),
    "bit_searches": of_one(
        u4,
        [30, 0xFFFFFFFF, 1, 8, 27, 0xFFFF0000],
        ("bfind.u32 %0, %1;", '"r"(0x40000001u + z)'),
        ("bfind.u32 %0, %1;", '"r"(z)'),
        ("bfind.shiftamt.u32 %0, %1;", '"r"(0x40000001u + z)'),
        ("popc.b32 %0, %1;", '"r"(0xff000u + z)'),
        ("clz.b32 %0, %1;", '"r"(0x10u + z)'),
        ("bmsk.clamp.b32 %0, %1, %2;", '"r"(16u + z), "r"(16u)'),
    ),
    "fns": of_one(
        u4,
        [5, 3, 0xFFFFFFFF],
        ("fns.b32 %0, %1, 0, 3;", '"r"(0b101010u + z)'),
        ("fns.b32 %0, %1, 4, -1;", '"r"(0b101010u + z)'),
        ("fns.b32 %0, %1, 0, 4;", '"r"(0b101010u + z)'),
    ),
    "carries": Kernel(
        """unsigned lo, hi, d, e;
        asm volatile("add.cc.u32 %0, %2, %3; addc.u32 %1, %4, %5;"
            : "=r"(lo), "=r"(hi) : "r"(~0u), "r"(5u), "r"(7u), "r"(t));
        asm volatile("sub.cc.u32 %0, %2, %3; subc.u32 %1, %4, %5;"
            : "=r"(d), "=r"(e) : "r"(3u), "r"(5u), "r"(7u), "r"(t));
        o[0] = lo; o[1] = hi; o[2] = d; o[3] = e;""",
        u4([4, 8, 2**32 - 2, 6]),
        block=1,
    ),
    "carries_of_mad": Kernel(
        """unsigned lo, hi;
        asm volatile("mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, %5;"
            : "=r"(lo), "=r"(hi) : "r"(~0u - t), "r"(~0u), "r"(~0u), "r"(0u));
        o[0] = lo; o[1] = hi;""",
        # (2^32 - 1)^2 + 2^32 - 1 = 2^64 - 2^32
        u4([0, 2**32 - 1]),
        block=1,
    ),
    "saturating_integers": of_one(
        i4,
        [-(2**31), 2**31 - 1],  # add.sat.s32 is not here: it wraps around on an H100 (CUDA 13.0)
        ("sub.sat.s32 %0, %1, %2;", '"r"(0x80000000 + z), "r"(5)'),
        ("cvt.sat.s32.s64 %0, %1;", '"l"(5000000000ll + z)'),
        declared="int",
    ),
    "saturating_conversions": of_one(
        i4,
        [127, -128, 255, 0, 32767],
        ("cvt.sat.s8.s32 %0, %1;", '"r"(300 + z)'),
        ("cvt.sat.s8.s32 %0, %1;", '"r"(-300 + z)'),
        ("cvt.sat.u8.s32 %0, %1;", '"r"(300 + z)'),
        ("cvt.sat.u8.s32 %0, %1;", '"r"(-1 + z)'),
        ("cvt.sat.s16.s32 %0, %1;", '"r"(40000 + z)'),
        declared="int",
    ),
    "slct_selp_set": of_one(
        i4,
        [1, 2, -1, 0],
        ("slct.s32.s32 %0, 1, 2, %1;", '"r"(z)'),
        ("slct.s32.f32 %0, 1, 2, %1;", '"f"(-1.f - z)'),
        ("set.lt.s32.s32 %0, %1, 5;", '"r"(z)'),
        ("set.lt.u32.f32 %0, %1, 0f00000000;", '"f"(1.f + z)'),
        declared="int",
    ),
    "setp_with_two_results": Kernel(
        """unsigned p, q;
        asm volatile("{.reg .pred p, q, r; setp.eq.u32 r, %3, 0; setp.lt.and.s32 p|q, %2, 16, r;"
            "selp.u32 %0, 1, 0, p; selp.u32 %1, 1, 0, q;}"
            : "=r"(p), "=r"(q) : "r"(t), "r"(t & 1));
        o[t] = p + 2 * q;""",
        # q is the opposite comparison, also combined with r.
        u4(np.where(L & 1, 0, np.where(L < 16, 1, 2))),
    ),
    "predicated_instructions": Kernel(
        """unsigned r = 5;
        asm volatile("{.reg .pred p; setp.gt.u32 p, %1, 9; @p mov.u32 %0, 7; @!p add.u32 %0, %0, 1;}"
            : "+r"(r) : "r"(t));
        o[t] = r;""",
        u4(np.where(L > 9, 7, 6)),
    ),
    "branches_and_labels": Kernel(
        """unsigned r = 0;
        asm volatile("{.reg .pred p; .reg .u32 n; mov.u32 n, %1;\\n"
            "again: setp.eq.u32 p, n, 0; @p bra done; add.u32 %0, %0, n; sub.u32 n, n, 1; bra again;\\n"
            "done: }" : "+r"(r) : "r"(t));
        o[t] = r;""",
        u4(L * (L + 1) // 2),
    ),
    "vector_loads_and_stores": Kernel(
        """unsigned x, y, z, w;
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(a + 4 * t));
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(o + 4 * t), "r"(w), "r"(z) : "memory");
        asm volatile("st.global.v2.u32 [%0 + 8], {%1, %2};" :: "l"(o + 4 * t), "r"(y), "r"(x) : "memory");""",
        u4(np.arange(128).reshape(32, 4)[:, ::-1].ravel()),
        inputs=(u4(range(128)),),
    ),
    "small_loads": Kernel(
        """int r;
        asm volatile("ld.global.s8 %0, [%1];" : "=r"(r) : "l"(a)); o[0] = r;
        asm volatile("ld.global.u8 %0, [%1];" : "=r"(r) : "l"(a)); o[1] = r;
        asm volatile("ld.global.s16 %0, [%1 + 2];" : "=r"(r) : "l"(a)); o[2] = r;
        asm volatile("ld.global.nc.u16 %0, [%1 + 2];" : "=r"(r) : "l"(a)); o[3] = r;""",
        i4([-2, 254, -3, 65533]),
        inputs=(u4([0xFFFD00FE]),),
        block=1,
    ),
    "mov_packs": Kernel(
        """unsigned r; unsigned short h, k; unsigned long long l;
        asm("mov.b32 %0, {%1, %2};" : "=r"(r) : "h"((unsigned short)(7 + t)), "h"((unsigned short)9));
        asm("mov.b32 {%0, %1}, %2;" : "=h"(h), "=h"(k) : "r"(0x00050003u + t));
        asm("mov.b64 %0, {%1, %2};" : "=l"(l) : "r"(1u), "r"(2u));
        o[0] = r; o[1] = h * 10 + k; o[2] = l >> 32; o[3] = l;""",
        u4([0x00090007, 35, 2, 1]),
        block=1,
    ),
    "set_of_floats": Kernel(
        """unsigned r;
        asm("set.lt.u32.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(a + 1)); o[0] = r;
        asm("slct.u32.f32 %0, %1, 0, %2;" : "=r"(r) : "r"(b), "f"(a)); o[1] = r;""",
        u4([0xFFFFFFFF, 0xFFFFFFFF]),
        inputs=(np.float32(1), np.uint32(0xFFFFFFFF)),
        block=1,
    ),
    "cp_async_of_fewer_bytes": Kernel(
        """__shared__ __align__(16) int s[8];
        unsigned to = __cvta_generic_to_shared(s);
        asm volatile("{.reg .u32 n; mov.u32 n, %2; cp.async.ca.shared.global [%0], [%1], 16, n;}"
                     :: "r"(to), "l"(a), "r"(b) : "memory");
        asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 16, p;}"
                     :: "r"(to + 16), "l"(a), "r"(b) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        for (int k = 0; k < 8; ++k) o[k] = s[k];""",
        i4([1, 2, 0, 0, 0, 0, 0, 0]),
        inputs=(i4([1, 2, 3, 4]), np.uint32(8)),
        block=1,
    ),
    "cvt_pack": of_one(
        u4,
        [0x7FFF8000, 0x00007F80],
        ("cvt.pack.sat.s16.s32 %0, %1, %2;", '"r"(100000 + z), "r"(-100000)'),
        ("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;", '"r"(300 + z), "r"(-300), "r"(0)'),
    ),
    "cvt_of_halves": Kernel(
        """unsigned short h; unsigned r; float f;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(1.5f + t)); o[0] = h;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(1.f + t), "f"(2.f)); o[1] = r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(1.f + t), "f"(2.f)); o[2] = r;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)0x3555)); o[3] = __float_as_uint(f);""",
        u4([0x3E00, 0x3C004000, 0x3F804000, 0x3EAAA000]),
        block=1,
    ),
    "cvt_rounds_to_integers": Kernel(
        """float r[4];
        asm("cvt.rni.f32.f32 %0, %1;" : "=f"(r[0]) : "f"(a[t]));
        asm("cvt.rzi.f32.f32 %0, %1;" : "=f"(r[1]) : "f"(a[t]));
        asm("cvt.rmi.f32.f32 %0, %1;" : "=f"(r[2]) : "f"(a[t]));
        asm("cvt.rpi.f32.f32 %0, %1;" : "=f"(r[3]) : "f"(a[t]));
        for (int n = 0; n < 4; n++) o[4 * t + n] = r[n];""",
        f4([2, 2, 2, 3, -4, -3, -4, -3]),
        inputs=(f4([2.5, -3.5]),),
        block=2,
    ),
    "floats_with_modifiers": Kernel(
        """float r[6]; float x = 1e-20f + t;
        asm("mul.f32 %0, %1, %1;" : "=f"(r[0]) : "f"(x));
        asm("mul.ftz.f32 %0, %1, %1;" : "=f"(r[1]) : "f"(x));
        asm("add.sat.f32 %0, %1, %2;" : "=f"(r[2]) : "f"(x), "f"(7.f));
        asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(r[3]) : "f"(x), "f"(7.f), "f"(-3.f));
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(r[4]) : "f"(x), "f"(0.f / t));
        asm("max.xorsign.abs.f32 %0, %1, %2;" : "=f"(r[5]) : "f"(-2.f - t), "f"(1.f));
        for (int n = 0; n < 6; n++) o[n] = r[n];
        o[0] = __float_as_uint(r[0]) > 0;""",
        f4([1, 0, 1, 0, np.nan, -2]),
        block=1,
    ),
    "copysign": Kernel(
        """float f;
        asm("copysign.f32 %0, %1, %2;" : "=f"(f) : "f"(-1.f), "f"(a[t]));
        o[t] = signbit(f);""",
        u4([1, 1, 1, 1]),
        inputs=(f4([1, np.inf, np.nan, 1e-40]),),
        block=4,
    ),
    "spaces": Kernel(
        """__shared__ int s; int local; unsigned g, h, l, c;
        local = t;
        asm volatile("" :: "l"(&local) : "memory");
        asm volatile("{.reg .pred p; isspacep.global p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(g) : "l"(o));
        asm volatile("{.reg .pred p; isspacep.shared p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(h) : "l"(&s));
        asm volatile("{.reg .pred p; isspacep.local p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(l) : "l"(&local));
        asm volatile("{.reg .pred p; isspacep.shared p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(c) : "l"(o));
        o[t] = g + 2 * h + 4 * l + 8 * c + 16 * __isGlobal(o) + 32 * __isShared(&s) + 64 * __isLocal(&local);""",
        u4(L * 0 + 119),
    ),
    "cvta": Kernel(
        """__shared__ int s[32];
        unsigned at = (unsigned)__cvta_generic_to_shared(s + t);
        asm volatile("st.shared.u32 [%0], %1;" :: "r"(at), "r"(t * 3) : "memory");
        __syncwarp();
        size_t g; int r;
        asm volatile("cvta.to.global.u64 %0, %1;" : "=l"(g) : "l"(o + t));
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"((unsigned)__cvta_generic_to_shared(s + 31 - t)));
        asm volatile("st.global.u32 [%0], %1;" :: "l"(g), "r"(r + s[t]) : "memory");""",
        i4(L * 0 + 93),
    ),
    "special_registers": Kernel(
        """unsigned lane, warp, sm, nsm, nwarp, size, x, y, n;
        asm("mov.u32 %0, %%laneid;" : "=r"(lane)); asm("mov.u32 %0, %%warpid;" : "=r"(warp));
        asm("mov.u32 %0, %%smid;" : "=r"(sm)); asm("mov.u32 %0, %%nsmid;" : "=r"(nsm));
        asm("mov.u32 %0, %%nwarpid;" : "=r"(nwarp)); asm("mov.u32 %0, WARP_SZ;" : "=r"(size));
        asm("mov.u32 %0, %%tid.x;" : "=r"(x)); asm("mov.u32 %0, %%ctaid.x;" : "=r"(y));
        asm("mov.u32 %0, %%ntid.x;" : "=r"(n));
        o[i] = lane + 100 * (warp < nwarp) + 200 * (sm < nsm) + 1000 * (size == 32)
            + 2000 * (x + y * n == i);""",
        u4(np.arange(128) % 32 + 3300),
        grid=2,
        block=64,
    ),
    "dot_products": of_one(
        i4,
        [1 * 5 - 2 * 6 + 3 * 7 - 4 * 8 + 100, 255 * -1 + 1],
        ("dp4a.s32.s32 %0, %1, %2, %3;", '"r"(0xfc03fe01u + z), "r"(0x08070605u), "r"(100)'),
        ("dp4a.u32.s32 %0, %1, %2, %3;", '"r"(0xffu + z), "r"(0xffu), "r"(1)'),
        declared="int",
    ),
    "integer_min_max_of_16_bits": Kernel(
        """short r; unsigned short q;
        asm("min.s16 %0, %1, %2;" : "=h"(r) : "h"((short)-3), "h"((short)t)); o[0] = r;
        asm("max.u16 %0, %1, %2;" : "=h"(q) : "h"((unsigned short)65533), "h"((unsigned short)t)); o[1] = q;
        asm("neg.s16 %0, %1;" : "=h"(r) : "h"((short)(t + 7))); o[2] = r;
        asm("abs.s16 %0, %1;" : "=h"(r) : "h"((short)(t - 7))); o[3] = r;""",
        u2([65533, 65533, 65529, 7]),
        block=1,
    ),
    "rem_and_div_of_64_bits": of_one(
        u8,
        [10**19 // 7, 10**19 % 7, 2**64 - 3],
        ("div.u64 %0, %1, 7;", '"l"(10000000000000000000ull + z)'),
        ("rem.u64 %0, %1, 7;", '"l"(10000000000000000000ull + z)'),
        ("div.s64 %0, %1, 2;", '"l"(-7ll + z)'),
        declared="unsigned long long",
        letter="l",
    ),
    "sums_of_128_bits": Kernel(
        """unsigned long long x = a[0], y = a[1], lo, hi;
        asm("add.cc.u64 %0, %2, %3; addc.cc.u64 %1, %4, 0;" : "=l"(lo), "=l"(hi) : "l"(x), "l"(y), "l"(x)); o[0] = lo; o[1] = hi;
        asm("mul.lo.u64 %0, %2, %3; mul.hi.u64 %1, %2, %3;" : "=&l"(lo), "=l"(hi) : "l"(x), "l"(y)); o[2] = lo; o[3] = hi;
        asm("sub.cc.u64 %0, %2, %3; subc.u64 %1, 0, 0;" : "=&l"(lo), "=l"(hi) : "l"(y), "l"(x)); o[4] = lo; o[5] = hi;""",
        u8([4, 2**64 - 1, 2**64 - 12, 5, 8, 2**64 - 1]),
        inputs=(u8([2**64 - 2, 6]),),
        block=1,
    ),
    "shifts_of_registers": of_one(
        u4,
        [0xF0000000, 0, 0xFFFFFFFF, 0x0000FFFF, 0x10],
        ("shl.b32 %0, %1, %2;", '"r"(0xfu + z), "r"(28u)'),
        ("shr.b32 %0, %1, %2;", '"r"(0xfu + z), "r"(40u)'),
        ("shr.s32 %0, %1, %2;", '"r"(0x80000000u + z), "r"(99u)'),
        ("szext.clamp.u32 %0, %1, %2;", '"r"(0xffffffffu - z), "r"(16u)'),
        ("brev.b32 %0, %1;", '"r"(0x08000000u + z)'),
    ),
    "logic_of_predicates": Kernel(
        """unsigned r;
        asm volatile("{.reg .pred p, q, s; setp.lt.u32 p, %1, 8; setp.gt.u32 q, %1, 3; and.pred s, p, q; not.pred p, p;"
            "xor.pred q, q, p; or.pred p, s, q; selp.u32 %0, 1, 0, s; @q add.u32 %0, %0, 2; @!p add.u32 %0, %0, 4;}"
            : "=&r"(r) : "r"(t));
        o[t] = r;""",
        # s: 4 to 7; q: whether t > 3 differs from t > 7, the same places
        u4(np.where((L > 3) & (L < 8), 3, 4)),
    ),
    "address_with_an_offset": Kernel(
        """__shared__ unsigned s[64];
        s[t] = 3 * t; s[t + 32] = t;
        __syncwarp();
        unsigned r, q, at = (unsigned)__cvta_generic_to_shared(s + t);
        asm volatile("ld.shared.u32 %0, [%2 + 128]; ld.shared.u32 %1, [%2];" : "=&r"(r), "=r"(q) : "r"(at) : "memory");
        asm volatile("st.global.u32 [%0 + 4], %1; st.global.u32 [%0], %2;" :: "l"(o + 2 * t), "r"(r), "r"(q) : "memory");""",
        u4(np.stack([3 * L, L], 1).ravel()),
    ),
    "table_of_branches": Kernel(
        """unsigned r;
        asm volatile("{.reg .u32 n; and.b32 n, %1, 3; targets: .branchtargets zero, one, two, three; brx.idx n, targets;\\n"
            "zero: mov.u32 %0, 10; bra.uni end;\\n one: mov.u32 %0, 21; bra.uni end;\\n"
            "two: mov.u32 %0, 32; bra.uni end;\\n three: mov.u32 %0, 43;\\n end: }" : "=r"(r) : "r"(t));
        o[t] = r;""",
        u4(L % 4 * 11 + 10),
    ),
    "functions_near_their_values": Kernel(
        """float r[6];
        asm("rcp.approx.f32 %0, %1;" : "=f"(r[0]) : "f"(4.f + t)); asm("sqrt.rn.f32 %0, %1;" : "=f"(r[1]) : "f"(9.f + t));
        asm("rsqrt.approx.f32 %0, %1;" : "=f"(r[2]) : "f"(4.f + t)); asm("ex2.approx.f32 %0, %1;" : "=f"(r[3]) : "f"(5.f + t));
        asm("lg2.approx.f32 %0, %1;" : "=f"(r[4]) : "f"(1024.f + t)); asm("div.full.f32 %0, %1, %2;" : "=f"(r[5]) : "f"(9.f + t), "f"(2.f));
        for (int n = 0; n < 6; n++) o[n] = r[n];""",
        f4([0.25, 3, 0.5, 32, 10, 4.5]),
        block=1,
        ulp=2,
    ),
    "constant_and_local_variables": Kernel(
        """unsigned r;
        asm volatile("{.local .align 4 .b32 x[4]; .reg .u64 p; mov.u64 p, x; st.local.u32 [p + 8], %1; ld.local.u32 %0, [p + 8];"
            "st.local.u32 [x], %0; ld.local.u32 %0, [x]; add.u32 %0, %0, 1;}" : "=&r"(r) : "r"(t));
        o[t] = r;""",
        u4(L + 1),
    ),
    "copies_in_the_background": Kernel(
        """__shared__ __align__(16) unsigned s[2][128];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[0][4 * t]), sum = 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.commit_group;" :: "r"(to), "l"(a + 4 * t) : "memory");
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.commit_group;" :: "r"(to + 512), "l"(a + 128 + 4 * t) : "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory"); __syncwarp();
        for (int n = 0; n < 4; n++) sum += s[0][127 - 4 * t - n];
        asm volatile("cp.async.wait_group 0;" ::: "memory"); __syncwarp();
        for (int n = 0; n < 4; n++) sum += s[1][4 * t + n];
        o[t] = sum;""",
        u4(
            [
                sum(range(124 - 4 * n, 128 - 4 * n)) + sum(range(128 + 4 * n, 132 + 4 * n))
                for n in range(32)
            ]
        ),
        inputs=(u4(range(256)),),
    ),
    "halves_in_registers": Kernel(
        """unsigned r; unsigned short h;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(0x3c004000u + t), "r"(0x40003c00u)); o[0] = r;
        asm("fma.rn.f16 %0, %1, %1, %2;" : "=h"(h) : "h"((unsigned short)(0x4200 + t)), "h"((unsigned short)0x3c00)); o[1] = h;
        asm("mul.rn.f16x2 %0, %1, %1;" : "=r"(r) : "r"(0x7bff0001u + t)); o[2] = r;
        asm("neg.f16x2 %0, %1;" : "=r"(r) : "r"(0x3c00bc00u + t)); o[3] = r;
        asm("fma.rn.bf16x2 %0, %1, %1, %2;" : "=r"(r) : "r"(0x3f804000u + t), "r"(0x3f803f80u)); o[4] = r;""",
        u4([0x42004200, 0x4900, 0x7C000000, 0xBC003C00, 0x400040A0]),
        block=1,
    ),
}
