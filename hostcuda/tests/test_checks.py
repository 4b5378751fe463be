"""`--check`: reads of memory that nothing has written, and threads of a block that race."""

import json
import re
import subprocess
import sys

import pytest

# Of 128 threads: `t` is the thread, `x` has 128 zeros, and nothing has written `u`.
FOUND = {
    "no barrier": (
        "__shared__ int s[128];\ns[t] = t;\nx[t] = s[t ^ 64];",
        r"kernel k_no_barrier, block \(0,0,0\), thread \(0,0,0\): reads bytes 256 to 260 of shared "
        r"memory, which nothing has written yet, and writes what it read \(line 3\)",
    ),
    "a write, then a read": (
        "__shared__ int s[128];\ns[t] = t;\nx[t] = t ? s[t - 1] : 0;",
        r"kernel k_a_write_then_a_read, block \(0,0,0\), thread \(0,0,0\) writes \(line 2\) and "
        r"thread \(1,0,0\) reads \(line 3\) bytes 0 to 4 of shared memory, with no barrier "
        r"between them",
    ),
    "a read, then a write": (
        "__shared__ int s[128]; s[t] = t; __syncthreads(); int y = s[127 - t]; s[t] = y + t + 1;",
        "reads .* writes .* of shared memory",
    ),
    "two writes": (
        "__shared__ int s; s = t; __syncthreads(); x[t] = s;",
        "writes .* writes .* of shared memory",
    ),
    "dynamic": ("extern __shared__ int d[]; d[t] = t; x[t] = d[t / 2];", "writes .* reads"),
    "global": ("x[t] = t + 1; u[t] = x[t / 2];", "writes .* reads .* of a block of 512"),
    "in a warp": ("x[t] = t + 1; u[t] = x[t & ~31];", r"thread \(1,0,0\) reads"),
    "a mask without the reader": (
        "if (!t) x[1] = 1; if (t < 16) __syncwarp(0xffff); if (t == 16) x[2] = x[1];",
        r"thread \(16,0,0\) reads",
    ),
    "a barrier of another warp": (
        "if (t == 96) x[1] = 1; if (t < 32) __syncwarp(); if (!t) x[2] = x[1];",
        r"thread \(96,0,0\)",
    ),
    "bytes": ("auto c = (char *)x; c[t] = 1 + t; u[t] = c[t / 2];", "bytes 0 to 1 of a block"),
    "unwritten shared": (
        "__shared__ int s[128]; if (t) s[t] = t; __syncthreads(); x[t] = s[127 - t];",
        r"thread \(127,0,0\): reads bytes 0 to 4 of shared memory, which nothing has written yet",
    ),
    "unwritten counts": (
        "__shared__ int s[8];\natomicAdd(&s[t % 8], 1); __syncthreads(); x[t] = 2 * s[t % 8] + 1;",
        r"reads .* which nothing has written yet, and writes what it read \(line 2\)",
    ),
    "unwritten global": ("x[t] = u[t] + 1;", "reads bytes 0 to 4 of a block of 512, which nothing"),
    "unwritten malloc": (
        "int *p = (int *)malloc(4); x[t] = *p; free(p);",
        "reads bytes 0 to 4 of a block of 4, which nothing",
    ),
    "unwritten and added to": (
        "atomicAdd(&u[t], 1);",
        r"reads .*, which nothing has written yet, and updates it \(line 1\)",
    ),
    "unwritten and compared": ("if (u[t] > 3) x[t] = 1;", "written yet, and branches by it"),
    "unwritten and chosen by": ("x[t] = u[t] > 3 ? t : 1;", "written yet, and writes what it read"),
    "unwritten index": (
        "__shared__ int s[128];\nx[s[t] & 31] = 1;",
        "which nothing has written yet, and uses it as an address",
    ),
    "an atomic, then a read": (
        "__shared__ int s; if (!t) s = 0; __syncthreads();\natomicAdd(&s, 1);\nx[t] = s;",
        r"reads \(line 3\) and .* updates \(line 2\) bytes 0 to 4 of shared memory",
    ),
    "a write, then an atomic": (
        "__shared__ int s;\nif (!t) s = 0;\nx[t] = atomicAdd(&s, 1);",
        r"writes \(line 2\) and .* updates \(line 3\) bytes 0 to 4 of shared memory",
    ),
    "two barriers": (
        "if (t % 2) {\n__syncthreads(); x[t] = 1; } else {\n__syncthreads(); u[t] = 1; }",
        r"thread \(\d+,0,0\): waits at a barrier \(line [23]\), and other threads of its warp at "
        r"another one \(line [32]\)",
    ),
    "two barriers of a count": (
        "if (t % 32 < 9)\nx[t] = __syncthreads_or(t);\nelse {\n__syncthreads(); x[t] = 1; }",
        r"waits at a barrier \(line 4\), and other threads of its warp at another one \(line 2\)",
    ),
    "a shuffle from outside of the mask": (
        "if (t < 8)\nx[t] = __shfl_sync(0xff, t, 9);",
        r"thread \(\d,0,0\): a shuffle reads lane 9, which takes no part in it, and the thread "
        r"writes what it read \(line 2\)",
    ),
    "a reduction in a part of a warp": (
        "if (t < 20) { int v = t; for (int d = 16; d; d /= 2) "
        "v += __shfl_down_sync(0xfffff, v, d); if (!t) x[0] = v; }",
        r"a shuffle reads lane \d+, which takes no part",
    ),
    "blocks write one place": (
        "x[t] = blockIdx.x;",
        r"block \(2,0,0\), thread \(0,0,0\): writes \(line 1\) bytes 0 to 4 of a block of 512, "
        r"which block \(1,0,0\) writes, and nothing orders the blocks",
    ),
    "blocks add to one place": ("x[t] += 1;", r"which block \(0,0,0\) writes, and nothing orders"),
    "blocks read what another writes": (
        "int b = blockIdx.x; if (!t)\nx[b] = 7;\nif (t == 1 && b)\nu[b] = x[b - 1];",
        r"block \(1,0,0\), thread \(1,0,0\): reads \(line 4\) .*, which block \(0,0,0\) writes",
    ),
    "blocks, an atomic beside a write": (
        "if (!t && blockIdx.x) atomicAdd(x, 1); else if (!t) x[0] = 5;",
        r"updates \(line 1\) bytes 0 to 4 .*, which block \(0,0,0\) writes",
    ),
}
SILENT = {
    "barrier": "__shared__ int s[128]; s[t] = t; __syncthreads(); x[t] = s[127 - t];",
    "named barrier": """
        __shared__ int s[128];
        if (t < 64) { s[t] = t; asm volatile("bar.sync 1, 64;" ::: "memory"); x[t] = s[63 - t]; }
    """,
    "syncwarp": "__shared__ int s[128]; s[t] = t; __syncwarp(); x[t] = s[t ^ 31];",
    "chain of syncwarps": """
        if (!t) x[1] = 1;
        if (t < 2) __syncwarp(3);
        if (t == 1 || t == 2) __syncwarp(6);
        if (t == 2) x[2] = x[1];
    """,
    "shuffle": "x[t] = t; int y = __shfl_xor_sync(~0u, t, 1); u[t] = x[t ^ 3] + y;",
    "before Volta": """
        __shared__ volatile int s[128];
        s[t] = t;
        __syncthreads();
        if (t < 64) s[t] += s[t + 64];
        __syncthreads();
        if (t < 32) { s[t] += s[t + 32]; s[t] += s[t + 16]; s[t] += s[t + 8]; s[t] += s[t + 4]; }
        x[t] = s[0];
    """,
    "atomics": """
        __shared__ int s[8];
        if (t < 8) s[t] = 0;
        __syncthreads();
        atomicAdd(&s[t % 8], 1);
        __syncthreads();
        x[t] = s[t % 8];
    """,
    "compare and swap": """
        __shared__ int s, v;
        if (!t) s = v = 0;
        __syncthreads();
        int old = s, seen;
        do { seen = old; old = atomicCAS(&s, seen, max(seen, t + v)); } while (old != seen);
        __syncthreads();
        x[t] = s;
    """,
    "a maximum with an early exit": """
        __shared__ int s;
        if (!t) s = 0;
        __syncthreads();
        int old = s;
        while (old < 7 * t % 128) {
            int seen = old;
            old = atomicCAS(&s, seen, 7 * t % 128);
            if (old == seen) break;
        }
        x[t] = t;
        __syncthreads();
        u[t] = s;
    """,
    "one barrier of two callers": """
        auto meet = [] { __syncthreads(); };
        if (t % 2) meet(); else meet();
    """,
    "two barriers of whole warps": """
        if (t < 32) { __syncthreads(); x[t] = 1; } else
        { __syncthreads(); x[t] = 2; }
    """,
    "barriers of parts": """
        if (t < 64) asm volatile("bar.sync 1, 64;");
        else
            asm volatile("bar.sync 2, 64;");
        if (t < 32) asm volatile("bar.arrive 3, 64;"); else if (t < 64)
            asm volatile("bar.sync 3, 64;");
    """,
    "a shuffle up": """
        int v = t;
        if (t < 20) {
            for (int d = 1; d < 20; d *= 2) {
                int y = __shfl_up_sync(0xfffff, v, d);
                if (t >= d) v += y;
            }
            x[t] = v;
        }
    """,
    "a shuffled value that is not used": """
        if (t < 20) {
            int y = __shfl_down_sync(0xfffff, t, 1);
            if (t == 19) y = 5;
            x[t] = y;
        }
    """,
    "blocks with parts of their own": "if (t < 32) x[32 * blockIdx.x + t] += t + 1;",
    "blocks that write the same": "x[t] = 7;",
    "blocks with atomics": "atomicAdd(&x[t], 1); atomicMax(&x[0], t);",
    "blocks with a volatile flag": """
        volatile int *flag = x;
        if (!t) { if (!blockIdx.x) *flag = 1; else while (!*flag) ; }
    """,
    "blocks of which the last one adds": """
        __shared__ bool is_last;
        if (!t) {
            x[blockIdx.x + 1] = blockIdx.x + 5;
            __threadfence();
            is_last = atomicAdd(x, 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (!t && is_last) { int sum = 0; for (int b = 1; b < 5; ++b) sum += x[b]; x[5] = sum; }
    """,
    "blocks with a maximum": """
        int old = x[0];
        while (old < t) {
            int seen = old;
            old = atomicCAS(x, seen, t);
            if (old == seen) break;
        }
    """,
    "the same value": "__shared__ int s; s = 7; __syncthreads(); x[t] = s;",
    "lock": """
        __shared__ int lock, sum;
        if (!t) lock = sum = 0;
        __syncthreads();
        while (atomicCAS(&lock, 0, 1)) ;
        __threadfence_block(); sum += t; __threadfence_block();
        atomicExch(&lock, 0);
    """,
    "flag": """
        __shared__ int value; __shared__ volatile int flag;
        if (!t) flag = 0;
        __syncthreads();
        if (t == 100) { value = 5; __threadfence_block(); flag = 1; }
        if (t == 3) { while (!flag) ; __threadfence_block(); x[0] = value; }
    """,
    "release and acquire": """
        __shared__ int value, flag; int seen = 0;
        unsigned at = __cvta_generic_to_shared(&flag);
        if (!t) flag = 0;
        __syncthreads();
        if (t == 100) {
            value = 5;
            asm volatile("st.release.cta.shared.u32 [%0], 1;" :: "r"(at));
        }
        if (t == 3) {
            while (!seen)
                asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"(at));
            x[0] = value;
        }
    """,
    "neighbouring bytes": "auto c = (char *)x; c[t] = 1; u[t] = c[t];",
    "padding": """
        struct alignas(8) S { int a; char b; };
        S s; s.a = t; s.b = 1;
        auto p = (S *)u; if (t < 64) { p[t].a = t; p[t].b = 2; S copy = p[t]; ((S *)x)[t] = copy; }
    """,
    "a vector in part": "u[4 * (t / 4)] = 1; __syncthreads(); x[t] = ((int4 *)u)[t / 4].x;",
    "an unused value": """
        __shared__ int s[128];
        if (t < 64) s[t] = t;
        __syncthreads();
        int y = s[t], z = s[127 - t] + 1;
        __syncthreads();
        s[t] = y;
        __syncthreads();
        x[t] = t < 64 ? s[t] : t;
        if (t > 63) u[t] = z;
    """,
    "an unused value of device memory": """
        if (t < 64) u[t] = t;
        int y = u[t];
        x[t] = t < 64 ? y : 0;
    """,
    "a condition that another decides": """
        if (t < 64) u[t] = t;
        bool both = t < 64 & u[t] > 3, one = t > 63 | u[t] > 3;
        if (both) x[t] = 5;
        if (one) x[t] = 6;
    """,
    "exchange of nothing": "atomicExch(&u[t], 1); x[t] = u[t];",
    "local": "int a[8]; a[t % 8] = t; x[t] = a[t % 8 ? t % 8 : 0];",
    "constant and variable": "x[t] = c[t % 4] + v[t % 4];",
    "host copy": "x[t] = h[t];",
    "fill": "x[t] = m[t];",
    "malloc": "int *p = (int *)malloc(4); *p = t; x[t] = *p; free(p);",
}
PROGRAM = """
import json, sys, cupy, numpy as np, hostcuda
cupy.cuda.set_allocator(None)
kernels = json.load(sys.stdin)
source = "__constant__ int c[4]; __device__ int v[4];" + "".join(
    'extern "C" __global__ void %s(int *x, int *u, const int *h, const int *m) '
    "{ int t = threadIdx.x; %s\\n}" % kernel for kernel in kernels.items()
).replace('extern "C"', '\\n#line 1 "kernel.cu"\\nextern "C"')
module = cupy.RawModule(code=source, options=("-std=c++17",))
found = {}
for name in kernels:
    arrays = cupy.zeros(128, "i4"), cupy.empty(128, "i4"), cupy.array([3] * 128, "i4")
    filled = cupy.empty(128, "i4")
    filled.data.memset(0, 512)
    grid = 4 if name.startswith("k_blocks") else 1
    module.get_function(name)((grid,), (128,), (*arrays, filled), shared_mem=512)
    hostcuda.finish()
    found[name] = hostcuda.failures()
    hostcuda.revive()
json.dump(found, sys.stdout)
"""


def _name(case):
    return "k_" + re.sub(r"\W+", "_", case)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("checks") / "program.py"
    path.write_text(PROGRAM)
    bodies = {**{case: body for case, (body, _) in FOUND.items()}, **SILENT}
    done = subprocess.run(
        [sys.executable, "-m", "hostcuda", "--check", str(path)],
        input=json.dumps({_name(case): body for case, body in bodies.items()}),
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", FOUND)
def test_what_is_wrong_is_found(case, found):
    assert any(re.search(FOUND[case][1], text) for text in found[_name(case)]), found[_name(case)]


@pytest.mark.parametrize("case", SILENT)
def test_what_is_right_stays_silent(case, found):
    assert found[_name(case)] == []


OF_PYCUDA = """
import numpy as np, pycuda.autoinit, pycuda.driver as drv
from pycuda.compiler import SourceModule
f = SourceModule("__global__ void f(int *x) { x[threadIdx.x] += 1; }").get_function("f")
f(drv.mem_alloc(16), block=(4, 1, 1))
"""


def test_a_program_with_findings_ends_with_70(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(OF_PYCUDA)
    command = [sys.executable, "-m", "hostcuda", "--check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        70,
        "hostcuda: kernel f, block (0,0,0), thread (0,0,0): reads bytes 0 to 4 of a block of 16, "
        "which nothing has written yet, and writes what it read (line 2)\n",
    )
    command.remove("--check")
    assert subprocess.run(command).returncode == 0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("f((1,), (128,), (x,))", "end of a block of 400 bytes that program.py:2 allocated (line"),
        (
            "p = x.data.ptr; del x; f((1,), (1,), (np.uintp(p),))",
            "0 bytes into a block of 400 bytes that program.py:2 allocated and that was freed",
        ),
    ],
    ids=["too far", "freed"],
)
def test_it_is_told_who_allocated_a_block(code, said, tmp_path):
    program = tmp_path / "program.py"
    source = 'extern "C" __global__ void f(float *x) { x[threadIdx.x] += 1; }'
    program.write_text(
        f"import cupy, numpy as np\nx = cupy.zeros(100, 'f')\n"
        f"f = cupy.RawKernel({source!r}, 'f')\n{code}\n"
    )
    command = [sys.executable, "-m", "hostcuda", "--check", "--no-pool", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert said in done.stderr
    done = subprocess.run([*command[:3], *command[4:]], capture_output=True, text=True)
    assert "block of 400 bytes" in done.stderr  # without --check, Python is not asked
    assert "program.py:2" not in done.stderr
