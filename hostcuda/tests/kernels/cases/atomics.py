"""Atomic functions of all types and scopes.

Source: CUDA C++ Programming Guide, "Atomic Functions": each returns what was there before; Inc wraps
at its limit, Dec goes there from 0. Numbers do not depend on the order of the threads.
"""

from . import Kernel, L, f4, f8, i4, i8, np, u2, u4, u8

N = 256


def every(body, expected, **more):
    """256 threads in two blocks."""
    return Kernel(body, expected, grid=2, block=128, **{"start": 0, **more})


KERNELS = {
    "add_int": every("atomicAdd(o, i);", i4([N * (N - 1) // 2])),
    "add_unsigned_wraps": every("atomicAdd(o, 0x80000000u);", u4([0])),
    "add_unsigned_long_long": every("atomicAdd(o, 1ull << 40);", u8([N << 40])),
    "add_float": every("atomicAdd(o, 0.5f);", f4([N / 2])),
    "add_double": every("atomicAdd(o, 0.25);", f8([N / 4])),
    "add_returns_each_once": every("o[atomicAdd(o + 256, 1)] = 1;", i4([1] * N + [N])),
    "sub": every("atomicSub(o, 3);", i4([1000 - 3 * N]), start=1000),
    "sub_unsigned": every("atomicSub((unsigned *)o, 1u);", i4([-N])),
    "exch_chain": Kernel(
        # What was taken out and what is left are all that was put in.
        """__shared__ int s, sum;
        if (!t) s = sum = 0;
        __syncthreads();
        atomicAdd(&sum, atomicExch(&s, t + 1));
        __syncthreads();
        if (!t) o[0] = s + sum;""",
        i4([128 * 129 // 2]),
        block=128,
    ),
    "exch_float": Kernel("o[1] = atomicExch(o, 2.5f);", f4([2.5, 7]), block=1, start=7),
    "min_max_int": every(
        "atomicMin(o, i - 100); atomicMax(o + 1, i - 100);", i4([-100, N - 101]), start=[50, -99]
    ),
    "min_max_unsigned": every(
        "atomicMin(o, i - 100u); atomicMax(o + 1, i - 100u);",
        u4([0, 2**32 - 1]),
        start=[50, 0],
    ),
    "min_max_long_long": every(
        """atomicMin(o, (long long)i << 33); atomicMax(o + 1, (long long)-i);
        atomicMax((unsigned long long *)o + 2, (unsigned long long)-i);""",
        i8([0, 0, -1]),
        start=[9, -9, 0],
    ),
    "inc_wraps": every("atomicInc(o, 9u);", u4([N % 10])),
    "dec_wraps": every("atomicDec(o, 9u);", u4([(-N) % 10])),
    "dec_from_above": Kernel("o[1] = atomicDec(o, 5u);", u4([5, 77]), block=1, start=[77, 0]),
    "and_or_xor": every(
        "atomicAnd(o, ~(1u << t % 32)); atomicOr(o + 1, 1u << t % 7); atomicXor(o + 2, i);",
        u4([0, 127, 0]),
        start=[2**32 - 1, 0, 0],
    ),
    "and_or_xor_of_64_bits": every(
        """atomicAnd(o, ~(1ull << t % 64)); atomicOr(o + 1, 1ull << t % 64);
        atomicXor(o + 2, 1ull << t % 40);""",
        # Each block does the same, so that each bit is flipped an even number of times.
        u8([0, 2**64 - 1, 0]),
        start=u8([2**64 - 1, 0, 0]),
    ),
    "cas_int": Kernel(
        "o[1] = atomicCAS(o, 5, 9); o[2] = atomicCAS(o, 5, 11);", i4([9, 5, 9]), block=1, start=5
    ),
    "cas_of_16_bits": Kernel(
        """o[2] = atomicCAS(o + 1, (unsigned short)5, (unsigned short)9);
        o[3] = atomicCAS(o + 1, (unsigned short)5, (unsigned short)7);""",
        u2([5, 9, 5, 9]),
        block=1,
        start=5,
    ),
    "cas_of_64_bits": every(
        """unsigned long long old = *o, seen;
        do { seen = old; old = atomicCAS(o, seen, seen + (1ull << 35)); } while (old != seen);""",
        u8([N << 35]),
    ),
    "product_by_cas": Kernel(
        """int old = *(volatile int *)o, seen;
        do { seen = old; old = atomicCAS(o, seen, seen * 3); } while (old != seen);""",
        u4([pow(3, 64, 2**32)]).view(np.int32),
        block=64,
        start=1,
    ),
    "max_of_floats_by_cas": Kernel(
        """int *p = (int *)o, old = *p, seen;
        do {
            seen = old;
            old = atomicCAS(p, seen, __float_as_int(fmaxf(t * 0.5f, __int_as_float(seen))));
        } while (old != seen);""",
        f4([31.5]),
        block=64,
        start=0,
    ),
    "block_and_system_scope": every(
        """atomicAdd_block(o + blockIdx.x, 1); atomicAdd_system(o + 2, 2);
        atomicMax_block(o + 3 + blockIdx.x, t); atomicExch_system(o + 5, 8);
        atomicCAS_system(o + 6, 0, 4);""",
        i4([128, 128, 2 * N, 127, 127, 8, 4]),
    ),
    "shared_memory": Kernel(
        """__shared__ int s[4]; __shared__ unsigned long long w; __shared__ float f;
        if (t < 4) s[t] = 0;
        if (!t) { w = 0; f = 0; }
        __syncthreads();
        atomicAdd(s + t % 4, t); atomicAdd(&w, 3ull); atomicAdd(&f, 1.5f);
        __syncthreads();
        if (t < 4) o[t] = s[t];
        if (!t) { o[4] = w; o[5] = f; }""",
        i4([112, 120, 128, 136, 96, 48]),
    ),
    # PTX: in global memory, an atomic addition of floats makes subnormal numbers zero.
    "subnormal_numbers": Kernel(
        """__shared__ float f; __shared__ double d;
        f = 0; d = 0;
        atomicAdd((float *)o, a);
        if (a * c == 0) atomicAdd(&f, a);
        atomicAdd(&d, b);
        o[1] = __float_as_uint(f); o[2] = d == b;""",
        u4([0, 0x116C2, 1]),
        inputs=(np.float32(1e-40), np.float64(5e-310), np.float32(2)),
        start=0,
        block=1,
    ),
    "shared_memory_of_double": Kernel(
        """__shared__ double s;
        if (!t) s = 0;
        __syncthreads();
        atomicAdd(&s, t + 0.5);
        __syncthreads();
        o[t] = s;""",
        f8(L * 0 + 512),
    ),
    "histogram": every("atomicAdd(o + a[i] % 8, 1);", u4([32] * 8), inputs=(u4(np.arange(N) * 5),)),
    "last_block_sums": Kernel(
        """__shared__ bool last;
        atomicAdd(o, i);
        __threadfence();
        __syncthreads();
        if (!t) last = atomicInc((unsigned *)o + 1, gridDim.x - 1) == gridDim.x - 1;
        __syncthreads();
        if (last && !t) o[2] = *(volatile int *)o;""",
        i4([2016, 0, 2016]),
        grid=4,
        block=16,
        start=0,
    ),
    "generic_pointers": Kernel(
        """__shared__ int s;
        if (!t) s = 0;
        __syncthreads();
        int *p = t & 1 ? &s : o;
        atomicAdd(p, 1);
        __syncthreads();
        if (!t) o[1] = s;""",
        i4([16, 16]),
        start=0,
    ),
    "lock": Kernel(
        """for (bool done = false; !done;)
            if (!atomicCAS(o, 0, 1)) {
                ((volatile int *)o)[1] += 1;
                __threadfence();
                atomicExch(o, 0);
                done = true;
            }""",
        i4([0, 64]),
        block=64,
        start=0,
    ),
    "red_by_inline_ptx": every(
        """asm volatile("red.global.add.u32 [%0], %1;" :: "l"(o), "r"(2) : "memory");
        asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" :: "l"(o + 1), "r"(i) : "memory");
        asm volatile("red.global.or.b32 [%0], %1;" :: "l"(o + 2), "r"(1 << t % 5) : "memory");""",
        i4([2 * N, N - 1, 31]),
    ),
    "atom_by_inline_ptx": Kernel(
        """int old;
        asm volatile("atom.global.add.u32 %0, [%1], 5;" : "=r"(old) : "l"(o) : "memory");
        o[1] = old;
        asm volatile("atom.acq_rel.gpu.global.exch.b32 %0, [%1], 9;" : "=r"(old) : "l"(o) : "memory");
        o[2] = old;
        asm volatile("atom.global.cas.b32 %0, [%1], 9, 2;" : "=r"(old) : "l"(o) : "memory");""",
        i4([2, 1, 6]),
        block=1,
        start=1,
    ),
    "minimum_of_floats_by_bits": every(
        """float v = a[i];
        if (v >= 0) atomicMin((int *)o, __float_as_int(v)); else atomicMax((unsigned *)o, __float_as_uint(v));
        if (v >= 0) atomicMax((int *)o + 1, __float_as_int(v)); else atomicMin((unsigned *)o + 1, __float_as_uint(v));""",
        f4([-127.5, 127.5]),
        inputs=(f4(np.arange(N) * 101 % 256 - 127.5),),
        start=f4([np.inf, -np.inf]),
    ),
    "double_sum_by_cas": every(
        """unsigned long long *p = (unsigned long long *)o, old = atomicAdd(p, 0ull), seen;
        do { seen = old; old = atomicCAS(p, seen, __double_as_longlong(i + __longlong_as_double(seen))); } while (old != seen);""",
        f8([N * (N - 1) / 2]),
    ),
    "two_numbers_in_one_word": every(
        "atomicAdd(o, ((unsigned long long)i << 32) + 1); atomicAdd(o + 1, (unsigned long long)-1ll);",
        u8([(N * (N - 1) // 2 << 32) + N, 2**64 - N]),
    ),
    "lock_by_tickets": Kernel(
        """if (!t) {
            int ticket = atomicAdd(o, 1);
            while (atomicAdd(o + 1, 0) != ticket);
            ((volatile int *)o)[2] += blockIdx.x * blockIdx.x;
            __threadfence();
            atomicAdd(o + 1, 1);
        }""",
        i4([6, 6, 55]),
        grid=6,
        start=0,
    ),
    "semaphore_of_the_block": Kernel(
        """__shared__ int free, most, now;
        if (!t) { free = 3; most = now = 0; }
        __syncthreads();
        if (t % 32 == 0) {
            for (;;) { int n = atomicAdd(&free, 0); if (n > 0 && atomicCAS(&free, n, n - 1) == n) break; __nanosleep(20); }
            atomicMax(&most, atomicAdd(&now, 1) + 1);
            __nanosleep(100);
            atomicSub(&now, 1); atomicAdd(&free, 1);
        }
        __syncthreads();
        if (!t) { o[0] = free; o[1] = now; o[2] = most >= 1 && most <= 3; }""",
        i4([3, 0, 1]),
        block=256,
    ),
}
