"""``python -m bridge check``: what it reads from programs, and what it says of them."""

import json
import re
import subprocess
import sys
import textwrap
import time

import pytest
from gpus import ON_GPU
from processes import run_python, surroundings
from pycuda._driver import have_gl_ext

import bridge
from bridge.legacy import names

PROGRAMS = {
    "right.py": """
        import pycuda.driver as drv
        from pycuda.compiler import SourceModule as Module
        N = 2 ** 3
        TEMPLATE = "__global__ void %(name)s(float *x, int n) { x[n] = {value}; }"
        def make():
            N = 7
            text = TEMPLATE.replace("{value}", str(N)) % {"name": "put"}
            return Module(text, options=["-DA"])
        def other():
            return Module(f"__global__ void f(float *x) {{ x[0] = {N + 1}; }}")
        from_file = Module(open("kernel.cu").read(), no_extern_c=True)
        class Filter:
            def compile(self):
                self.module = Module('''
                    texture<float, 2> image; struct S { int a[3]; };
                    __global__ void g(S *s, S t, double *y) { y[0] = tex2D(image, 0, 0); }
                ''')
    """,
    "kernel.cu": 'extern "C" __global__ void from_file(int *p) { *p = 1; }\n',
    "wrong.py": """
        from pycuda import compiler
        compiler.SourceModule("__global__ void f(float *x) { x[0] = nothing; }")
        compiler.SourceModule(input())
        compiler.SourceModule("%d" % "a")
        f.launch_grid(1, 1)
    """,
    "old.py": """
        from pycuda.compiler import SourceModule
        print "Python 2"
        SourceModule("__global__ void old(float *x) {}")
    """,
    "libraries.py": """
        import skcuda.linalg as culinalg, skcuda.special
        from scikits.cuda import integrate, fft
        from skcuda.cublas import cublasCreate, cublasNothing
        culinalg.dmd(culinalg.dot(1, 2))
        fft.Plan(fft.nothing)
    """,
    "other.py": "print('no CUDA')",
    "files.py": """
        import os.path
        from pycuda.compiler import SourceModule
        with open(os.path.join(os.path.dirname(__file__), "kernel.cu")) as file:
            text: str = file.read()
        SourceModule(text, no_extern_c=True)
        kind = "nothing"
        def make(kind):
            return SourceModule("__global__ void f(%s *x) {}" % kind)
        for kind in ("int", "float"):
            SourceModule("__global__ void f(%s *x) {}" % kind)
        SourceModule("// %d" % 10 ** 10 ** 8)
        from pathlib import Path
        parts = ["int", os.path.split(__file__)[1]]
        SourceModule("__global__ void f(%s *x) {} // %s" % (parts[0], parts[1]))
        SourceModule((Path(__file__).resolve().parent / "kernel.cu").read_text(), no_extern_c=True)
    """,
    "binary.py": "SourceModule\0",
}
# Plain code, with headers in the program's folder; elsewhere they are not found.
PLAIN = {
    "plain.py": """
        import os
        from string import Template
        from pycuda.compiler import SourceModule
        CODE = Template("#include <$header>\\n__global__ void f(real *x) {}")
        class Filter:
            def __init__(self):
                self.code = CODE.substitute(header="real.cuh")
                self.folder = os.path.join(os.getcwd(), "include")
            def compile(self):
                SourceModule(self.code, include_dirs=["include"])
                SourceModule(self.code, options=["-Iinclude"])
                SourceModule(self.code, options=["-I", "include"])
                SourceModule(self.code, options=["-I" + self.folder])
    """,
    "include/real.cuh": "typedef float real;\n",
    "cells.ipynb": json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "source": ["# SourceModule"]},
                {
                    "cell_type": "code",
                    "source": [
                        "%load_ext autoreload\n",
                        "if True:\n",
                        "    !pip install pycuda\n",
                        "from pycuda.compiler import SourceModule\n",
                        "SourceModule('__global__ void f(int n) {}')",
                    ],
                },
            ]
        }
    ),
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """Run the command on the programs, with the real NVRTC."""
    folder = tmp_path_factory.mktemp("drawer")
    write(folder, PROGRAMS)
    (folder / "gone.py").symlink_to("nowhere.py")
    (folder / "folder.py").mkdir()
    host = "" if ON_GPU else "import hostcuda; hostcuda.install(compilers=False)"

    def check(*arguments, before=""):
        script = f"""
{host}
{before}
import shutil
shutil.which = lambda name: None  # no nvcc
from bridge.__main__ import main
print("status", main({["check", *(a.format(folder) for a in arguments)]}))
"""
        done = run_python(script)
        return done.stdout.replace(f"{folder}/", ""), done.stderr

    return check


def test_a_folder(check, package):
    (
        package("cupy_backends.cuda.libs.cublas"),
        package("cupy.cuda.cufft"),
    )  # whose functions are looked up
    package("libcst"), package("fissix")  # for the program in Python 2
    text, errors = check("{}")
    assert errors == ""
    first, *rest = text.splitlines()
    assert first.startswith("binary.py: cannot be read: binary.py is neither Python 3 (")
    assert rest == [
        "files.py:9: the source is made when the program runs: it depends on kind",
        "files.py:12: the source is made when the program runs: a large number",
        "files.py: not known: 2 of its sources cannot be read before it runs",
        "libraries.py: will not run: skcuda.special is not served, skcuda.integrate is not served, "
        "skcuda.cublas.cublasNothing is not served, skcuda.linalg.dmd is not served, "
        "skcuda.fft.nothing is not served",
        "old.py: will run, after bridge migrate",
        "right.py: will run",
        'wrong.py:3: does not compile: kernel.cu(1): error: identifier "nothing" is undefined',
        "wrong.py:4: the source is made when the program runs: input()",
        "wrong.py:5: the source is made when the program runs: TypeError: %d format: a real number "
        "is required, not str",
        "wrong.py: will not run: 1 of its sources cannot be compiled, launch_grid is not served",
        "programs: 2 will run, 2 will not run, 2 not known",
        "sources: 10 of 15 can be compiled for sm_90, 1 cannot, 4 cannot be read before the "
        "program runs",
        "not served by bridge run: skcuda.special (files: 1): not in bridge's skcuda; see CuPy",
        "not served by bridge run: skcuda.integrate (files: 1): not in bridge's skcuda; see CuPy",
        "not served by bridge run: skcuda.cublas.cublasNothing (files: 1): not in bridge's skcuda; "
        "see CuPy",
        "not served by bridge run: skcuda.linalg.dmd (files: 1): not in bridge's skcuda; see CuPy",
        "not served by bridge run: skcuda.fft.nothing (files: 1): not in bridge's skcuda; see CuPy",
        "not served by bridge run: launch_grid (files: 1): call f(*args, grid=..., block=...)",
        "record sources that are made when a program runs: bridge run --record FOLDER PROGRAM, "
        "then bridge check FOLDER",
        "status 1",
    ]


def test_one_program_with_its_kernels(check):
    text, _ = check("--verbose", "--arch", "sm_80", "{}/right.py")
    assert text.splitlines()[:5] == [
        "right.py:9: compiles: put(float *x, int n)",
        "right.py:11: compiles: f(float *x)",
        "right.py:12: compiles: from_file(int *p)",
        "right.py:15: compiles: g(S *s, S t, double *y)",
        "right.py: will run",
    ]
    assert text.endswith("status 0\n")


@pytest.mark.skipif(ON_GPU, reason="not installed: hostcuda in the place of the driver")
def test_what_check_has_compiled_is_compiled_again_for_the_host(tmp_path):
    """Both keep their code: that of a GPU cannot run here."""
    program = f"""
        import numpy as np, pycuda.autoinit, pycuda.driver as drv
        from pycuda.compiler import SourceModule
        x = np.zeros(1, np.int32)
        f = SourceModule("__global__ void f(int *x) {{ *x = {time.time_ns() % 2**31}; }}")
        f.get_function("f")(drv.Out(x), block=(1, 1, 1))
    """
    write(tmp_path, {"program.py": program})
    path = str(tmp_path / "program.py")
    for command in ["bridge", "check", path], ["hostcuda", "-m", "bridge", "run", path]:
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, **surroundings()
        )
        assert (done.stderr, done.returncode) == ("", 0)


def test_plain_code_is_evaluated_in_the_programs_folder(check, tmp_path):
    write(tmp_path, PLAIN)
    text, _ = check(str(tmp_path))
    assert text.replace(f"{tmp_path}/", "").splitlines() == [
        "cells.ipynb: will run, after %load_ext bridge",
        "plain.py: will run",
        "programs: 2 will run, 0 will not run, 0 not known",
        "sources: 5 of 5 can be compiled for sm_90, 0 cannot, 0 cannot be read before the program "
        "runs",
        "status 0",
    ]
    (tmp_path / "include" / "real.cuh").write_text("typedef nothing real;")
    text, _ = check(str(tmp_path))
    assert "plain.py: will not run: 4 of its sources cannot be compiled" in text


KERNEL = "__global__ void f(%s *x) {}"
# Programs, and the types of the parameters in the sources that are read; "?": not all are read.
VALUES = {
    "the latest of two values": (
        """
        T = "int"
        SourceModule(KERNEL % T)
        T = "float"
        SourceModule(KERNEL % T)
        """,
        "int float",
    ),
    "a value made of the one before": (
        """
        code = KERNEL
        code = code.replace("%s", "int")
        code += "// "
        SourceModule(code)
        """,
        "int",
    ),
    "two branches": (
        """
        if N:
            T = "int"
        else:
            T = "float"
        SourceModule(KERNEL % T)
        """,
        "int float",
    ),
    "one branch, and the value before it": (
        """
        T = "int"
        if N:
            T = "float"
        SourceModule(KERNEL % T)
        """,
        "float int",
    ),
    "names that change together": (
        """
        if N:
            A, B = "sho", "rt"
        else:
            A, B = "flo", "at"
        SourceModule(KERNEL % (A + B))
        """,
        "short float",
    ),
    "a branch before the latest value": (
        """
        if N:
            T = "int"
        T = "float"
        SourceModule(KERNEL % T)
        """,
        "float",
    ),
    "two branches with one value": (
        """
        T = "int" if N else "int"
        SourceModule(KERNEL % T)
        """,
        "int",
    ),
    "a call in a branch": (
        """
        T = "int"
        if N:
            T = "float"
        else:
            SourceModule(KERNEL % T)
        """,
        "int",
    ),
    "an import that fails": (
        """
        try:
            T = "int"
        except ImportError:
            T = "float"
        SourceModule(KERNEL % T)
        """,
        "float int",
    ),
    "a branch in an expression": ('SourceModule(KERNEL % ("int" if N else "float"))', "int float"),
    "a loop": (
        """
        for T in ["int", "float"]:
            SourceModule(KERNEL % T)
        """,
        "int float",
    ),
    "a loop over pairs": (
        """
        for A, B in (("sho", "rt"), ("flo", "at")):
            SourceModule(KERNEL % (A + B))
        """,
        "short float",
    ),
    "a loop over numbers": (
        """
        for n in range(10 ** 9):
            SourceModule("__global__ void f%d(int *x) {}" % n)
        """,
        "int " * 8 + "?",
    ),
    "what each step of a loop changes": (
        """
        code = KERNEL % "int"
        for T in ["float", "char"]:
            code += KERNEL % T
        SourceModule(code)
        """,
        "int?",
    ),
    "what a method changes": (
        """
        lines = [KERNEL % "int"]
        lines.append("// ")
        SourceModule("".join(lines))
        """,
        "?",
    ),
    "an item that is assigned": (
        """
        types = {"T": "int"}
        types["T"] = "float"
        SourceModule(KERNEL % types["T"])
        """,
        "?",
    ),
    "names of a function and of a lambda": (
        """
        T = "int"
        def g(T):
            return T
        h = lambda T: T
        SourceModule(KERNEL % T)
        """,
        "int",
    ),
    "an attribute of a class": (
        """
        class Filter:
            T = "int"
            def make(self):
                SourceModule(KERNEL % self.T)
        """,
        "int",
    ),
    "an attribute that two methods set": (
        """
        class Filter:
            def __init__(self):
                self.T = "int"
            def use_floats(self):
                self.T = "float"
            def make(self):
                SourceModule(KERNEL % self.T)
        """,
        "float int",
    ),
    "numbers": (
        """
        import numpy as np
        SourceModule(f"__global__ void f({'i':n<2}t *x) {{}}" "// %d %d" % (-1, np.int32(2)))
        """,
        "int",
    ),
    "a header beside the program": (
        """
        SourceModule('#include "own.cu"\\n__global__ void g(int *x) {}')
        """,
        "int",
    ),
    "a file of Python 2": ("SourceModule(file('own.cu').read())", "char"),
    "generated kernels": (
        """
        import numpy
        import pycuda.reduction as reduction
        from pycuda.elementwise import ElementwiseKernel as Kernel
        Kernel("long *x", "x[i] = 2")
        reduction.ReductionKernel(numpy.float64, neutral="0", reduce_expr="a+b",
                                  map_expr="x[i]", arguments="double *x")
        """,
        "long double double",
    ),
    "a kernel of CuPy's": (
        """
        from cupy import ElementwiseKernel
        ElementwiseKernel("int x", "int y", "y = x", "f")
        SourceModule(KERNEL % "int")
        """,
        "int",
    ),
    "a kernel of the module cupy": (
        """
        import cupy as cp
        cp.ElementwiseKernel("int x", "int y", "y = x", "f")
        SourceModule(KERNEL % "int")
        """,
        "int",
    ),
    "a variable of a comprehension": (
        """
        T = "int"
        many = [T for T in "ab"]
        SourceModule(KERNEL % T)
        """,
        "int",
    ),
    "a call in a comprehension": (
        """
        T = "int"
        many = [SourceModule(KERNEL % T) for T in input()]
        """,
        "?",
    ),
    "a global name": (
        """
        T = "int"
        def change():
            global T
            T = input()
        change()
        SourceModule(KERNEL % T)
        """,
        "?",
    ),
    "an import of all names": (
        """
        T = "int"
        from settings import *
        SourceModule(KERNEL % T)
        """,
        "?",
    ),
    "a deleted name": (
        """
        T = "int"
        del T
        SourceModule(KERNEL % T)
        """,
        "?",
    ),
    "an assignment in an expression": (
        """
        T = "int"
        print(T := input())
        SourceModule(KERNEL % T)
        """,
        "?",
    ),
    "an assignment in a comprehension": (
        """
        T = "int"
        [(T := name) for name in input()]
        SourceModule(KERNEL % T)
        """,
        "?",
    ),
    "a function of the same name": (
        """
        T = "int"
        def T():
            pass
        SourceModule(KERNEL % T)
        """,
        "?",
    ),
    "a later value, in the next step of a loop": (
        """
        T = "int"
        for i in range(2):
            SourceModule(KERNEL % T)
            T = input()
        """,
        "?",
    ),
    "a value of each step of a loop": (
        """
        for i in range(2):
            T = "int"
            SourceModule(KERNEL % T)
            T = input()
        """,
        "int",
    ),
    "a loop that may have no step": (
        """
        T = "int"
        while N:
            T = "float"
        SourceModule(KERNEL % T)
        """,
        "float int",
    ),
    "the end of a loop": (
        """
        while N:
            T = "int"
        else:
            T = "float"
        SourceModule(KERNEL % T)
        """,
        "int float",
    ),
    "a match": (
        """
        T = "int"
        match N:
            case "1":
                T = "float"
            case T:
                pass
        SourceModule(KERNEL % T)
        """,
        "float int?",
    ),
    "what follows if nothing is raised": (
        """
        T = "int"
        try:
            import settings
        except ImportError:
            pass
        else:
            T = "float"
        SourceModule(KERNEL % T)
        """,
        "int float",
    ),
    "an import that fails late": (
        """
        T = "int"
        try:
            T = "float"
            import settings
        except ImportError:
            pass
        SourceModule(KERNEL % T)
        """,
        "float int",
    ),
    "a coroutine": (
        """
        T = "int"
        async def make(T):
            SourceModule(KERNEL % T)
        """,
        "?",
    ),
    "one attribute of two classes": (
        """
        class One:
            def __init__(self):
                self.T = "int"
            def make(self):
                SourceModule(KERNEL % self.T)
        class Two:
            def __init__(self):
                self.T = input()
        """,
        "int",
    ),
    "an attribute of a class and of its base": (
        """
        class Base:
            T = "int"
            def make(self):
                SourceModule(KERNEL % self.T)
        class Other(Base):
            T = "float"
        """,
        "?",
    ),
    "an attribute that is set from outside": (
        """
        class Filter:
            T = "int"
            def make(self):
                SourceModule(KERNEL % self.T)
        Filter().T = input()
        """,
        "?",
    ),
    "one branch that is not known": (
        """
        T = "int"
        if N:
            T = input()
        SourceModule(KERNEL % T)
        """,
        "int?",
    ),
    "more steps than are read": (
        """
        for n in range(12):
            SourceModule("__global__ void f%d(int *x) {}" % n)
        """,
        "int " * 8 + "?",
    ),
    "arguments in a dictionary": ("SourceModule(KERNEL % 'int', **input())", "?"),
    "a large text": ("SourceModule('//' * 10 ** 12)", "?"),
    "an alias": (
        """
        make = SourceModule
        make(KERNEL % "int")
        SourceModule(KERNEL % "float")
        """,
        "float?",
    ),
    "an argument": (
        """
        import pycuda.compiler as comp
        build(comp.SourceModule)
        comp.SourceModule(KERNEL % "float")
        """,
        "float?",
    ),
    "code without a module": (
        """
        import re
        import pycuda.driver as drv
        from pycuda.compiler import compile
        re.compile("a")
        drv.module_from_buffer(compile(KERNEL % "int"))
        """,
        "int",
    ),
    "classes and modules of others": (
        """
        import cupy as xp, other
        from tensorflow import ReductionKernel
        xp.ElementwiseKernel("int x", "int y", "y = x", "f")
        ReductionKernel(1)
        other.SourceModule(input())
        class ElementwiseKernel:
            pass
        ElementwiseKernel()
        self.kernels.ElementwiseKernel(1)
        self.compiler.SourceModule(KERNEL % "int")
        """,
        "int",
    ),
}


@pytest.fixture(scope="module")
def evaluated(check, tmp_path_factory):
    """Check the programs of `VALUES`, each in a folder of its own; return the lines of each."""
    folder = tmp_path_factory.mktemp("values")
    first = f"from pycuda.compiler import SourceModule\nKERNEL = {KERNEL!r}\nN = input()\n"
    for number, (program, _) in enumerate(VALUES.values()):
        (folder / str(number)).mkdir()
        (folder / str(number) / "own.cu").write_text(KERNEL % "char")
        (folder / str(number) / "program.py").write_text(first + textwrap.dedent(program))
    lines = check("--verbose", str(folder))[0].splitlines()
    return {
        name: [line for line in lines if line.startswith(f"{folder}/{number}/")]
        for number, name in enumerate(VALUES)
    }


@pytest.mark.parametrize("name", VALUES)
def test_values_are_evaluated(evaluated, name):
    *sources, end = evaluated[name]
    types = VALUES[name][1]
    assert "does not compile" not in "".join(sources)
    assert re.findall(r"(\w+) \*x", "".join(sources)) == types.replace("?", "").split()
    assert f"program.py: {'not known' if '?' in types else 'will run'}" in end


NOTHING = "no program (.py, .ipynb) that compiles a source or uses scikit-cuda was found"
# Programs that are not read, and what is said of them.
UNREAD = {
    "a comment": ("# SourceModule", NOTHING),
    "an import": ("from pycuda.compiler import SourceModule", NOTHING),
    "a class of its own": (
        """
        class SourceModule:
            pass
        SourceModule()
        """,
        NOTHING,
    ),
    "no such file": (
        """
        from pycuda.compiler import SourceModule
        SourceModule(open("no.cu").read())
        """,
        "program.py: not known: the file no.cu is not found",
    ),
}


@pytest.mark.parametrize(("program", "said"), UNREAD.values(), ids=UNREAD)
def test_programs_without_a_source(check, tmp_path, program, said):
    write(tmp_path, {"program.py": program})
    text, errors = check(str(tmp_path))
    assert f"{said}\n" in text
    assert "record" not in text
    assert text.endswith("status 1\n")
    assert errors == ""


# What is said of programs that need more than a compiler.
NEEDS = {
    "a name that is only imported": (
        """
        from pycuda.compiler import DynamicSourceModule, SourceModule
        SourceModule("__global__ void f() {}")
        """,
        "program.py: will run",
    ),
    "a name that is used": (
        """
        from pycuda.compiler import DynamicSourceModule as Module
        Module("__global__ void f() {}")
        """,
        "program.py: will not run: DynamicSourceModule is not served",
    ),
    "packages": (
        """
        import bridge, skcuda, nowhere.inner, elsewhere
        from .beside import one
        from folder import two
        try:
            import optional
        except ImportError:
            optional = None
        SourceModule("__global__ void f() {}")
        """,
        "program.py: will run, if elsewhere, nowhere can be imported",
    ),
    "names that older versions had": (
        """
        import hashlib, sys, time
        import numpy as np
        SourceModule("__global__ void f() {}")
        try:
            start = time.clock
        except AttributeError:
            start = time.perf_counter
        if sys.version_info < (3, 0):
            sys.maxint
        np.linalg.norm(np.zeros(3)), np.fft.fft, hashlib.md5
        np.zeros(3, np.float), time.clock()
        """,
        "program.py: will not run: no numpy.float here, write float (line 12), "
        "no time.clock here (line 12)",
    ),
    "a module of a package": (
        "from .beside import code\nSourceModule(code())",
        "program.py: not known: 1 of its sources cannot be read before it runs, it is a module of "
        "a package: record a program that imports it",
    ),
    "a header": (
        """SourceModule('#include "own.cuh"')""",
        "program.py: not known: the file own.cuh is not found",
    ),
    "what NVRTC needs": (
        "SourceModule('__global__ void f(uint8_t *x) {}')",
        "apply here (write #include <cstdint>)\n{folder}/program.py: will not run: 1 of its "
        "sources cannot be compiled",
    ),
    "OpenGL": (
        "from pycuda import gl\nSourceModule('__global__ void f() {}')",
        "program.py: will run" + ", if pycuda.gl can be imported" * (not have_gl_ext()),
    ),
}


@pytest.mark.parametrize(("program", "said"), NEEDS.values(), ids=NEEDS)
def test_what_a_program_needs(check, tmp_path, program, said):
    write(tmp_path, {"program.py": program, "folder/two.py": ""})
    text, _ = check(str(tmp_path))
    assert said.format(folder=tmp_path) + "\n" in text


def test_an_architecture_is_checked(check, tmp_path):
    write(tmp_path, {"a.py": "SourceModule('')"})
    text, errors = check("--arch", "90", str(tmp_path))
    assert "--arch: '90' is no architecture; give one such as sm_90" in errors
    assert text == ""


def test_python_2_that_python_3_can_parse(check, package, tmp_path):
    package("libcst"), package("fissix")
    program = """
        from pycuda.compiler import SourceModule
        for i in xrange(2):
            SourceModule("__global__ void f() {}")
    """
    of_float = "f = SourceModule('__global__ void f() {}').get_function('f'); f(grid=(n / 2, 1))"
    write(tmp_path, {"a.py": f"n = input()\n{of_float}"})
    text, _ = check(str(tmp_path))
    assert "a.py: will run, after bridge migrate\n" in text
    write(tmp_path, {"a.py": program})
    text, _ = check(str(tmp_path))
    assert "a.py: will run, after bridge migrate\n" in text
    named = of_float.replace("(n / 2, 1)", "sizes")  # nothing else shows that it is for Python 2
    write(tmp_path, {"a.py": f"print('%d' % n)\nsizes = (n / 2 * 4, 1)\n{named}"})
    text, _ = check(str(tmp_path))
    assert "a.py: will not run: grid has a / for a // (line 2)\n" in text
    write(tmp_path, {"a.py": program.replace("f()", "f%d()").replace('}")', '}" % input())')})
    text, _ = check(str(tmp_path))
    assert "a.py: not known, after bridge migrate: 1 of its sources" in text


def test_lines_of_notebooks_are_told_by_cell(check, tmp_path):
    cells = "import pycuda.compiler as c\nn = '// %d' \\\n  % 2", "%time\nc.SourceModule(n + no)"
    cells = [{"cell_type": "code", "source": cell.splitlines(True)} for cell in cells]
    write(tmp_path, {"a.ipynb": json.dumps({"cells": cells})})
    text, _ = check(str(tmp_path))
    assert "a.ipynb: code cell 2 of 2, line 2: the source is made when the program" in text
    assert "it depends on no\n" in text


CODE = "from pycuda.compiler import SourceModule\nSourceModule('__global__ void f() {}')"
NOTEBOOKS = {
    "a list": ([CODE], "cannot be read: it is not a notebook (AttributeError"),
    "no source": (
        {"cells": [{"cell_type": "code", "name": "SourceModule"}]},
        "cannot be read: it is not a notebook (KeyError: 'source')",
    ),
    "no cells": ({"SourceModule": 1}, "cannot be read: it is not a notebook (KeyError: 'cells')"),
    "before version 4": (
        {"worksheets": [{"cells": [{"cell_type": "code", "input": [CODE]}]}]},
        "will run, after %load_ext bridge",
    ),
}


@pytest.mark.parametrize(("notebook", "said"), NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_structures_of_notebooks(check, tmp_path, notebook, said):
    write(tmp_path, {"a.ipynb": json.dumps(notebook)})
    text, errors = check(str(tmp_path))
    assert f"a.ipynb: {said}" in text
    assert errors == ""


def test_an_error_is_printed_once_for_a_call(check, tmp_path):
    program = """
        from pycuda.compiler import SourceModule
        for T in "int", "float":
            SourceModule("__global__ void f(%s *x) { nothing; }" % T)
    """
    write(tmp_path, {"a.py": program})
    text, _ = check(str(tmp_path))
    assert text.count("does not compile") == 1
    assert "a.py: will not run: 2 of its sources cannot be compiled" in text


def test_what_only_nvcc_compiles_is_named(check, tmp_path):
    write(tmp_path, {"a.py": "SourceModule('nothing')"})
    nvcc = """
import bridge.legacy.check as check, shutil
check._nvcc_compiles = lambda request: True
check.shutil = type("shutil", (), {"which": lambda name: "/nvcc"})
"""
    text, _ = check(str(tmp_path), before=nvcc)
    assert "a.py:1: does not compile (nvcc compiles it): " in text
    assert "compiled by nvcc and bridge: 0, nvcc only: 1, bridge only: 0, neither: 0" in text


def test_progress_is_shown_on_a_terminal(check, tmp_path):
    write(tmp_path, {"a.py": "SourceModule('')", "b.py": ""})
    terminal = "import os, sys; sys.stderr.isatty = lambda: True; os.environ['COLUMNS'] = '20'"
    text, progress = check(str(tmp_path), before=terminal)
    assert "a.py: will run\n" in text
    path = f"{tmp_path}/"[:11]
    assert progress == f"\n1 of 2: {path}\033[K\n\033[K\n2 of 2: {path}\033[K\n\033[K"
    assert check(str(tmp_path))[1] == ""


def test_code_is_cached(check, tmp_path):
    cache = f"import os; os.environ['CUPY_CACHE_DIR'] = {str(tmp_path / 'cache')!r}"
    write(tmp_path, {"a.py": "SourceModule('__global__ void f() {}')", "cache/empty": ""})
    check(str(tmp_path), before=cache)
    assert len([*(tmp_path / "cache").glob("*.cubin")]) == 1


def test_nothing_to_check(check, tmp_path):
    text, _ = check(str(tmp_path))
    assert text == f"{NOTHING}\nstatus 1\n"


def test_a_folder_that_is_not_there(check):
    text, errors = check("{}/nowhere")
    assert text == ""
    assert errors.endswith("nowhere'; give a folder of programs, or one\n")


BEFORE_CUDA_4 = """
    from pycuda.compiler import SourceModule
    class Filter:
        def run(self):
            self.f.launch()
        def make(self):
            self.f = SourceModule("").get_function("f")
            self.f.set_block_shape(8, 1, 1), self.f.set_shared_size(8)
            self.f.param_set(1), self.f.param_seti(0, 1), self.f.param_setf(4, 1)
            self.f.param_setv(8, b""), self.f.param_set_size(12)
            self.f.launch_grid(1, 1), self.f.launch_grid_async(1, 1, None)
"""
OTHER_LAUNCHES = """
    import bridge, tkinter
    from bridge import launch
    from pycuda.compiler import SourceModule
    class Window:
        def __init__(self, module):
            self.window = tkinter.Tk()
            self.window.launch()
            module.launch()
    class Other:
        def __init__(self, launch, window):
            self.launch = launch
            self.window = SourceModule("").get_function("f")
            self.window.launch()
            self.shown = SourceModule("").get_function("f")
            for self.shown in [window]:
                self.shown.launch()
    f = SourceModule("").get_function("f")
    bridge.launch(f, grid=1)
    launch(f)
    f = bridge
    f.launch()
"""


def names_in(text, check, tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    lines = check(str(tmp_path))[0].splitlines()
    return {line.split()[5]: line.split("): ")[1] for line in lines if line.startswith("not serv")}


def test_names_of_before_cuda_4(check, tmp_path):
    assert names_in(BEFORE_CUDA_4, check, tmp_path) == names.BEFORE_CUDA_4


@pytest.mark.parametrize("name", names.BEFORE_CUDA_4)
def test_functions_give_the_same_advice(name):
    function = bridge.SourceModule("__global__ void f() {}").get_function("f")
    advice = re.escape(f"{name}'; {names.BEFORE_CUDA_4[name]}")
    with pytest.raises(AttributeError, match=f"{advice}$"):
        getattr(function, name)


def test_launches_of_others_are_no_alarm(check, tmp_path):
    assert names_in(OTHER_LAUNCHES, check, tmp_path) == {}
