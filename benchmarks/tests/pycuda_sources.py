"""The sources of PyCUDA's own kernels and of programs (`tests/legacy/sources`), by NVRTC.

Both halves want an interpreter of their own: `generate` takes nvcc away from PyCUDA, and
`compile_all` needs the real NVRTC.  PyCUDA itself is real: its arrays' operations run as far as its
compiler.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import runpy
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pycuda.compiler
import pycuda.cumath as cumath
import pycuda.driver as drv
import pycuda.elementwise as elementwise
import pycuda.gpuarray as gpuarray
import pycuda.reduction as reduction
import pycuda.scan as scan
from pycuda.tools import get_or_register_dtype

from bridge.compiler import headers
from bridge.compiler.program import Request, compile

try:
    import pycuda.curandom as curandom
except AttributeError:  # PyCUDA was built without curand
    curandom = None

PROGRAMS = Path(__file__).resolve().parents[2] / "tests/legacy/sources"
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
REALS = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]
NUMBERS = INTEGERS + REALS + COMPLEX
COMMON = ["int32", *REALS, *COMPLEX]
SOME = ["uint8", "int64", *COMMON]  # where all would only take longer
# Operands: all pairs of the common dtypes, the others with themselves, integers of two sizes.
PAIRS = [(a, b) for a in COMMON for b in COMMON]
PAIRS += [(a, a) for a in NUMBERS if a not in COMMON]
PAIRS += [("int8", "uint8"), ("int16", "float32"), ("int32", "int64"), ("uint64", "int64")]
PAIRS += [("int64", "float32"), ("float64", "int64"), ("complex64", "int64")]
MIXED_PAIRS = [
    ("int32", "int64"), ("int32", "float32"), ("int64", "float64"), ("float32", "float64"),
    ("float32", "complex64"), ("float64", "complex64"), ("complex64", "complex128"),
]  # fmt: skip

# Without a GPU to PTX, which takes a third less time: what the assembler makes of it, no source
# decides.
ARCHITECTURE = "compute_90" if "hostcuda" in sys.modules else "sm_90"


# --- recording -------------------------------------------------------------------------------


class Function:
    """A kernel that does nothing."""

    max_threads_per_block = 1  # curandom makes as many states

    def prepare(self, *args, **kwargs):
        pass

    prepared_call = prepared_async_call = prepare

    def __call__(self, output, **launch):
        # pycuda.characterize.sizeof's, for the states of curandom.
        output.set(np.array(64, output.dtype))


class Module:
    """What PyCUDA's driver makes of a module that was not compiled."""

    get_global = None

    def get_function(self, name):
        return Function()

    def get_texref(self, name):
        return None


class Recorder:
    """Keeps what PyCUDA would compile, by the name of the generator and its arguments."""

    def __init__(self, *modules):
        self.sources = {}
        self.unknown = set()  # public functions and classes that were not called
        self._running = []  # kinds and names, outermost first
        self._counts = Counter()
        self._signature = inspect.signature(pycuda.compiler.compile)
        pycuda.compiler.compile = self._compile
        drv.module_from_buffer = lambda image: Module()
        for module in modules:
            for name, value in list(vars(module).items()):
                if getattr(value, "__module__", None) == module.__name__ and name[0] != "_":
                    self._watch(module, name, value)

    def _watch(self, module, name, value):
        self.unknown.add(name)
        kind = module.__name__.rpartition(".")[2]

        def watched(call, skip):
            @functools.wraps(call)
            def wrapper(*args, **kwargs):
                self.unknown.discard(name)
                self._running.append((kind, f"{name}({describe(args[skip:], kwargs)})"))
                try:
                    return call(*args, **kwargs)
                finally:
                    self._running.pop()

            return wrapper

        if inspect.isclass(value):
            value.__init__ = watched(value.__init__, 1)
        else:
            setattr(module, name, watched(value, 0))

    def _compile(self, *args, **kwargs):
        asked = self._signature.bind(*args, **kwargs)
        asked.apply_defaults()
        self.add(*self._running[0], asked.arguments)
        return b""

    def add(self, kind, name, asked):
        """Keep a source; the second one of a generator is called ``name #2``."""
        self._counts[name] += 1
        number = self._counts[name]
        arguments = {key: asked[key] for key in Request._fields}
        self.sources[f"{name} #{number}" if number > 1 else name] = {
            "kind": kind,
            "needs_curand": "curand_kernel.h" in asked["source"],
            "arguments": arguments,
        }


def describe(args, kwargs):
    """Answer a call's arguments as text, without those that say nothing."""
    named = {name: show(value) for name, value in kwargs.items()}
    told = [f"{name}={text}" for name, text in named.items() if text not in ("None", "False", "")]
    return ", ".join([*map(show, args), *told])


def show(value):
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(map(show, value))}]"
    return " ".join(str(value).split())


# --- PyCUDA's generators ---------------------------------------------------------------------


def array(dtype, shape=(4,)):
    return gpuarray.empty(shape, np.dtype(dtype))


def generate():
    """Run PyCUDA's modules; answer the sources by name, and the generators that nothing ran."""
    recorder = Recorder(elementwise, reduction, scan, *([curandom] if curandom else []))
    for run in (arithmetic, scalar_arithmetic, comparisons, one_array, conversions, selections,
                functions, elementwise_kernels, reductions, reduction_kernels, scans):  # fmt: skip
        run()
    if curandom:
        random_numbers()
    legacy(recorder)
    return recorder.sources, sorted(recorder.unknown)


def arithmetic():
    for a, b in PAIRS:
        for op in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow):
            op(array(a), array(b))
        if np.can_cast(b, a, "same_kind"):
            for op in (operator.iadd, operator.itruediv, operator.ipow):
                op(array(a), array(b))
    for a in ("int32", "float32", "complex128"):  # an array without dimensions is broadcast
        for op in (operator.add, operator.mul, operator.truediv):
            op(array(a), array("float64", ()))
            op(array(a, ()), array("float64"))


def scalar_arithmetic():
    for a in NUMBERS:
        for scalar in (3, 2.5, 2j) if a in COMMON else (3,):
            for op in (operator.add, operator.mul, operator.truediv, operator.pow):
                op(array(a), scalar)
                op(scalar, array(a))


def comparisons():
    equality = [operator.eq, operator.ne]
    order = [operator.lt, operator.le, operator.gt, operator.ge]
    for a in NUMBERS:
        for op in (operator.eq, operator.eq if a in COMPLEX else operator.lt):
            op(array(a), array(a))
            op(array(a), 3)
        operator.ne(array(a), 2j if a in COMPLEX else 2.5)
    for a, b in (("int32", "float32"), ("float64", "float32"), ("int64", "int8")):
        for op in equality + order:
            op(array(a), array(b))
            op(array(a), 3)
    for a in COMPLEX:
        operator.ne(array("float32"), array(a))
        for op in order:  # as if complex numbers were ordered
            op(array(a), array(a))
    for a in ("bool", *SOME):
        gpuarray.logical_not(array(a))
        for op in (gpuarray.logical_and, gpuarray.logical_or):
            op(array(a), array("bool" if a in COMPLEX else a))
        gpuarray.logical_and(array(a), True)


def one_array():
    for a in ("bool", *NUMBERS):
        array(a).fill(1)
        array(a).reverse()
    for a in NUMBERS:
        abs(array(a))
        -array(a)
    for a in (*INTEGERS, *REALS):
        gpuarray.arange(4, dtype=np.dtype(a))
    for a in COMPLEX:
        array(a).conj()
        for part in ("real", "imag"):  # properties that run a kernel
            getattr(array(a), part)


def conversions():
    for a, b in [*PAIRS, ("bool", "int32"), ("float32", "bool"), ("uint8", "float32")]:
        if np.can_cast(a, b, "same_kind") or (b not in COMPLEX and a not in COMPLEX):
            array(a).astype(np.dtype(b))


def selections():
    for a in NUMBERS:
        criterion = array("bool" if a in COMPLEX else a)
        gpuarray.if_positive(criterion, array(a), array(a))
        gpuarray.where(criterion, array(a), array(a))
        gpuarray.multi_put([array(a)] * 2, array("uint32"), dest_shape=(4,))
    for a in (*INTEGERS, *REALS):
        for b in REALS if a in REALS else [a]:
            gpuarray.minimum(array(a), array(b))
            gpuarray.maximum(array(a), array(b))
        gpuarray.minimum(array(a), 2)
        gpuarray.maximum(2, array(a))
    # Through texture references, which have to be bound: the generators alone.
    indices = np.dtype("int32")
    for a in map(np.dtype, ("uint8", "int32", *REALS, *COMPLEX)):
        elementwise.get_take_kernel(a, indices)
        elementwise.get_take_put_kernel(a, indices, with_offsets=True)
        elementwise.get_linear_combination_kernel(((False, a, a), (True, a, a)), a)
        elementwise.get_linear_combination_kernel(((False, a, a), (False, a, a)), a)


def functions():
    own = {name: f for name, f in vars(cumath).items() if inspect.isfunction(f) and name[0] != "_"}
    x = array("float32")  # the only dtype of the first four
    for name in ("frexp", "modf"):
        own.pop(name)(x)
    for name in ("fmod", "ldexp"):
        own.pop(name)(x, x)
    for function in own.values():
        for a in COMMON:
            function(array(a))


OPERATIONS = {  # of ElementwiseKernel: dtypes -> operations
    "int32 uint8 int64": ["x[i] % y[i]", "x[i] & y[i] | a", "x[i] << 2 ^ ~y[i]", "x[i] ? a : y[i]"],
    "int32 uint64 float32 float64": [
        "a * x[i] + y[i]", "x[i] > y[i] ? x[i] : y[i]", "min(x[i], y[i])", "i % 2 ? x[i] : -x[i]",
    ],
    "float32 float64": [
        "sin(x[i]) * exp(-y[i])", "sqrt(x[i]*x[i] + y[i]*y[i])", "pow(x[i], a)", "pow(x[i], 2)",
        "fma(x[i], y[i], a)", "atan2(y[i], x[i])", "isnan(x[i]) ? 0 : x[i]", "rsqrt(x[i])",
        "1 / (1 + expf(-x[i]))", "fmaxf(x[i], 0)", "round(x[i]) + M_PI", "x[i] / y[i] * INFINITY",
    ],
    "complex64 complex128": [
        "a * x[i] + y[i]", "exp(x[i]) / y[i]", "conj(x[i]) * y[i]", "pow(x[i], y[i])",
        "abs(x[i]) * y[i]", "real(x[i]) + imag(y[i])",
    ],
}  # fmt: skip


def elementwise_kernels():
    for dtypes, operations in OPERATIONS.items():
        for a in map(np.dtype, dtypes.split()):
            ctype = elementwise.dtype_to_ctype(a)
            arguments = f"{ctype} a, const {ctype} *x, const {ctype} *y, {ctype} *z"
            for operation in operations:
                kernel = elementwise.ElementwiseKernel(arguments, f"z[i] = {operation}")
                kernel(a.type(2), array(a), array(a), array(a))
    kernel = elementwise.ElementwiseKernel("float *x", "x[i] = i", options=["-use_fast_math"])
    kernel(array("float32"), slice=slice(0, None, 2))
    kernel(array("float32"), range=slice(0, 4, 1))
    helper = "__device__ float twice(float x) { return 2 * x; }"
    kernel = elementwise.ElementwiseKernel(
        "float *x", "x[i] = twice(x[i]) + c", preamble=helper, loop_prep="float c = 3"
    )
    kernel(array("float32"))


def reductions():
    for a in ("bool", *SOME):
        gpuarray.any(array(a))
        gpuarray.all(array(a))
    for a in NUMBERS:
        gpuarray.sum(array(a))
    for a in (*INTEGERS, *REALS):
        gpuarray.min(array(a)), gpuarray.max(array(a))
    for a, b in [*MIXED_PAIRS, *zip(NUMBERS, NUMBERS, strict=True)]:
        gpuarray.dot(array(a), array(b))
    for a, b in MIXED_PAIRS:
        if np.can_cast(a, b):
            gpuarray.sum(array(a), dtype=np.dtype(b))
    index = array("uint32")
    for a in SOME:
        gpuarray.subset_sum(index, array(a))
        gpuarray.subset_dot(index, array(a), array(a))
    for a in ("uint8", "int64", *REALS):
        gpuarray.subset_min(index, array(a)), gpuarray.subset_max(index, array(a))
    gpuarray.subset_sum(array("int32"), array("float32"))


def reduction_kernels():
    for a in (np.dtype(t) for t in ("int32", "float32", "float64", "complex64")):
        ctype = elementwise.dtype_to_ctype(a)
        arguments = f"const {ctype} *x, const {ctype} *y, {ctype} scale"
        for operation in ("x[i]*y[i]", "scale*x[i]", "(x[i]-y[i])*(x[i]-y[i])"):
            reduction.ReductionKernel(a, "0", "a+b", operation, arguments)
    single, double, long = map(np.dtype, ("float32", "float64", "int64"))
    for operation in ("fabs(x[i])", "pow(x[i], 2)", "isnan(x[i]) ? 0 : x[i]"):
        reduction.ReductionKernel(single, "0", "fmaxf(a, b)", operation, "const float *x")
    reduction.ReductionKernel(long, "0", "a+b", "x[i] > 0", "const float *x")
    reduction.ReductionKernel(double, "-INFINITY", "a > b ? a : b", "x[i]", "const float *x")
    # A struct as the result, as in PyCUDA's own tests.
    limits = get_or_register_dtype("limits", np.dtype([("low", np.int32), ("high", np.int32)]))
    preamble = """
        struct limits {
            int low, high;
            __device__ limits() {}
            __device__ limits(int low_, int high_) : low(low_), high(high_) {}
            __device__ limits(limits const &x) : low(x.low), high(x.high) {}
            __device__ limits(limits const volatile &x) : low(x.low), high(x.high) {}
            __device__ limits volatile &operator=(limits const &x) volatile
            { low = x.low; high = x.high; return *this; }
        };
        __device__ limits both(limits a, limits b)
        { return limits(min(a.low, b.low), max(a.high, b.high)); }
    """
    reduction.ReductionKernel(
        limits, "limits(10000, -10000)", "both(a, b)", "limits(x[i], x[i])", "int *x",
        preamble=preamble,
    )  # fmt: skip


def scans():
    for kernel in (scan.InclusiveScanKernel, scan.ExclusiveScanKernel):
        for a in SOME:
            preamble = "#include <pycuda-complex.hpp>" if a in COMPLEX else ""
            kernel(np.dtype(a), "a+b", "0", preamble=preamble)
        for a in ("uint8", "float32"):
            kernel(np.dtype(a), "max(a, b)", "0")
        kernel(np.dtype("float64"), "a*b", "1", options=["-use_fast_math"])
        kernel(np.dtype("int32"), "a > b ? a : b", "INT_MIN")


def random_numbers():
    for a in ("int32", "uint32", *REALS):
        curandom.rand((4,), np.dtype(a))
    curandom.seed_getter_uniform(4)
    curandom.seed_getter_unique(4)
    for name, value in list(vars(curandom).items()):
        if name.endswith("Generator") and name[0] != "_":
            value()


# --- programs --------------------------------------------------------------------------------


class Recorded(Exception):  # noqa: N818
    """Ends a program when its source is known."""


def legacy(recorder):
    signature = inspect.signature(pycuda.compiler.SourceModule.__init__)
    for path in sorted(PROGRAMS.glob("*.py")):
        # The program ends at its first module.
        assert path.read_text().count("SourceModule(") == 1, f"{path}: more than one source"

        def record(*args, _name=path.stem, **kwargs):
            asked = signature.bind(None, *args, **kwargs)
            asked.apply_defaults()
            recorder.add("legacy", _name, asked.arguments)
            raise Recorded

        try:
            runpy.run_path(str(path))["run"](record)
        except Recorded:
            continue
        raise AssertionError(f"{path} compiled nothing")


# --- NVRTC -----------------------------------------------------------------------------------


def compile_all(sources, prelude=True):
    """Compile sources as `SourceModule` does; answer the errors by name, "" for none."""
    warnings.simplefilter("ignore")  # NVRTC's remarks
    if not prelude:
        headers.supplied()[headers.PRELUDE] = b""
    asked = {name: as_tuple(source["arguments"]) for name, source in sources.items()}
    # The longest first: those of curandom take a second each.
    different = sorted(set(asked.values()), key=lambda arguments: -len(arguments[0]))
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:  # NVRTC takes memory, too
        errors = dict(zip(different, pool.map(error_of, different), strict=True))
    return {name: errors[arguments] for name, arguments in asked.items()}


def as_tuple(arguments):
    """Answer a source's arguments in order, without what would keep its code in folders."""
    arguments = {**arguments, "keep": False, "cache_dir": False}
    for key in ("options", "include_dirs"):
        arguments[key] = tuple(arguments[key] or ())
    return tuple(arguments[key] for key in Request._fields)


def error_of(arguments):
    try:
        compile(Request(*arguments), ARCHITECTURE)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
