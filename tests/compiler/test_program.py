"""SourceModule: what NVRTC makes of sources and options written for nvcc; modules; the cache."""

import gc
import itertools
import os
import re
import threading
import time
import weakref

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from processes import run_python
from real_nvrtc import in_nvrtc

import bridge
from bridge.compiler import cache, fixes, nvrtc
from bridge.compiler.headers import supplied, vendor_folders
from bridge.compiler.options import translate

CUPY_13 = cupy.__version__.startswith("13.")
SET = "__global__ void set(float *x) { x[0] = VALUE; }"


# --- options ---------------------------------------------------------------------------------

SAME = "-DN=3", "-UN", "-std=c++14", "-use_fast_math", "--fmad=false", "-lineinfo", "-ftz=true"
NOT_NEEDED = (
    "-Wno-deprecated-gpu-targets",
    "-arch=native",
    "-O3",
    "-m64",
    "--expt-relaxed-constexpr",
)
TRANSLATED = {
    **{option: [option] for option in SAME},
    **{option: [] for option in NOT_NEEDED},
    "-D N=3": ["-DN=3"],
    "--std c++14": ["-std=c++14"],
    "--maxrregcount 32": ["--maxrregcount", "32"],
    "-g -G": ["-G"],
    "-Xptxas=-v,-warn-spills": ["--ptxas-options=-v", "--ptxas-options=-warn-spills"],
}


PLACES = {
    **dict.fromkeys(["-I/one -I /two", "-I=/one -isystem /two"], (None, ["/one", "/two"], [])),
    **dict.fromkeys(["-arch=sm_86", "--gpu-architecture sm_86"], ("sm_86", [], [])),
    **dict.fromkeys(["-arch sm_89 -arch=sm_86"], ("sm_86", [], [])),  # nvcc takes the last
    **dict.fromkeys(["-arch=compute_80 -code=sm_86"], ("sm_86", [], [])),
    **dict.fromkeys(["-gencode arch=compute_80,code=sm_86"], ("sm_86", [], [])),
    **dict.fromkeys(["-gencode=arch=compute_80,code=[sm_86]"], ("sm_86", [], [])),
}


@pytest.mark.parametrize("text", [*TRANSLATED, *PLACES])
def test_an_option_of_nvccs(text):
    expected = PLACES.get(text) or (None, [], TRANSLATED[text])
    assert translate(text.split()) == expected


WITHOUT_MEANING = ["-Xcompiler=-Wall", "-Xcompiler -fPIC", "--compiler-options=-O3", "-e add"]
WITHOUT_MEANING += ["-ccbin=g++", "-ccbin gcc", "--compiler-bindir=/usr/bin", "--resource-usage"]


@pytest.mark.parametrize("text", WITHOUT_MEANING)
def test_an_option_without_meaning_for_nvrtc_is_left_out(text):
    with pytest.warns(UserWarning, match=f"option {text[:6]}.* has no meaning for NVRTC: it is ig"):
        assert translate(["-DA", *text.split(), "-DB"]) == (None, [], ["-DA", "-DB"])


@pytest.mark.parametrize("nvcc", ["nvcc", "/usr/local/cuda/bin/nvcc"])
def test_nvrtc_says_that_it_does_not_use_another_nvcc(nvcc, recwarn):
    for _ in range(2):
        bridge.SourceModule("__global__ void f() { }", nvcc=nvcc)
    said = [str(one.message) for one in recwarn]
    assert len(said) == (nvcc != "nvcc")  # once a line
    for text in said:
        assert text.startswith(f"nvcc='{nvcc}' is ignored, since NVRTC compiles: leave it out, or")


@pytest.mark.parametrize("text", ["-rdc=true", "-rdc true", "-dc", "-dlto"])
def test_an_option_for_the_linker_is_refused(text):
    with pytest.raises(ValueError, match="means nothing to NVRTC: it is for the linker; leave it"):
        bridge.SourceModule(SET, options=text.split())


# --- the real NVRTC --------------------------------------------------------------------------

KERNEL = "__global__ void f(float *x) { x[0] = %s; }"
# Sources for NVRTC: name -> (source, SourceModule's keywords).
COMPILE = {
    **{f"option {text}": (KERNEL % 1, {"options": text.split()}) for text in TRANSLATED},
    "architecture": (KERNEL % 1, {"arch": "sm_80"}),
    "PTX": (KERNEL % 1, {"arch": "compute_80"}),
}
HEADERS = [
    "assert.h", "cassert", "cfloat", "climits", "cmath", "cstdint", "cstdio", "cstdlib", "cuda.h",
    "cuda_runtime.h", "device_launch_parameters.h", "float.h", "limits.h", "math.h", "stddef.h",
    "stdint.h", "stdio.h", "stdlib.h", "string.h",
]  # fmt: skip
for _header in HEADERS:
    COMPILE[f"header {_header}"] = (f"#include <{_header}>\n{KERNEL % 1}", {})
CPP_HEADERS = [
    "cooperative_groups.h", "cuda_fp16.h", "cuComplex.h", "math_constants.h", "cuda/std/cstdint",
    "cuda/std/climits", "cuda/std/cfloat", "cuda/std/limits", "cuda/std/cmath", "cuda/std/complex",
    "cub/cub.cuh", "cupy/complex.cuh", "pycuda-complex.hpp", "thrust/complex.h",
]  # fmt: skip
for _header in CPP_HEADERS:
    _source = f"#include <stdint.h>\n#include <float.h>\n#include <{_header}>\n"
    COMPILE[f"header {_header}"] = (f'{_source}extern "C" {KERNEL % 1}', {"no_extern_c": True})

EXPRESSIONS = [
    "HUGE_VALF", "RAND_MAX", "(u_int)3", "sizeof(__int128)", "std::size_t(1)",
    "M_PI", "INFINITY", "-NAN", "HUGE_VAL", "INT_MAX", "INT_MIN", "UINT_MAX", "LLONG_MIN",
    "pow(2,3)", "pow(x[0],2)", "pow(2u,x[0])", "pow(x[0],2.)", "std::abs(x[0])", "std::sqrt(x[0])",
    "(uint)3", "(int64_t)1", "(ulong)1", "min(1,2u)", "clock()", "isnan(x[0])", "fminf(x[0],1.f)",
]  # fmt: skip
for _expression in EXPRESSIONS:
    COMPILE[f"expression {_expression}"] = (KERNEL % _expression, {})
COMPILE["expression UINT8_MAX"] = ("#include <stdint.h>\n" + KERNEL % "uint8_t(UINT8_MAX)", {})
COMPILE["expression DBL_EPSILON"] = ("#include <float.h>\n" + KERNEL % "DBL_EPSILON + FLT_MAX", {})
COMPILE["register"] = (
    "__device__ float one() { register float a = 1; return a; }\n" + KERNEL % 1,
    {},
)
COMPILE["NDEBUG"] = ("#define NDEBUG\n#include <assert.h>\n" + KERNEL % "1; assert(nothing)", {})
COMPILE["NDEBUG as an option"] = (KERNEL % "1; assert(nothing)", {"options": ["-DNDEBUG"]})
COMPILE["printf and assert"] = (KERNEL % '1; printf("%f", x[0]); assert(x[0] > 0)', {})

# What nvcc takes, and NVRTC only with a fix.
OF_NVCC = {
    "a shuffle of old": KERNEL % "__shfl_down(x[0], 1) + __shfl(x[1], 0, 8)",
    "a shuffle of old overloaded": "__device__ double __shfl_xor(double x, int lane)"
    " { return __shfl_xor_sync(~0u, x, lane); }\n"
    + KERNEL
    % "__shfl_xor(1.0, 1) + __shfl_xor(x[0], 2)",
    "a shuffle over one of old": "__device__ double __shfl_down(double x, unsigned by, int w = 32)"
    " { int2 *a = (int2 *)&x; a->x = __shfl_down(a->x, by, w); a->y = __shfl_down(a->y, by, w);"
    " return x; }\n" + KERNEL % "__shfl_down(1.0, 1)",
    "a shuffle of its own": "template <class T> __device__ T __shfl_down(T x, unsigned by,"
    " int w = 32) { return __shfl_down_sync(~0u, x, by, w); }\n" + KERNEL % "__shfl_down(x[0], 1)",
    "votes of old": KERNEL % "__any(x[0] > 0) + __all(x[0] > 0) + __ballot(x[0] > 0)",
    "texture references": "texture<float, 2> image;\n" + KERNEL % "tex2D(image, 0.f, 0.f)",
    "constants of constants": "const float D = 4, E = D / 3;\nstatic const double F = E * 2.0;\n"
    "const float table[2] = {D, 1 / E};\n" + KERNEL % "F + table[1] + E",
    "a constant in device memory": "__device__ const float D = 4;\n"
    "__device__ const float E = 1 / D;\n" + KERNEL % "E",
    "host functions": "__host__ void run(float *x) { x[0] = 1; }\n__host__ void later(float *);\n"
    + KERNEL % 1,
    "a whole program": "#include <cstdio>\n#include <iostream>\n#include <vector>\n"
    "#include <unistd.h>\n"
    "using namespace std;\n" + KERNEL % 1 + "\nstatic void check(cudaError_t e)\n{\n"
    '  if (e) { cerr << "failed } {" << endl; exit(1); }\n}\nstd::vector<float> data;\n'
    "int main(int argc, char **argv)\n{\n  float *p;\n  check(cudaMalloc(&p, 4));\n"
    "  f<<<1, 1>>>(p);\n  return 0;\n}\n",
    "host functions that end otherwise": "#include <vector>\nstruct Image { int n;"
    " int count() const; };\nint Image::count() const { std::vector<int> v; return n; }\n"
    "long size() noexcept { std::vector<int> v; return 1; }\nnamespace a::b { "
    "unsigned one(int n = 1) { std::vector<int> v; return n; } }\n" + KERNEL % 1 + "\nint z;",
    "thrust on the host": "#include <thrust/sort.h>\n#include <thrust/device_vector.h>\n"
    + KERNEL % 1
    + "\nvoid sort(float *p) { thrust::device_ptr<float> d(p); thrust::sort(d, d + 3); }",
    "traits": "#include <utility>\n#include <type_traits>\ntemplate <class T> struct Sum"
    ' { typedef decltype(std::declval<T>() + 1) type; };\nextern "C" '
    + KERNEL
    % "Sum<float>::type(2) + std::is_same<int, float>::value",
}
LEAVE_OUT = {"a whole program", "host functions that end otherwise", "thrust on the host"}
# Macros whose names headers before the source use, too.
COMPILE["macros of one letter"] = (
    "#if A != 1 || defined(GONE)\n#error\n#endif\n"
    + KERNEL % "std::abs(pow(T(2), B(3))) + sizeof(texture<float>)",
    {"options": ["-DA", "-DT=float", "-DB(x)=x", "-Dtype=int", "-DGONE", "-UGONE", "-D", "name=2"]},
)
COMPILE["macros of words"] = ("#define size 32\n#define item x\n" + KERNEL % "item[0] + size", {})
RELAXED = ["std::min(x[0], x[1])", "sqrt(3)", "fmax(x[0], 2.0)", "atan2(1, x[0])", "log2(7u)"]
RELAXED += ["pow(2, 3)"]
for _name, _source in OF_NVCC.items():
    COMPILE[_name] = (_source, {"no_extern_c": "template" in _source})
for _expression in RELAXED:
    COMPILE[f"relaxed {_expression}"] = (
        f"#include <algorithm>\n{KERNEL % _expression}",
        {"options": ["--expt-relaxed-constexpr"]},
    )
# What NVRTC refuses, and what is said of it.
UNDEFINED = 'identifier "nothing" is undefined'
ERRORS = {
    "a wrong line": (
        f"\n\n__device__ int one() {{ return 1; }}\n{KERNEL % 'one() + nothing'}",
        'kernel.cu(4): error: identifier "nothing" is undefined',
        "__global__ void f(float *x) { x[0] = one() + nothing; }",
    ),
    "a missing header": (
        f'#include "mine.h"\n{KERNEL % 1}',
        "the header is not found: name its folder, include_dirs=['...']",
        "kernel.cu(1)",
    ),
    "a header of the host": (
        f"#include <vector>\n{KERNEL % 'std::vector<int>(3).size()'}",
        "no headers of the host",
        "vector",
    ),
    "a header of CUDA": (
        f"#include <curand_nothing.h>\n{KERNEL % 1}",
        "from pip (curand_kernel.h: nvidia-curand-cu12",
    ),
    "a function of CUDA's name, no_extern_c": (
        'extern "C" __global__ void norm(float *x) { }',
        "CUDA, or the source, has another function of that name: rename one",
    ),
    "a type of a header": (KERNEL % "uint32_t(1)", "write #include <cstdint>"),
    "host code": (KERNEL % "1; cudaSetDevice(0)", "device code only"),
    "a template": (
        "template <class T> __global__ void add(T *x) { }",
        "for templates and other C++ pass no_extern_c=True",
    ),
    "a sum that is no constant": ("const float D = nothing; " + KERNEL % "D", UNDEFINED),
    "host code that a kernel calls": (
        "#include <vector>\nint count() { std::vector<int> v(3); return v.size(); }\n"
        + KERNEL % "count()",
        "no headers of the host",
        "vector",
    ),
    "a kernel by a macro": (
        "#define KERNEL __global__\nKERNEL void f(float *x) { *x = nothing; }",
        f"kernel.cu(2): error: {UNDEFINED}",
    ),
    "a template in the source's extern C, no_extern_c": (
        'extern "C" { template <class T> __global__ void f(T *x) {} }',
        "move templates and other C++ out of the source's own extern",
    ),
    "a wrong word": ("__globl__ void f(float *x) { *x = 1; }", "kernel.cu(1): error: "),
    "a function by a macro, no_extern_c": (
        "#define DEV __device__ inline\nDEV float twice(float x) { return 2 * x * nothing; }\n"
        "DEV double twice(double x) { return 2 * x; }\n" + KERNEL % "twice(1.f)",
        f"kernel.cu(2): error: {UNDEFINED}",
    ),
    "an error beside host code": (
        "#include <vector>\nint main() { std::vector<int> v(3); return v.size(); }\n"
        + KERNEL % "nothing",
        f"kernel.cu(3): error: {UNDEFINED}",
        "(<cuda/std/...> has parts of the C++ library for kernels): what it lacks of <vector> is "
        "left out",
        "Host code is left out, where NVRTC found errors:\nkernel.cu(2): error: namespace",
    ),
    "a folder that is not named": (
        '#include "params"\n' + KERNEL % 1,
        'cannot open source file "params"',
    ),
    "an assertion": ("static_assert(sizeof(int) == 8);\n" + KERNEL % 1, "static assertion failed"),
    "a relaxed function without the option": (KERNEL % "sqrt(3)", "more than one instance"),
    "an array of no elements": (
        "struct s { int n; float a[0]; };\n" + KERNEL % 1,
        "leave the member out, and write `(float *)(s + 1)`",
    ),
    "Thrust in a kernel": (
        "#include <thrust/random.h>\n" + KERNEL % "thrust::minstd_rand()()",
        "<thrust/random.h> is left out; in kernels, <curand_kernel.h> and <cub/cub.cuh> do",
    ),
    "an unknown option": (
        KERNEL % 1,
        "refuses the options (-arch=sm_90 ...): unrecognized option --nonsense",
        "; leave out",
    ),
}
if CUPY_13:  # its header defines them itself, and needs it not
    _name = "header cupy/complex.cuh"
    ERRORS[_name] = COMPILE[_name][0], "cupy/complex/math_private.h", "const float FLT_MIN"
for _name, (_source, *_) in ERRORS.items():
    _keywords = {"no_extern_c": "no_extern_c" in _name or "header cupy" in _name}
    COMPILE[_name] = (_source, _keywords | {"options": ["--nonsense"] * ("unknown" in _name)})
# Headers that need a newer standard than the option's, or that NVRTC lacks, before an alignment.
ALIGNED = 'struct s { float x; } __align__(16); static_assert(sizeof(s) == 16, "as nvcc");\n'
OLD = [*itertools.product(["-std=c++14", "-std=c++11"], ["cuda/std/cstdint", "cub/version.cuh"])]
OLD += [("-std=c++14", "cub/block/block_reduce.cuh"), ("-std=c++11", "thrust/complex.h")]
OLD = [] if CUPY_13 else OLD  # whose headers are older
OLD = {f"{std} for {header}": (std, header) for std, header in OLD}
for _name, (_std, _header) in OLD.items():
    _source = f'#include <{_header}>\n{ALIGNED}extern "C" {KERNEL % 1}'
    COMPILE[_name] = (_source, {"no_extern_c": True, "options": [_std]})
COMPILE["alignment after traits"] = ("#include <iostream>\n" + ALIGNED + KERNEL % 1, {})
COMPILE["a byte-order mark"] = ("\ufeff" + KERNEL % 1, {})
COMPILE["a remark"] = (KERNEL % "1; int unused = 2", {})


ATTEMPT = """
import warnings
from bridge.compiler.program import Request, compile

def attempt(source, keywords):
    default = dict(nvcc="nvcc", options=[], keep=False, no_extern_c=False, arch=None, code=None,
                   cache_dir=False, include_dirs=[]) | keywords
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        try:
            found = compile(Request(source, **default), "sm_90", ["f"])
        except Exception as error:
            return type(error).__name__, str(error), "", ()
    said = " ".join(str(r.message) for r in remarks)
    return found.code[:4].decode("latin1"), "", said, found.fixes
"""


@pytest.fixture(scope="module")
def compiled(once, tmp_path_factory):
    """Name -> what NVRTC makes of that case of `COMPILE`."""
    return once("compiled", lambda: in_nvrtc(ATTEMPT, COMPILE, tmp_path_factory))


@pytest.mark.parametrize("name", [name for name in COMPILE if name not in ERRORS])
def test_nvrtc_compiles(name, compiled):
    start, error, remarks, _ = compiled[name]
    assert error == ""
    assert start == ("//\n/" if name == "PTX" else "\x7fELF")
    if name == "a remark":
        assert "kernel.cu(1): warning #177-D" in remarks
    elif "cub/" in name and CUPY_13 and cupy.cuda.nvrtc.getVersion()[0] == 13:
        assert 'class "long4" was declared deprecated' in remarks  # by CUDA 13
    elif "of old" in name:
        assert "which differs where the threads of a warp have diverged; write __" in remarks
    elif name in LEAVE_OUT:
        assert "Host code is left out, where NVRTC found errors:\nkernel.cu(" in remarks
    elif name in OLD:
        std, word = re.escape(OLD[name][0]), r"(CUB|Thrust|libcu\+\+) requires at least C\+\+ ?17"
        assert re.fullmatch(f"the option {std} is left out: {word}", remarks)
    elif "-v" not in name:
        assert remarks == ""


OF_FIXES = {
    "warp functions": [*filter(re.compile("a shuffle|votes").match, OF_NVCC)],
    "texture references": ["texture references", "macros of one letter"],
    "constants of constants": ["constants of constants", "a constant in device memory"],
    "C++17": [*OLD],
    "headers of the host": [
        *LEAVE_OUT,
        "traits",
        "alignment after traits",
        *(f"relaxed {text}" for text in RELAXED),
    ],
    "host code": [*LEAVE_OUT, "host functions"],
    "relaxed constexpr": [f"relaxed {text}" for text in RELAXED if not re.match("atan2|pow", text)],
}


@pytest.mark.parametrize("fix", OF_FIXES)
def test_a_fix_is_made_for_the_sources_that_need_it(fix, compiled):
    made = {name for name, (_, error, _, fixes) in compiled.items() if not error and fix in fixes}
    assert made == set(OF_FIXES[fix])


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_to_do(name, compiled):
    kind, error, *_ = compiled[name]
    assert kind == ("ValueError" if "options" in error else "CompileError")
    for text in ERRORS[name][1:]:
        assert text in error


def test_what_is_left_out_is_no_word_of_a_kernel():
    """What a fix changes: host code becomes spaces, and lines keep their numbers."""
    text = OF_NVCC["a whole program"]
    log = "kernel.cu(7): error: a\nkernel.cu(11): error: b\nkernel.cu(14): error: c\n"
    fixed = fixes.after_failed_attempt(nvrtc.Program(text, "sm_90"), log)
    assert fixed.source.split("\n")[:6] == text.split("\n")[:6]
    assert fixed.source.split() == text[: text.index("static void check")].split()
    assert fixed.source.count("\n") == text.count("\n")
    assert fixes.after_failed_attempt(fixed, log) is None


PROGRAM = nvrtc.Program("", "sm_90")


def collecting(program):
    gc.collect()
    return nvrtc.Compiled(b"", {})


def test_the_collector_frees_pycudas_memory_while_nvrtc_runs(monkeypatch):
    """Where it cannot, PyCUDA warns, which is an error here."""

    class Cycle:
        def __init__(self):
            self.itself, self.memory = self, drv.mem_alloc(1 << 20)

    Cycle()
    monkeypatch.setattr(nvrtc, "compile_program", collecting)
    assert nvrtc.compile_on_thread(PROGRAM) == nvrtc.Compiled(b"", {})


def test_the_collector_has_a_context_where_nvrtcs_thread_begins(monkeypatch):
    contexts = []

    def note(phase, info):
        if threading.get_ident() != caller:
            contexts.append(drv.Context.get_current())

    monkeypatch.setattr(nvrtc, "compile_program", collecting)
    caller, thresholds = threading.get_ident(), gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        nvrtc.compile_on_thread(PROGRAM)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
    assert contexts
    assert None not in contexts


def test_a_compilation_can_be_interrupted(monkeypatch):
    """NVRTC 12.9 does not end on some sources."""
    monkeypatch.setattr(nvrtc, "_PATIENCE", 0.01)
    monkeypatch.setattr(
        nvrtc, "compile_program", lambda program: time.sleep(0.2) or nvrtc.Compiled(b"", {})
    )
    with pytest.warns(UserWarning, match="NVRTC has been compiling the source for a minute; some"):
        assert nvrtc.compile_on_thread(PROGRAM) == nvrtc.Compiled(b"", {})


def test_an_interrupted_compilation_lets_the_process_end():
    """NVRTC's library must not be destroyed under the thread that still compiles."""
    script = """
        import signal, time, bridge.autoinit
        each = range(400)
        source = "".join(
            f"template<int N> __device__ float f{i}(float x)"
            "{ float s = x; for (int k = 0; k < N; k++) s = s * x + k; return s; }" for i in each
        )
        source += f'extern "C" __global__ void sum(float *x) {{ *x = {time.time()};'  # not cached
        source += "".join(f"*x += f{i}<{i % 60 + 1}>(*x);" for i in each) + "}"
        SourceModule = bridge.SourceModule  # Python may print or forget an interrupt of an import
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            SourceModule(source, no_extern_c=True)
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = run_python(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


# --- modules ---------------------------------------------------------------------------------


def value_of(module):
    x = cupy.zeros(1, np.float32)
    module.get_function("set")(x, block=1)
    return float(x[0])


def test_positions_of_the_arguments_are_pycudas(tmp_path):
    (tmp_path / "value.h").write_text("#define VALUE 5\n")
    source = f'#include "value.h"\nextern "C" {SET}'
    positions = ["nvcc", [], False, True, None, None, str(tmp_path)]
    assert value_of(bridge.SourceModule(source, *positions, [str(tmp_path)])) == 5
    bridge.SourceModule('extern "C" __global__ void f() { }', *positions)
    assert list(tmp_path.glob("*.cubin"))


def test_a_source_may_be_what_prints_as_one():
    class Source:
        def __str__(self):
            return SET

    assert value_of(bridge.SourceModule(Source(), options=["-DVALUE=8"])) == 8


def test_a_macros_kernel_has_the_modules_variables():
    module = bridge.SourceModule(
        "#define KERNEL(name) __global__ void name\n__device__ float value;\n"
        "KERNEL(read)(float *x) { x[0] = value; }\n"
        "namespace names { __global__ void read(float *x) { x[0] = value; }\n"
        "template <class T> __global__ void as(T *x) { x[0] = value; } }\n"
        "__global__ void write(float *x) { value = x[0]; }",
        no_extern_c=True,
        name_expressions=["names::read", "names::as<float>", "names::as<double>"],
    )
    module.get_function("write")(cupy.full(1, 7, "f"), block=1)
    names = "read", "names::read", "names::as<float>", "names::as<double>"
    for name, dtype in zip(names, "fffd", strict=True):
        x, read = cupy.zeros(1, dtype), module.get_function(name)
        assert f"Function {name}(" in str(read)
        read(x, block=1)
        assert x[0] == 7
        if "<" in name:
            with pytest.raises(TypeError, match="argument 0 .* is an array of int64, but the"):
                read(cupy.zeros(1, "i8"), block=1)


def test_functions_keep_their_module_and_nothing_keeps_them():
    function = bridge.SourceModule(SET, options=["-DVALUE=7"]).get_function("set")
    x = cupy.zeros(1, np.float32)
    function(x, block=1)
    assert x[0] == 7
    gc.disable()
    try:
        alive = weakref.ref(function)
        del function
        assert alive() is None
    finally:
        gc.enable()


def test_keep_keeps_the_source_and_the_code(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for keep in False, True:  # also of code in the cache
        bridge.SourceModule(SET, options=["-DVALUE=1"], keep=keep)
    folder = capsys.readouterr().out.removeprefix("*** compiler output in ").strip()
    assert SET in (tmp_path / folder / "kernel.cu").read_text()
    assert (tmp_path / folder / "kernel.cubin").stat().st_size > 100


CONSTANT = """
__constant__ float weights[4];
__device__ int counter = 5;
__global__ void weigh(float *x) { x[threadIdx.x] *= weights[threadIdx.x]; counter += 1; }
"""


def test_globals_are_written_and_read_and_keep_their_module():
    module = bridge.SourceModule(CONSTANT)
    pointer, size = module.get_global("weights")
    assert size == 16
    drv.memcpy_htod(pointer, np.array([1, 2, 3, 4], np.float32))
    x = cupy.ones(4, np.float32)
    module.get_function("weigh")(x, block=4)
    assert x.tolist() == [1, 2, 3, 4]
    assert cupy.asarray(module.get_global("weights")).nbytes == 16
    with pytest.raises(TypeError, match="memory tells neither shape nor dtype: give both"):
        bridge.as_cupy(module.get_global("weights"))
    with pytest.raises(ValueError, match=r"bytes from 0 to 20; .*Global.* has those from 0 to 16"):
        bridge.as_cupy(module.get_global("weights"), 5, np.float32)
    counter = bridge.as_cupy(module.get_global("counter"), 1, np.int32)
    del module
    assert counter[0] in (6, 9)  # four threads, unsynchronised


# --- the cache -------------------------------------------------------------------------------


def compile_in(folder, source=SET, options=("-DVALUE=1",), **keywords):
    bridge.SourceModule(source, options=list(options), cache_dir=str(folder), **keywords)
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.cubin")}


def test_code_is_kept_once_for_each_source_and_options(tmp_path):
    first = compile_in(tmp_path)
    assert len(first) == 1
    assert compile_in(tmp_path) == first
    compile_in(tmp_path, options=["-DVALUE=2"])
    assert len(compile_in(tmp_path, source=SET + " ")) == 3


def test_code_is_taken_from_the_cache(tmp_path):
    """The control for the next tests: what lies there is what runs."""
    compile_in(tmp_path)
    (path,) = tmp_path.glob("*.cubin")
    compile_in(tmp_path / "other", options=["-DVALUE=2"])
    (other,) = (tmp_path / "other").glob("*.cubin")
    path.write_bytes(other.read_bytes())
    module = bridge.SourceModule(SET, options=["-DVALUE=1"], cache_dir=str(tmp_path))
    assert value_of(module) == 2


def test_damaged_code_is_compiled_again(tmp_path):
    (path,) = compile_in(tmp_path)
    whole = path.read_bytes()
    for damage in b"", b"x" * 5000:
        path.write_bytes(damage)
        compile_in(tmp_path)
        assert len(path.read_bytes()) == len(whole)


@pytest.fixture
def headers(tmp_path):
    """A folder for headers of a program's own."""
    folder = tmp_path / "headers"
    folder.mkdir()
    return folder


def values_of(headers, source, name="value.h", **keywords):
    """Compile twice; in between the header changes."""
    values = []
    for value in (1, 2):
        (headers / name).write_text(f"#define VALUE {value}\n")
        cache = headers.parent
        module = bridge.SourceModule(f"{source}\n{SET}", cache_dir=str(cache), **keywords)
        values.append(value_of(module))
    return values


@pytest.mark.parametrize("name", ["value.h", "limits.h", "curand.h"])  # two are others' names
@pytest.mark.parametrize("how", ["include_dirs", "-I", "--include-path=", "default flags"])
def test_a_changed_header_is_seen(headers, how, name, monkeypatch):
    folder = {"options": [f"{how}{headers}"]} if how[0] == "-" else {}
    if how == "default flags":
        monkeypatch.setattr("pycuda.compiler.DEFAULT_NVCC_FLAGS", [f"-I{headers}"])
    elif how == "include_dirs":
        folder = {how: [headers]}
    assert values_of(headers, f"#include <{name}>", name, **folder) == [1, 2]


INCLUDES = '#include "PATH"', "#include <PATH>", '#define NAME "PATH"\n#include NAME'


@pytest.mark.parametrize("include", INCLUDES)
@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
def test_a_changed_header_is_seen_that_another_includes_by_its_path(headers, include, relative):
    path = headers / "outer.h"
    path.write_text('#include "value.h"\n')
    if relative:
        path = os.path.relpath(path, vendor_folders()[0])
    assert values_of(headers, include.replace("PATH", str(path))) == [1, 2]


MAY_READ = {
    "-include": (SET, ["-include", "value.h"]),
    "a folder for the front end": (SET, ["-Xcudafe=-I/folder"]),
    "precompiled": (SET, ["--use-pch=value.pch"]),
    "a macro's path": ("#include NAME", ["-DNAME=</value.h>"]),
    "import": ('#import "/value.h"', []),
    "a line that goes on": ('#include \\\n "/value.h"', []),
    "a macro of the source": ("#define NAME <../value.h>\n#include NAME", []),
}
READS_NOTHING = '// https://a/b, ../c\n__device__ int n; /* <b>bold</b> */ // "/"'
INCLUDING = nvrtc.Program("#include <cuda_fp16.h>", "sm_90")


@pytest.mark.parametrize(("source", "options"), MAY_READ.values(), ids=MAY_READ)
def test_what_may_read_a_file_is_not_cached(source, options):
    program = nvrtc.Program(source, "sm_90", tuple(options))
    assert cache.path_of(program, "cache") is None
    assert cache.path_of(INCLUDING, "cache") is not None
    assert cache.path_of(nvrtc.Program(READS_NOTHING, "sm_90"), "cache") is not None


def test_errors_name_the_file_of_a_source(tmp_path):
    path = tmp_path / "blur.cu"
    path.write_text("__global__ void f(float *x) { x[0] = 1; }\n")
    assert bridge.SourceModule(path).get_function("f").name == "f"
    path.write_text("__global__ void f(float *x)\n{ x[0] = y; }\n")
    with pytest.raises(drv.CompileError, match=rf'{path}\(2\): error: identifier "y" is undefined'):
        bridge.SourceModule(path)


def test_another_installation_of_a_vendors_headers_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "vendor_folders", lambda: (str(tmp_path),))
    places = []
    for name in ("cuda_fp16.h", "cuda_bf16.h"):
        (tmp_path / name).write_text("")
        cache.fingerprint.cache_clear()
        places.append(cache.path_of(INCLUDING, tmp_path))
    monkeypatch.undo()
    cache.fingerprint.cache_clear()
    assert len({*places, cache.path_of(INCLUDING, tmp_path)}) == 3


def test_an_option_that_only_fixes_read_is_seen():
    """Without nvcc's option, the source may not compile."""
    relaxed = INCLUDING._replace(is_relaxed=True)
    assert cache.path_of(relaxed, "cache") != cache.path_of(INCLUDING, "cache")


@pytest.mark.parametrize("name", ["bridge/prelude.h", "bridge/textures.h", "stdint.h"])
def test_another_version_of_a_supplied_header_is_seen(name, monkeypatch):
    places = []
    for text in (supplied()[name], b"// another\n"):
        monkeypatch.setattr(cache, "supplied", lambda text=text: supplied() | {name: text})
        cache.fingerprint.cache_clear()
        places.append(cache.path_of(INCLUDING, "cache"))
    monkeypatch.undo()
    cache.fingerprint.cache_clear()
    assert places[0] == cache.path_of(INCLUDING, "cache") != places[1]


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="compiled code is not kept for next time") as said:
        module = bridge.SourceModule(SET, options=["-DVALUE=1"], cache_dir=str(tmp_path / "file"))
    assert value_of(module) == 1
    assert [warning.filename for warning in said] == [__file__]


@pytest.mark.parametrize("switch", ["cache_dir", "PYCUDA_DISABLE_CACHE", "CUPY_CACHE_IN_MEMORY"])
def test_without_a_cache_nothing_is_kept(tmp_path, monkeypatch, switch):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(switch, "1")
    off = {"cache_dir": False} if switch == "cache_dir" else {}
    bridge.SourceModule(SET, options=["-DVALUE=1"], **off)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv(switch)
    bridge.SourceModule(SET, options=["-DVALUE=1"])
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("saves", [False, True])
def test_a_module_in_a_cycle_may_be_used_by_anothers_finalizer(saves):
    used, saved = [], []

    class Solver:
        def __init__(self):
            source = "__global__ void f(int *x) { *x += 1; }"
            self.function = bridge.SourceModule(source).get_function("f")
            self.itself = self

        def use(self):
            x = cupy.zeros(1, np.int32)
            self.function(x, block=1)
            used.append(int(x[0]))

        def __del__(self):
            self.use()
            if saves:
                saved.append(self)

    Solver()
    gc.collect()
    assert used == [1]
    for solver in saved:
        gc.collect()
        solver.use()
    assert used == [1] * (1 + saves)


@pytest.mark.alone
@pytest.mark.parametrize("how", ["at once", "in a cycle"])  # on a thread: see `test_devices`
def test_a_module_that_goes_is_unloaded(how):
    free = [cupy.cuda.runtime.memGetInfo()[0]]
    module = bridge.SourceModule(
        "__device__ char big[1 << 26]; __global__ void f() { big[0] = 1; }"
    )
    module.get_global("big")  # the host driver counts what has been asked for
    free.append(cupy.cuda.runtime.memGetInfo()[0])
    if how == "in a cycle":
        module.itself = module
    del module
    gc.collect()
    free.append(cupy.cuda.runtime.memGetInfo()[0])
    assert free[0] - free[1] >= 1 << 26
    assert free[2] - free[1] >= 1 << 26
