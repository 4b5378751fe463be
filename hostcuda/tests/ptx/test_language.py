"""What CUDA C has: calls, virtual functions, printf, malloc, inline PTX, names."""

import numpy as np
import pytest


def test_recursion(gpu):
    out = gpu.run(
        "__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n====\no[l] "
        "= fib(l % 16);"
    )
    fib = [0, 1]
    while len(fib) < 16:
        fib.append(fib[-1] + fib[-2])
    assert out.tolist() == fib * 2


def test_function_pointers(gpu):
    out = gpu.run(
        "typedef int (*F)(int, int); __device__ int add(int a, int b) { return a + b; }\n"
        "__device__ int mul(int a, int b) { return a * b; }\n__device__ F table[] = {add, "
        "mul};\n====\n"
        "o[l] = table[(l + a) & 1](l, 3);",
        np.int32(0),
    )
    lane = np.arange(32)
    assert (out == np.where(lane & 1, lane * 3, lane + 3)).all()


def test_many_functions(gpu):
    """Their names in C++ must not be those of types, such as f32."""
    functions = "".join(
        f"__device__ __noinline__ int add{n}(int *p, int x) {{ p[1] = x; return x + {n}; }}\n"
        for n in range(70)
    )
    calls = " ".join(f"s = add{n}(o, s);" for n in range(70))
    assert gpu.run(f"{functions}====\nint s = 0; {calls} o[0] = s;", block=1)[0] == 69 * 35


def test_virtual_functions(gpu):
    out = gpu.run(
        "struct B { __device__ virtual double f(int x) const = 0; };\n"
        "struct C : B { __device__ double f(int x) const override { return x * 2; } };\n"
        "struct D : B { double k; __device__ double f(int x) const override { return x + k; } "
        "};\n====\n"
        "C c; D d; d.k = .5; const B *b = (l + a) % 2 ? (B *)&c : (B *)&d; o[l] = b->f(l);",
        np.int32(0),
        out=(32, "f8"),
    )
    lane = np.arange(32)
    assert (out == np.where(lane % 2, lane * 2, lane + 0.5)).all()


def test_large_results_of_functions(gpu):
    out = gpu.run(
        "struct S { int a[9]; }; __device__ __noinline__ S f(S s, int k) { for (int j = 0; j < "
        "9; ++j)"
        "s.a[j] += k * j; return s; }\n====\nS s; for (int j = 0; j < 9; ++j) s.a[j] = l; s = "
        "f(s, a);"
        "o[l] = s.a[l % 9];",
        np.int32(3),
    )
    lane = np.arange(32)
    assert (out == lane + 3 * (lane % 9)).all()


def test_switch(gpu):
    cases = "".join(f"case {n}: r = {n * n + 1}; break;" for n in range(0, 30, 2))
    out = gpu.run(f"int r; switch (l + a) {{ {cases} default: r = -1; }} o[l] = r;", np.int32(0))
    assert out.tolist() == [n * n + 1 if n % 2 == 0 and n < 30 else -1 for n in range(32)]


def test_printf(gpu, capfd):
    out = gpu.run(
        'o[0] = printf("%d %5.2f %s %c %llx %%|%-4d|\\n", 7, 1.5f, "text", \'x\', '
        "0xabcdef0123ull, 3);"
        'o[1] = printf("a __global__ b\\n"); o[2] = printf("%d %d\\n", 1, 2);',
        block=1,
    )
    _flush()
    assert capfd.readouterr().out == "7  1.50 text x abcdef0123 %|3   |\na __global__ b\n1 2\n"
    assert out[:3].tolist() == [6, 0, 2]


def test_printf_prints_conversions_that_cuda_lacks_as_they_stand(gpu, capfd):
    given = "%zu %jd %td %.*f %Lf %k %5% %d %5d %lld %s|"
    gpu.run(f'printf("{given}\\n", 1, 2, 3ll, "end");', block=1)
    _flush()
    assert capfd.readouterr().out == "%zu %jd %td %.*f %Lf %k %5% 1     2 3 end|\n"


def test_printf_of_many(gpu, capfd):
    args = ", ".join(map(str, range(32)))
    gpu.run(f'printf("{"%d " * 32}\\n", {args});', block=1)
    _flush()
    assert capfd.readouterr().out == " ".join(map(str, range(32))) + " \n"


def _flush():
    import ctypes

    ctypes.CDLL(None).fflush(None)


def test_malloc(gpu):
    out = gpu.run(
        "int *p = (int *)malloc(4 * (l + 1)); for (unsigned j = 0; j <= l; ++j) p[j] = j; int s "
        "= 0;"
        "for (unsigned j = 0; j <= l; ++j) s += p[j]; free(p); int *q = new int(s); o[l] = *q; "
        "delete q;"
    )
    lane = np.arange(32)
    assert (out == lane * (lane + 1) // 2).all()


def test_malloc_of_too_much(gpu):
    assert gpu.run("o[0] = malloc(1 << 30) == 0;", block=1)[0] == 1


def test_templates_and_lambdas(gpu):
    out = gpu.run(
        "template <class T, int N> __device__ T sum(T x) { T s = 0; for (int j = 0; j < N; ++j) "
        "s += x; return s; }\n"
        "====\nauto twice = [&](int x) { return sum<int, 2>(x) + a; }; o[l] = twice(l);",
        np.int32(1),
    )
    assert (out == 2 * np.arange(32) + 1).all()


def test_registers_of_the_thread(gpu):
    source = """extern "C" __global__ void k(int *o) {
      int n = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      unsigned lane, warp; asm("mov.u32 %0, %laneid;" : "=r"(lane));
      asm("mov.u32 %0, %warpid;" : "=r"(warp));
      o[b * 60 + n] = (lane == n % 32) + (warp == n / 32) + (blockDim.z == 5) + (gridDim.y == 3);
    }"""
    out = gpu.run(source, out=(60 * 24, "i4"), grid=(2, 3, 4), block=(3, 4, 5))
    assert (out == 4).all()


def test_masks_of_lanes(gpu):
    out = gpu.run(
        'unsigned a, b; asm("mov.u32 %0, %lanemask_lt;" : "=r"(a)); asm("mov.u32 %0, '
        '%lanemask_ge;" : "=r"(b));'
        "o[l] = __popc(a) + 100 * __popc(b) + 10000 * (a == (1u << l) - 1) + 10000 * (b == ~a);"
    )
    lane = np.arange(32)
    assert (out == lane + 100 * (32 - lane) + 20000).all()


def test_clocks_go_on(gpu):
    out = gpu.run(
        'long long c = clock64(); unsigned long long t, u; asm volatile("mov.u64 %0, '
        '%globaltimer;" : "=l"(t));'
        '__nanosleep(100); asm volatile("mov.u64 %0, %globaltimer;" : "=l"(u)); o[0] = '
        "clock64() > c && u >= t;",
        block=1,
    )
    assert out[0] == 1


def test_inline_loop(gpu):
    out = gpu.run(
        'int s; asm("{ .reg .pred p; .reg .s32 n; mov.s32 n, %1; mov.s32 %0, 0;\\n$again: '
        'add.s32 %0, %0, n;"'
        '"sub.s32 n, n, 1; setp.gt.s32 p, n, 0;\\n@p bra $again; }" : "=r"(s) : "r"(l + 1)); '
        "o[l] = s;",
    )
    lane = np.arange(32)
    assert (out == (lane + 1) * (lane + 2) // 2).all()


def test_labels_in_braces_of_their_own(gpu):
    once = (
        'asm("{ .reg .pred p; setp.eq.s32 p, %1, 0;\\n@p bra DONE; add.s32 %0, %0, %2;\\nDONE: }"'
        ' : "+r"(s) : "r"(l % {n}), "n"({n}));'
    )
    out = gpu.run(f"int s = 0; {once.replace('{n}', '2')} {once.replace('{n}', '3')} o[l] = s;")
    lane = np.arange(32)
    assert (out == np.where(lane % 2, 2, 0) + np.where(lane % 3, 3, 0)).all()


def test_complex_numbers(gpu):
    out = gpu.run(
        "#include <cuComplex.h>\n====\ncuDoubleComplex z = make_cuDoubleComplex(3, 4);"
        "cuDoubleComplex q = cuCdiv(z, make_cuDoubleComplex(1, 1)); o[0] = cuCabs(z); o[1] = "
        "q.x; o[2] = q.y;",
        out=(3, "f8"),
        block=1,
        options=_include(),
    )
    assert out.tolist() == [5, 3.5, 0.5]


def _include():
    from hostcuda import _build

    return [f"-I{_build.cuda_include()}"]


def test_attributes_of_functions(gpu):
    import pycuda.driver as cuda

    gpu.run("__shared__ int s[100]; s[l] = l; __syncthreads(); o[l] = s[31 - l];")
    function = gpu.module.get_function("k")
    assert function.get_attribute(cuda.function_attribute.SHARED_SIZE_BYTES) == 400
    assert function.get_attribute(cuda.function_attribute.MAX_THREADS_PER_BLOCK) == 1024


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            '__shared__ long long s; asm("mbarrier.init.shared.b64 [%0], 1;" :: '
            '"l"(__cvta_generic_to_shared(&s)));',
            "mbarrier",
        ),
        (
            'asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%0}, {%1}, '
            '{%0,%1};"'
            ': "+d"(x), "+d"(y)); o[0] = x;',
            "mma",
        ),
    ],
)
def test_what_is_not_supported_is_named(gpu, source, what):
    import hostcuda

    with pytest.raises(
        hostcuda.CompileError, match=rf"hostcuda: {what}\S* is not supported \(in k, line 2\)"
    ):
        gpu.run(f"double x = a, y = a; {source}", np.float64(1), out=(1, "f8"), block=32)


@pytest.mark.parametrize(
    ("dims", "is_run"), [("1", True), ("2", False), ("1, 2", False), ("1, 1, 1", True)]
)
def test_clusters_are_of_one_block(gpu, dims, is_run):
    import hostcuda

    source = f'extern "C" __cluster_dims__({dims}) __global__ void k(int *o) {{ o[0] = 5; }}'
    if is_run:
        assert gpu.run(source, block=1)[0] == 5
        return
    said = r"hostcuda: clusters of blocks are not supported \(in k\)"
    with pytest.raises(hostcuda.CompileError, match=said):
        gpu.run(source, block=1)
