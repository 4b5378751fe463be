"""Failures are CUDA's: their numbers, and a message that names kernel, thread, line and memory."""

import subprocess
import sys

import numpy as np
import pytest

import hostcuda


def fails(gpu, error, message, body, *inputs, **options):
    """Run a kernel that must fail, and compare the message."""
    import pycuda.driver as cuda

    with pytest.raises(cuda.Error, match=error):
        gpu.run(body, *inputs, **options)
    (found,) = hostcuda.failures(untold=False)
    assert message in found.removeprefix("kernel k, ")


ILLEGAL = "illegal memory access"
MISALIGNED = "misaligned address"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("\n\no[i + 2] = 1;", "thread (30,0,0): writes 4 bytes, "),
        ("\n\no[i + 2] = 1;", "0 bytes behind the end of a block of 128 bytes (line 4)"),
        ("\no[0] = o[(int)i - 3];", "thread (0,0,0): reads 4 bytes, "),
        ("\no[0] = o[(int)i - 3];", "12 bytes before a block of 128 bytes (line 3)"),
        ("atomicAdd(&o[i * 8], 1);", "thread (4,0,0): updates 4 bytes, "),
        (
            "int *p = 0; if (a) p = o; if (l == 3) *p = 1;",
            "thread (3,0,0): writes 4 bytes at 0x0, near a null pointer",
        ),
    ],
)
def test_outside_of_a_block(gpu, body, message):
    fails(gpu, ILLEGAL, message, body, np.int32(0))


def test_the_block_is_named(gpu):
    fails(gpu, ILLEGAL, "block (2,0,0), thread (0,0,0)", "o[i] = 1;", out=(64, "i4"), grid=3)


def test_a_freed_block(gpu):
    import pycuda.driver as cuda

    memory = cuda.mem_alloc(100)
    address = np.uint64(int(memory))
    memory.free()
    fails(
        gpu,
        ILLEGAL,
        "40 bytes into a block of 100 bytes that was freed",
        "o[0] = ((int *)a)[10];",
        address,
    )


def test_memory_of_the_host(gpu):
    host = np.zeros(1 << 22, "i4")  # far from the blocks
    fails(
        gpu,
        ILLEGAL,
        "where there is no memory of the device",
        "o[0] = ((int *)a)[0];",
        np.uint64(host.ctypes.data),
    )


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("*(int *)((char *)o + a) = 1;", 4),
        ("*(float4 *)((char *)o + 8 + a - 1) = make_float4(1, 2, 3, 4);", 16),
        ("o[0] = *(short *)((char *)o + a);", 2),
        ("__shared__ char s[64]; s[l] = 1; __syncthreads(); o[0] = *(int *)(s + a + l);", 4),
        ("atomicAdd((int *)((char *)o + a + 1), 1);", 4),
    ],
)
def test_misaligned(gpu, body, size):
    fails(gpu, MISALIGNED, f"at an address that is no multiple of {size}", body, np.int32(1))


@pytest.mark.parametrize(
    "body",
    [
        "__shared__ int s[32]; s[l + a] = 1; __syncthreads(); o[l] = s[l];",
        "extern __shared__ int d[]; d[l + a] = 1; __syncthreads(); o[l] = d[l];",
    ],
)
def test_outside_of_shared_memory(gpu, body):
    fails(gpu, ILLEGAL, "of shared memory", body, np.int32(32), shared=100)


def test_outside_of_local_memory(gpu):
    body = "int x[8]; for (int j = 0; j < 8; ++j) x[j] = j; x[l + a] = 5; o[l] = x[(l + 1) % 8];"
    fails(gpu, ILLEGAL, "local memory", body, np.int32(6))


@pytest.mark.parametrize("used", [5, 6])
def test_just_behind_local_memory(gpu, used):
    body = """
        int x[5], sum = 0;
        for (int j = 0; j < a; ++j) x[j] = j;
        for (int j = 0; j < a; ++j) sum += x[3 * j % a];
        o[l] = sum;
    """
    if used == 5:
        assert list(gpu.run(body, np.int32(used))) == [10] * 32
    else:
        fails(gpu, ILLEGAL, "outside of the thread's local memory", body, np.int32(used))


def test_an_assertion(gpu, capfd):
    import pycuda.driver as cuda

    with pytest.raises(cuda.Error, match="device-side assert|assert|cuMemcpy"):
        gpu.run("\nassert(l < 5); o[l] = 1;")
    assert capfd.readouterr().err == (
        "kernel.cu:3: void k(int *): block: [0,0,0], thread: [5,0,0] Assertion `l < 5` failed.\n"
    )
    (found,) = hostcuda.failures(untold=False)
    assert "kernel k, block (0,0,0), thread (5,0,0): an assertion failed: l < 5" in found


def test_a_trap(gpu, capfd):
    fails(
        gpu,
        "launch failed|unspecified",
        "thread (7,0,0): stops with a trap",
        "if (l == 7) __trap();",
    )
    assert capfd.readouterr().err == ""


def test_a_division_by_zero_goes_on(gpu):
    out = gpu.run("o[l] = 100 / a + 100 % a; o[l] = 5;", np.int32(0))
    assert (out == 5).all()


def test_endless_recursion(gpu):
    fails(
        gpu,
        ILLEGAL,
        "deeper than its stack allows",
        "__device__ __noinline__ int f(int n) { volatile int x[10]; x[n % 10] = n; return f(n + "
        "1) + x[3]; }\n"
        "====\no[l] = f(l);",
    )


def test_a_call_of_no_function(gpu):
    fails(
        gpu,
        ILLEGAL,
        "calls what is no function, 0x1234",
        "typedef int (*F)(int);\n====\no[l] = ((F)a)(1);",
        np.uint64(0x1234),
    )


def test_free_of_what_was_not_allocated(gpu):
    fails(gpu, ILLEGAL, "which malloc did not give", "free(o); o[0] = 1;")


def test_exit_of_a_thread(gpu):
    out = gpu.run(
        '__device__ __noinline__ void leave(int n) { if (n % 2) asm volatile("exit;"); }\n====\n'
        "o[l] = 1; leave(l); o[l] = 2;"
    )
    assert (out == np.where(np.arange(32) % 2, 1, 2)).all()


def test_an_error_stays(gpu):
    import pycuda.driver as cuda

    fails(gpu, ILLEGAL, "", "o[1ull << 40] = 1;")
    with pytest.raises(cuda.Error, match=ILLEGAL):
        cuda.mem_alloc(16)


UNTOLD = """
import cupy, numpy as np
f = cupy.RawKernel('extern "C" __global__ void f(int *x) { x[4] = 1; }', "f")
cupy.cuda.set_allocator(None)
def test_outside():
    f((1,), (1,), (cupy.zeros(4, np.int32),))
def test_right():
    assert cupy.ones(3).get().tolist() == [1, 1, 1]
"""


def test_a_failure_that_no_call_told_is_told(tmp_path):
    script = tmp_path / "test_it.py"
    script.write_text(UNTOLD)
    command = [sys.executable, "-m", "pytest", "--hostcuda", "-q", str(script)]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    assert "hostcuda: kernel f, block (0,0,0), thread (0,0,0): writes 4 bytes" in text
    assert "1 failed, 1 passed" in text
    script.write_text(UNTOLD + "test_outside()")
    command = [sys.executable, "-m", "hostcuda", str(script)]
    assert subprocess.run(command, capture_output=True).returncode == 70
    script.write_text(UNTOLD + "test_outside()\ntry: cupy.ones(3).get()\nexcept Exception: pass")
    assert subprocess.run(command, capture_output=True).returncode == 0


# ---- waiting -------------------------------------------------------------------------------------


def test_threads_wait_for_threads(gpu):
    out = gpu.run(
        "__shared__ volatile int flag; if (!i) flag = 0; __syncthreads();"
        "if (i == 0) { while (!flag); o[0] = flag; } if (i == 32) flag = 7;",
        block=64,
    )
    assert out[0] == 7


@pytest.mark.parametrize(
    "load",
    [
        "v = __ldcv(o + 1);",
        'asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(o + 1) : "memory");',
        'asm volatile("ld.s32 %0, [%1];" : "=r"(v) : "l"(o + 1) : "memory");',
    ],
    ids=["cv", "cg", "plain"],
)
def test_threads_wait_for_what_a_loop_loads(gpu, load):
    out = gpu.run(
        f"if (i == 0) {{ int v; do {{ {load} }} while (!v); o[0] = v; }}"
        "if (i == 32) __stcg(o + 1, 7);",
        block=64,
    )
    assert out[0] == 7


@pytest.mark.parametrize("clock", ["globaltimer", "clock64"])
def test_threads_wait_for_a_clock_together(gpu, clock):
    out = gpu.run(
        "__device__ unsigned long long now() {"
        f'unsigned long long t; asm volatile("mov.u64 %0, %{clock};" : "=l"(t)); return t; }}\n'
        "====\nunsigned long long from = now(), to; while ((to = now()) - from < 50000000);"
        "atomicMax(o, from); atomicMax(o + 1, ~to);",
        out=(2, "u8"),
        grid=2,
        block=64,
    )
    assert out[0] < ~out[1]  # the last begins before the first ends


def test_lanes_wait_for_lanes(gpu):
    out = gpu.run(
        "__shared__ int lock; if (!i) lock = 0; __syncthreads(); bool done = false;"
        "while (!done) { if (atomicCAS(&lock, 0, 1) == 0) { o[0] += 1; __threadfence_block();"
        "atomicExch(&lock, 0); done = true; } }",
        block=64,
    )
    assert out[0] == 64


def test_blocks_wait_for_blocks(gpu):
    out = gpu.run(
        "volatile int *p = o; if (blockIdx.x == 0) { while (!p[1]); p[0] = p[1] + 1; }"
        "if (blockIdx.x == 2) p[1] = 5;",
        grid=3,
        block=1,
    )
    assert out[:2].tolist() == [6, 5]


def test_a_barrier_of_all_blocks(gpu):
    out = gpu.run(
        "__device__ unsigned arrived;\n====\natomicAdd(&o[0], 1); __syncthreads();"
        "if (!threadIdx.x) { atomicAdd(&arrived, 1); while (atomicAdd(&arrived, 0) < gridDim.x); }"
        "__syncthreads(); if (i == 0) o[1] = o[0];",
        grid=20,
        block=64,
    )
    assert out[1] == 20 * 64


def test_cooperative_launch():
    import cupy as cp

    if cp.__version__ < "14":
        pytest.skip("CuPy 13 links such kernels")
    from hostcuda import _build

    source = """
    #include <cooperative_groups.h>
    extern "C" __global__ void k(int *o) {
      auto grid = cooperative_groups::this_grid();
      o[grid.thread_rank()] = grid.thread_rank(); grid.sync();
      int n = o[grid.size() - 1 - grid.thread_rank()]; grid.sync(); o[grid.thread_rank()] = n;
    }"""
    k = cp.RawKernel(
        source, "k", options=(f"-I{_build.cuda_include()}",), enable_cooperative_groups=True
    )
    out = cp.zeros(256, "i4")
    k((4,), (64,), (out,))
    assert (out.get() == np.arange(255, -1, -1)).all()


def test_a_missing_lane_is_named(gpu):
    fails(
        gpu,
        "timed out|timeout",
        "waits at a warp function with mask 0xffffffff for lane 31 (line 3)",
        "\nif (l < 31) o[l] = __shfl_sync(~0u, l, 0);\nelse while (!((volatile int *)o)[40 - "
        "a]) __syncthreads();",
        np.int32(32),
        block=32,
    )


def test_barriers_that_miss_each_other(gpu):
    fails(
        gpu,
        "timed out|timeout",
        "waits at barrier 1 (line 3); thread (16,0,0) waits at barrier 2 (line 4)",
        '\nif (l < 16) asm volatile("bar.sync 1, 64;");\nelse asm volatile("bar.sync 2, 64;");',
    )


def test_lines_of_headers_are_those_of_the_kernel(gpu):
    from hostcuda import _build

    options = [f"-I{folder}" for folder in _build.vendor_folders()]
    fails(
        gpu,
        ILLEGAL,
        "behind the end of a block of 128 bytes (line 5)",
        "#include <cuda_pipeline.h>\n====\n__shared__ int s[32];\n"
        "__pipeline_memcpy_async(s + l,\n  o + l + 1, 4);\n__pipeline_commit();",
        options=options,
    )


def test_a_barrier_of_a_header_has_the_line_of_the_kernel(gpu):
    from hostcuda import _build

    options = [f"-I{folder}" for folder in _build.vendor_folders()]
    fails(
        gpu,
        "timed out|timeout",
        "waits at barrier 0 (line 5); thread (7,0,0) waits at barrier 3 (line 6)",
        "#include <cooperative_groups.h>\n====\nauto b = cooperative_groups::this_thread_block();\n"
        'if (i < 7) b.sync();\nelse asm volatile("bar.sync 3;");',
        options=[*options, "-std=c++17"],
    )


def test_a_function_of_a_header_is_named(gpu, tmp_path):
    (tmp_path / "set.h").write_text("\n\n__device__ __noinline__ void set(int *p) { *p = 1; }\n")
    source = '#include "set.h"\n====\n{}'
    options = [f"-I{tmp_path}"]
    fails(gpu, ILLEGAL, "(set.h, line 3)", source.format("set(o + l + 1);"), options=options)


def test_the_kernel_has_its_own_lines_beside_functions_of_headers(gpu, tmp_path):
    (tmp_path / "set.h").write_text("__device__ __noinline__ void set(int *p) { *p = 1; }\n")
    body = '#include "set.h"\n====\nset(o);\no[l + 1] = 1;'
    fails(gpu, ILLEGAL, "a block of 128 bytes (line 5)", body, options=[f"-I{tmp_path}"])


def test_a_mask_without_the_lane(gpu):
    fails(
        gpu,
        "launch failed|unspecified",
        "mask 0x1, which does not name its lane 1",
        "o[l] = __ballot_sync(1, 1);",
    )
