"""Warp functions with masks, widths and partial warps.

Source: CUDA C++ Programming Guide, "Warp Vote", "Match", "Reduce" and "Shuffle Functions". Threads
that leave a shuffle's range keep their own value; lanes of an index are taken modulo the width.
"""

from . import Kernel, L, f4, f8, i4, i8, np, u4, u8

ALL = 0xFFFFFFFF
HALF = 0xFFFF
_FRIENDS = "__shfl_sync(~0u, v, t % 8, 8)"


def _xor(width, by):
    """Return the sources of `__shfl_xor_sync`: a lane may read its own group, or one before."""
    source = L ^ by
    return np.where(source // width > L // width, L, source)


KERNELS = {
    "idx_broadcast": Kernel("o[t] = __shfl_sync(~0u, t * 3, 7);", i4(L * 0 + 21)),
    "idx_own_lane": Kernel("o[t] = __shfl_sync(~0u, t * t, 31 - t);", i4((31 - L) ** 2)),
    "idx_wraps_at_32": Kernel("o[t] = __shfl_sync(~0u, t, t + 40);", i4((L + 8) % 32)),
    "idx_width_8": Kernel("o[t] = __shfl_sync(~0u, t, 3, 8);", i4(L // 8 * 8 + 3)),
    "idx_negative_width_8": Kernel("o[t] = __shfl_sync(~0u, t, -1, 8);", i4(L // 8 * 8 + 7)),
    "idx_beyond_width_8": Kernel("o[t] = __shfl_sync(~0u, t, 13, 8);", i4(L // 8 * 8 + 5)),
    "up": Kernel("o[t] = __shfl_up_sync(~0u, t, 3);", i4(np.where(L < 3, L, L - 3))),
    "up_width_4": Kernel("o[t] = __shfl_up_sync(~0u, t, 1, 4);", i4(np.where(L % 4, L - 1, L))),
    "up_by_0": Kernel("o[t] = __shfl_up_sync(~0u, t + 5, 0);", i4(L + 5)),
    "down": Kernel("o[t] = __shfl_down_sync(~0u, t, 5);", i4(np.where(L > 26, L, L + 5))),
    "down_width_16": Kernel(
        "o[t] = __shfl_down_sync(~0u, t, 4, 16);", i4(np.where(L % 16 > 11, L, L + 4))
    ),
    "xor_1": Kernel("o[t] = __shfl_xor_sync(~0u, t, 1);", i4(L ^ 1)),
    "xor_31": Kernel("o[t] = __shfl_xor_sync(~0u, t, 31);", i4(L ^ 31)),
    "xor_within_width": Kernel("o[t] = __shfl_xor_sync(~0u, t, 3, 8);", i4(_xor(8, 3))),
    "xor_beyond_width": Kernel("o[t] = __shfl_xor_sync(~0u, t, 8, 8);", i4(_xor(8, 8))),
    "of_double": Kernel(
        "o[t] = __shfl_down_sync(~0u, t + 0.25, 1);", f8([*range(1, 32), 31]) + 0.25
    ),
    "of_long_long": Kernel(
        "o[t] = __shfl_xor_sync(~0u, (1ll << 40) * t + t, 2);", i8(L ^ 2) * ((1 << 40) + 1)
    ),
    "of_float": Kernel("o[t] = __shfl_up_sync(~0u, t * 0.5f, 1);", f4([0, *range(31)]) / 2),
    "down_half_mask_then_all": Kernel(
        """int v = t + 1;
        if (t < 16) for (int d = 8; d; d >>= 1) v += __shfl_down_sync(0xffff, v, d);
        o[t] = __shfl_sync(~0u, v, 0);""",
        # A tree of down shuffles: lane 0 has the sum of lanes 0 to 15.
        i4(L * 0 + 136),
    ),
    "halves_of_other_lengths": Kernel(
        """unsigned mask = t < 16 ? 0xffffu : 0xffff0000u;
        int v = 0;
        for (int n = 0; n < (t < 16 ? 5 : 9); n++) v += __shfl_xor_sync(mask, t % 16, 1, 16);
        o[t] = v;""",
        i4((L % 16 ^ 1) * np.where(L < 16, 5, 9)),
    ),
    "odd_lanes_shuffle": Kernel(
        "o[t] = -1; if (t & 1) o[t] = __shfl_xor_sync(0xaaaaaaaau, t, 2);",
        i4(np.where(L & 1, L ^ 2, -1)),
    ),
    "ballot": Kernel("o[t] = __ballot_sync(~0u, t % 3 == 0);", u4(L * 0 + 0x49249249)),
    "ballot_of_odd_lanes": Kernel(
        "o[t] = 7; if (t & 1) o[t] = __ballot_sync(0xaaaaaaaau, t > 16);",
        u4(np.where(L & 1, 0xAAAA0000 & ~(1 << 16), 7)),
    ),
    "ballot_of_a_partial_warp": Kernel(
        "o[t] = __ballot_sync(t < 32 ? ~0u : 0xffu, 1);",
        u4([ALL] * 32 + [0xFF] * 8),
        block=40,
    ),
    "ballot_in_2_branches": Kernel(
        """if (t < 12) o[t] = __ballot_sync(0xfffu, t & 1);
        else o[t] = __ballot_sync(0xfffff000u, !(t & 1));""",
        u4(np.where(L < 12, 0xAAA, 0x55555000)),
    ),
    "any_all": Kernel(
        """o[t] = __any_sync(~0u, t == 5) + 2 * __any_sync(~0u, t > 31)
             + 4 * __all_sync(~0u, t < 32) + 8 * __all_sync(~0u, t);""",
        i4(L * 0 + 5),
    ),
    "any_all_of_halves": Kernel(
        """unsigned m = t < 16 ? 0xffffu : 0xffff0000u;
        o[t] = __any_sync(m, t == 3) + 2 * __all_sync(m, t > 15);""",
        i4(np.where(L < 16, 1, 2)),
    ),
    "uni": Kernel(
        """int p; unsigned a = t >= 0, b = t > 4, r, s;
        asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.uni.pred q, p, -1;"
            "selp.u32 %0, 1, 0, q;}" : "=r"(r) : "r"(a));
        asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.uni.pred q, p, -1;"
            "selp.u32 %0, 1, 0, q;}" : "=r"(s) : "r"(b));
        o[t] = r + 2 * s;""",
        u4(L * 0 + 1),
    ),
    "match_any": Kernel(
        "o[t] = __match_any_sync(~0u, t % 5);",
        u4([sum(1 << n for n in range(32) if n % 5 == lane % 5) for lane in range(32)]),
    ),
    "match_any_of_64_bits": Kernel(
        "o[t] = __match_any_sync(~0u, (unsigned long long)(t / 16) << 40);",
        u4(np.where(L < 16, HALF, ALL - HALF)),
    ),
    "match_any_of_a_mask": Kernel(
        "o[t] = 0; if (t < 8) o[t] = __match_any_sync(0xff, t & 1);",
        u4(np.where(L < 8, np.where(L & 1, 0xAA, 0x55), 0)),
    ),
    "match_all": Kernel(
        """int p, q;
        unsigned m = __match_all_sync(~0u, 9, &p), n = __match_all_sync(~0u, t > 30, &q);
        o[t] = (m == ~0u) + 2 * p + 4 * (n == 0) + 8 * q;""",
        i4(L * 0 + 7),
    ),
    "reduce_add": Kernel("o[t] = __reduce_add_sync(~0u, t + 1);", u4(L * 0 + 528)),
    "reduce_min_max_signed": Kernel(
        "o[t] = __reduce_min_sync(~0u, t - 9) * 100 + __reduce_max_sync(~0u, t - 9);",
        i4(L * 0 - 900 + 22),
    ),
    "reduce_min_unsigned": Kernel("o[t] = __reduce_min_sync(~0u, (unsigned)t - 9u);", u4(L * 0)),
    "reduce_bits": Kernel(
        """o[t] = __reduce_and_sync(~0u, 0xf0u | t) ^ __reduce_or_sync(~0u, 1u << t)
             ^ __reduce_xor_sync(~0u, t < 3 ? 1u << t : 0u);""",
        u4(L * 0 + (0xF0 ^ ALL ^ 7)),
    ),
    "reduce_add_of_groups": Kernel(
        "unsigned m = 0xffu << (t & 24); o[t] = __reduce_add_sync(m, t);",
        u4(8 * (L // 8 * 8) + 28),
    ),
    "activemask_of_a_full_warp": Kernel("o[t] = __activemask();", u4(L * 0 + ALL)),
    "activemask_of_half_a_warp": Kernel("o[t] = __activemask();", u4([HALF] * 16), block=16),
    "aggregated_atomic": Kernel(
        """if (t % 2) {
            unsigned m = __activemask();
            int leader = __ffs(m) - 1;
            if (t == leader) atomicAdd(o, __popc(m));
        }""",
        # However the lanes converge, each is counted once.
        i4([16]),
        start=0,
    ),
    "aggregated_atomic_of_4_warps": Kernel(
        """unsigned m = __activemask();
        if (t % 32 == __ffs(m) - 1) atomicAdd(o, __popc(m));""",
        i4([128]),
        block=128,
        start=0,
    ),
    "syncwarp_orders_shared": Kernel(
        """__shared__ int s[32];
        s[t] = t * t;
        __syncwarp();
        o[t] = s[31 - t];""",
        i4((31 - L) ** 2),
    ),
    "syncwarp_of_a_mask": Kernel(
        """__shared__ int s[32];
        s[t] = 0;
        __syncwarp();
        if (t < 4) { s[t] = t + 1; __syncwarp(0xf); o[t] = s[3 - t]; }
        else o[t] = -1;""",
        i4([4, 3, 2, 1] + [-1] * 28),
    ),
    "two_warps_have_two_ballots": Kernel(
        "o[t] = __ballot_sync(~0u, t & 32);", u4([0] * 32 + [ALL] * 32), block=64
    ),
    "warps_of_a_2d_block": Kernel(
        """int n = threadIdx.y * blockDim.x + threadIdx.x;
        o[n] = __shfl_sync(~0u, n, 0);""",
        i4(np.repeat([0, 32], 32)),
        block=(8, 8),
    ),
    "lanemasks": Kernel(
        """unsigned lt, le, eq, ge, gt;
        asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt)); asm("mov.u32 %0, %%lanemask_le;" : "=r"(le));
        asm("mov.u32 %0, %%lanemask_eq;" : "=r"(eq)); asm("mov.u32 %0, %%lanemask_ge;" : "=r"(ge));
        asm("mov.u32 %0, %%lanemask_gt;" : "=r"(gt));
        o[t] = (lt == (1u << t) - 1) + 2 * (le == lt + eq) + 4 * (eq == 1u << t)
             + 8 * (ge == ~lt) + 16 * (gt == ~le);""",
        u4(L * 0 + 31),
    ),
    "elect_by_inline_ptx": Kernel(
        """unsigned r;
        asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}"
            : "=r"(r));
        o[t] = __popc(__ballot_sync(~0u, r));""",
        # Which lane is elected is not promised; it is one.
        u4(L * 0 + 1),
    ),
    "shfl_tells_of_its_range": Kernel(
        """int v; unsigned p;
        asm volatile("{.reg .pred p; shfl.sync.down.b32 %0|p, %2, 4, 31, -1; selp.u32 %1, 1, 0, p;}"
            : "=r"(v), "=r"(p) : "r"(t));
        o[t] = v + 100 * p;""",
        i4(np.where(L < 28, L + 104, L)),
    ),
    "scan_by_shuffles": Kernel(
        """unsigned long long v = t + 1;
        for (int d = 1; d < 32; d *= 2) {
            unsigned long long w = __shfl_up_sync(~0u, v, d);
            if (t >= d) v += w;
        }
        o[t] = v;""",
        u8((L + 1) * (L + 2) // 2),
    ),
    "matches_of_pairs": Kernel(
        "o[t] = __match_any_sync(~0u, a[t]);",
        u4([sum(1 << m for m in range(32) if m * m % 7 == n * n % 7) for n in range(32)]),
        inputs=(f4(L * L % 7) / 2,),
    ),
    "match_all_of_groups": Kernel(
        """int p; unsigned group = 0xffu << (t & 24), m = __match_all_sync(group, t / 8 == 2 ? t : t / 8, &p);
        o[t] = m == (p ? group : 0) ? p : -1;""",
        i4(L // 8 != 2),
    ),
    "reduce_of_parts": Kernel(
        """unsigned m = __ballot_sync(~0u, t % 3 == 0);
        if (t % 3) m = ~m;
        o[t] = t % 3 ? __reduce_add_sync(m, t) : __reduce_max_sync(m, t);""",
        i4(np.where(L % 3, 496 - 165, 30)),
    ),
    "rotation": Kernel(
        "o[t] = __shfl_sync(~0u, a[t], t + 5) + 100 * __shfl_sync(~0u, a[t], t - 3, 8);",
        i4((L + 5) % 32 + 100 * (L // 8 * 8 + (L - 3) % 8)),
        inputs=(i4(L),),
    ),
    "shuffles_of_structs": Kernel(
        """struct P { double x; int n; short s[2]; } p = {t * .5, t, {(short)-t, (short)(t * t)}}, q;
        for (int k = 0; k < sizeof p / 4; k++) ((int *)&q)[k] = __shfl_xor_sync(~0u, ((int *)&p)[k], 5);
        o[t] = q.x + q.n + q.s[0] + q.s[1];""",
        f8((L ^ 5) * 0.5 + (L ^ 5) ** 2),
    ),
    "positions_of_bits": Kernel(
        "unsigned m = __ballot_sync(~0u, a[t] & 1); o[t] = a[t] & 1 ? __popc(m << (31 - t)) : __fns(m, 0, t + 1) + 1;",
        # Of the odd lanes: how many up to this; of the others: where bit t + 1 is, 0 if there are fewer
        i4([n // 2 + 1 if n % 2 else (2 * n + 2 if n < 16 else 0) for n in range(32)]),
        inputs=(i4(L),),
    ),
}
