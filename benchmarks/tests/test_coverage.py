"""What nvcc compiles of PyCUDA's own kernels, NVRTC compiles: measured on their sources.

The sources are those that PyCUDA's operations bring to its compiler, see `pycuda_sources`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import cupy
import pytest
from gpus import ON_GPU, PACKAGE_MISSING
from processes import ROOT, run_python

from .pycuda_sources import COMPLEX, INTEGERS, REALS, curandom

pytestmark = pytest.mark.nightly

# What nvcc refuses as well (checked with nvcc 13.0), by the reason.
CUMATH = [
    "acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "fabs", "floor", "log", "log10", "sin",
    "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip
REFUSED = {
    "minf and maxf, as PyCUDA calls them for integers, are declared nowhere": [
        f"get_binary_minmax_kernel({which}, {t}, {t}, {t}{scalar})"
        for which in ("min", "max") for t in INTEGERS for scalar in ("", ", use_scalar=True")
    ],
    "fmin and fmax of a float and a double are the host's": [
        f"get_binary_minmax_kernel({which}, {a}, {b}, {a})"
        for which in ("min", "max") for a, b in (REALS, REALS[::-1])
    ],
    "functions of integers are the host's": [
        *(f"get_unary_func_kernel({function}, int32)" for function in CUMATH),
        *(f"get_unary_func_kernel(abs, {t}, out_dtype={t})" for t in ("uint32", "uint64")),
    ],
    "PyCUDA's complex numbers have no such function": [
        f"get_unary_func_kernel({function}, {t})"
        for function in ("acos", "asin", "atan", "ceil", "fabs", "floor") for t in COMPLEX
    ],
    "complex numbers have no order": [
        f"get_binary_op_kernel({t}, {t}, {t}, {op})"
        for op in ("<", "<=", ">", ">=") for t in COMPLEX
    ],
    "PyCUDA's complex numbers do not compare with integers, nor become a bool": [
        name.format(t)
        for name in (
            "get_all_kernel(bool, {})",
            "get_any_kernel(bool, {})",
            "get_binary_op_kernel({}, bool, bool, &&)",
            "get_binary_op_kernel({}, bool, bool, ||)",
            "get_logical_not_kernel({}, bool)",
            "get_scalar_op_kernel({0}, int64, {0}, ==)",
            "get_scalar_op_kernel({}, bool, bool, &&)",
        )
        for t in COMPLEX
    ],
    "PyCUDA's complex numbers have operators for one precision at a time": [
        "get_axpbz_kernel(int32, complex128)",
        "get_dot_kernel(complex128, complex64, complex128)",
        "get_dot_kernel(complex128, float64, complex64)",
        "get_rdivide_elwise_kernel(int32, complex128)",
        "get_scalar_op_kernel(complex64, complex128, complex64, !=)",
        "get_sum_kernel(complex128, complex64)",
    ],
}  # fmt: skip


def in_a_fresh_interpreter(script):
    """Run a script with the real NVRTC, of which g++ has the place in this process."""
    install = "" if ON_GPU else "import hostcuda; hostcuda.install(compilers=False)"
    done = run_python(f"import json\n{install}\n{script}", devices=0)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def generated():
    """Generate the sources and compile them, on all cores."""
    return in_a_fresh_interpreter("""
import bridge.autoinit
from benchmarks.tests import pycuda_sources

sources, unknown = pycuda_sources.generate()
errors = pycuda_sources.compile_all(sources)
for name, source in sources.items():
    source["error"] = errors[name]
print(json.dumps({"sources": sources, "unknown": unknown}))
""")


def refused():
    return {name for names in REFUSED.values() for name in names}


def check(sources, expected):
    """Exactly the expected ones of the sources must have failed."""
    failed = {name for name, source in sources.items() if source["error"]}
    errors = [f"{name}: {sources[name]['error']}" for name in sorted(failed - expected)]
    count = f"NVRTC compiled {len(sources) - len(failed)} of {len(sources)} sources"
    assert not errors, f"{count}, and not\n" + "\n".join(errors)
    assert failed == expected, f"{count}; listed as refused are also {sorted(expected - failed)}"


@pytest.mark.parametrize("kind", ["elementwise", "reduction", "scan", "curandom", "legacy"])
def test_nvrtc_compiles_what_nvcc_compiles(kind, generated):
    if kind == "curandom" and not curandom:
        pytest.skip(PACKAGE_MISSING + "curand, when PyCUDA was built")
    sources = {
        name: source
        for name, source in generated["sources"].items()
        if source["kind"] == kind and not source["needs_curand"]
    }
    assert sources
    others = generated["sources"].keys() - sources.keys()
    check(sources, refused() - others)


def test_nvrtc_compiles_what_includes_curand(generated):
    if not (curandom and curand_is_installed()):
        pytest.skip(PACKAGE_MISSING + "curand_kernel.h")
    sources = {n: source for n, source in generated["sources"].items() if source["needs_curand"]}
    assert len(sources) >= 13  # six generators, the sizes of their states, and a program
    check(sources, set())


def curand_is_installed():
    wheels = importlib.util.find_spec("nvidia")
    roots = wheels.submodule_search_locations if wheels else []
    folders = [folder for root in roots for folder in Path(root).glob("*/include")]
    if cupy.cuda.get_cuda_path():
        folders.append(Path(cupy.cuda.get_cuda_path(), "include"))
    return any((folder / "curand_kernel.h").exists() for folder in folders)


def test_the_sources_are_many(generated):
    names = {name for name, s in generated["sources"].items() if s["kind"] != "legacy"}
    different = {generated["sources"][name]["arguments"]["source"] for name in names}
    assert len(different) >= 300


def test_every_program_of_the_years_is_among_them(generated):
    programs = {path.stem for path in (ROOT / "tests/legacy/sources").glob("*.py")}
    assert {n for n, s in generated["sources"].items() if s["kind"] == "legacy"} == programs


def test_no_generator_of_pycudas_is_left_out(generated):
    unknown = generated["unknown"]
    assert unknown == [], f"unknown generators: no operation in pycuda_sources calls {unknown}"


# --- controls --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spoilt():
    """The same with a generator more in PyCUDA, and without what the package adds to sources."""
    return in_a_fresh_interpreter("""
import bridge.autoinit
from benchmarks.tests import pycuda_sources
from pycuda import elementwise

def get_new_kernel(dtype):
    pass

get_new_kernel.__module__ = elementwise.__name__
elementwise.get_new_kernel = get_new_kernel
sources, unknown = pycuda_sources.generate()
powers = {n: s for n, s in sources.items() if n.startswith("get_pow_array_kernel(int")}
print(json.dumps({"unknown": unknown, "errors": pycuda_sources.compile_all(powers, prelude=False)}))
""")


def test_a_new_generator_would_be_noticed(spoilt):
    assert spoilt["unknown"] == ["get_new_kernel"]


def test_without_the_prelude_nvrtc_compiles_less(spoilt, generated):
    failed = {name for name, error in spoilt["errors"].items() if error}
    assert failed - refused()
