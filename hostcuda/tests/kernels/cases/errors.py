"""Kernels that must fail: with which status of CUDA.

Source: CUDA Runtime API, "cudaError": 700 an illegal address, 710 an assertion, 714 a hardware
stack error, 715 an illegal instruction, 716 a misaligned address, 717 an invalid address space,
718 an invalid program counter, 719 a launch failure. Where the document leaves open which of them it
is, all that fit are taken. The input `a` is 0, which the
compiler does not know.
"""

from . import Fails, Kernel, np

ILLEGAL, ASSERT, STACK, TRAP, MISALIGNED, SPACE, PC, FAILED = 700, 710, 714, 715, 716, 717, 718, 719
ZERO = (np.uint64(0),)


def fails(body, *status, **more):
    return Kernel(body, Fails(status), **{"inputs": ZERO, "block": 1, **more})


KERNELS = {
    "read_of_null": fails("o[0] = *(int *)a;", ILLEGAL),
    "write_of_null": fails("*(int *)a = 1;", ILLEGAL),
    "read_far_outside": fails("o[0] = o[(1ll << 44) + a];", ILLEGAL),
    "write_far_outside": fails("o[(1ll << 44) + a] = 1;", ILLEGAL),
    "write_far_before": fails("o[-(1ll << 36) - (long long)a] = 1;", ILLEGAL),
    "atomic_far_outside": fails("atomicAdd(o + (1ll << 44) + a, 1u);", ILLEGAL),
    "one_thread_of_many": fails(
        "o[i % 64] = i; if (i == 777) *(int *)a = 1;", ILLEGAL, grid=8, block=128
    ),
    "misaligned_int": fails("o[1] = *(int *)((char *)o + a + 1);", MISALIGNED),
    "misaligned_write": fails("*(short *)((char *)o + a + 1) = 5;", MISALIGNED),
    "misaligned_double": fails("o[0] = *(double *)((char *)o + a + 4) > 0;", MISALIGNED),
    "misaligned_float4": fails(
        "float4 v = *(float4 *)((char *)o + a + 8); o[0] = v.x + v.y + v.z + v.w;", MISALIGNED
    ),
    "misaligned_shared": fails(
        "__shared__ int s[8]; s[t] = 1; o[0] = *(int *)((char *)s + a + 2);", MISALIGNED
    ),
    "misaligned_atomic": fails("atomicAdd((unsigned *)((char *)o + a + 2), 1u);", MISALIGNED),
    "outside_of_shared": fails(
        "__shared__ int s[8]; s[t] = 1; o[0] = s[(1 << 24) + a];", ILLEGAL, SPACE, FAILED, TRAP
    ),
    "trap": fails("if (!a) __trap(); o[0] = 1;", FAILED, TRAP),
    "trap_by_inline_ptx": fails('if (!a) asm volatile("trap;"); o[0] = 1;', FAILED, TRAP),
    "assertion": fails("assert(a == 1); o[0] = 1;", ASSERT),
    "assertion_of_a_late_thread": fails("assert(t != 200); o[t % 64] = 1;", ASSERT, block=256),
    "endless_recursion": fails(
        "o[0] = f(a);",
        *(ILLEGAL, STACK, SPACE, FAILED),
        before="""__device__ __noinline__ unsigned f(unsigned long long n) {
            volatile unsigned x[64]; x[n % 64] = n; return f(n + 1) + x[(n + 1) % 64];
        }""",
    ),
    "too_many_threads": fails("o[0] = 1;", 1, 9, block=1025),
    "too_much_shared_memory": fails("o[0] = 1;", 1, shared=1 << 20),
    "too_many_threads_for_the_bounds": fails(
        "o[0] = 1;", 1, 9, block=128, bounds="__launch_bounds__(64)"
    ),
}
