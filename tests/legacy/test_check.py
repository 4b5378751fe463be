"""``python -m bridge check``: what it reads from programs, and what it says of them."""

import json
import re
import subprocess
import sys
import textwrap
import time

import pytest
from error_tables import cases_of
from gpus import ON_GPU
from processes import run_python, surroundings
from pycuda._driver import have_gl_ext

import bridge
from bridge.legacy import names


def notebook(*code):
    """Return the text of a notebook with cells of code, below one that is none."""
    cells = [{"cell_type": "markdown", "source": ["# SourceModule"]}]
    cells += [{"cell_type": "code", "source": one.splitlines(True)} for one in code]
    return json.dumps({"cells": cells})


PROGRAMS = {
    "right.py": """
        import pycuda.driver as drv
        from pycuda.compiler import SourceModule as Module
        TEMPLATE = "__global__ void %(name)s(float *x, int n) { x[n] = {value}; }"
        def make():
            return Module(TEMPLATE.replace("{value}", "7") % {"name": "put"}, options=["-DA"])
        class Filter:
            def compile(self):
                self.module = Module('''
                    texture<float, 2> image; struct S { int a[3]; };
                    __global__ void g(S *s, S t, double *y) { y[0] = tex2D(image, 0, 0); }
                ''')
                self.module.get_function("put")
    """,
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
    "binary.py": "SourceModule\0",
    "cells.ipynb": notebook(
        "%load_ext autoreload\nif True:\n    !pip install pycuda\nimport pycuda.autoinit\n"
        "from pycuda.compiler import SourceModule\nSourceModule('__global__ void f(int n) {}')"
    ),
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        end = "\nimport pycuda.autoinit\n" * name.endswith(".py")
        (folder / name).write_text(textwrap.dedent(text) + end)


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
    for library in "cupy_backends.cuda.libs.cublas", "cupy.cuda.cufft":
        package(library)  # whose functions are looked up
    package("libcst"), package("fissix")  # for the program in Python 2
    text, errors = check("{}")
    assert errors == ""
    first, *rest = text.splitlines()
    assert first.startswith("binary.py: cannot be read: binary.py is neither Python 3 (")
    assert rest == [
        "cells.ipynb: will run, after %load_ext bridge",
        "libraries.py: will not run: skcuda.special is not served (line 2), skcuda.integrate is "
        "not served (line 3), skcuda.cublas.cublasNothing is not served (line 4), "
        "skcuda.linalg.dmd is not served (line 5), skcuda.fft.nothing is not served (line 6)",
        "old.py: not known: it is not Python 3: check the copy that bridge migrate writes (line 1)",
        "right.py: will run",
        'wrong.py:3: does not compile: kernel.cu(1): error: identifier "nothing" is undefined',
        "wrong.py: will not run: launch_grid is not served, call f(*args, grid=..., block=...) "
        "(line 6), a source does not compile (line 3)",
        "programs: 2 will run, 2 will not run, 2 not known",
        "sources: 4 can be compiled for sm_90, 1 cannot",
        "to compile sources that are made when the program runs: bridge run --record FILE PROGRAM, "
        "then bridge check FILE",
        "status 1",
    ]


def test_one_program_with_its_kernels(check):
    text, _ = check("--verbose", "--arch", "sm_80", "{}/right.py")
    assert text.splitlines()[:3] == [
        "right.py:6: compiles: put(float *x, int n)",
        "right.py:9: compiles: g(S *s, S t, double *y)",
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


KERNEL = "__global__ void f(%s *x) {}"
# Programs, and the types of the parameters in the sources that are read; "?": not all are read.
VALUES = cases_of(r"""
names that are bound once: int
    def make():
        kind = "in"
        return SourceModule(code)
    code = KERNEL % "int" + "// "
formats: int
    pair = "a", 1
    size, rest = 4, 5
    SourceModule(f"{KERNEL} // {size}" % "int" + "// {} {a}".format(1, a=size) + "%s%d" % pair)
a starred name: ?
    *A, B, C = 'a', 'int', 'b', 'c'
    SourceModule(KERNEL % B)
two values: ?
    T = "int"
    SourceModule(KERNEL % T)
    T = "float"
a loop that fills it in: ?
    code = KERNEL
    for name, value in {"%s": "int"}.items():
        code = code.replace(name, value)
    SourceModule(code)
a value made of the one before: ?
    code = KERNEL % "int"
    code += "// "
    SourceModule(code)
a branch: ?
    SourceModule(KERNEL % ("int" if N else "float"))
what a method changes: ?
    types = {"T": "int"}
    types.update(T="float")
    SourceModule("__global__ void f(%(T)s *x) {}" % types)
a parameter of the same name: ?
    T = "int"
    def make(T):
        SourceModule(KERNEL % T)
an import of all names: ?
    T = "int"
    from settings import *
    SourceModule(KERNEL % T)
an import of all names before it: int
    from math import *
    T = "int"
    SourceModule("__global__ void f(%s *x) {}" % T)
a deleted name: ?
    T = 'int'
    del T
    SourceModule(KERNEL % T)
an error that is caught: ?
    T = "int"
    try:
        1 / 0
    except ZeroDivisionError as T:
        SourceModule(KERNEL % T)
a match: ?
    T = "int"
    match N:
        case {"a": 1, **T}:
            SourceModule(KERNEL % T)
names that need each other: ?
    A = B
    B = A
    SourceModule(A)
a file: ?
    SourceModule(open('own.cu').read())
arguments in a dictionary: ?
    SourceModule(KERNEL % 'int', **input())
no text: ?
    SourceModule(3)
generated kernels: ?
    from pycuda.elementwise import ElementwiseKernel as Kernel
    Kernel("long *x", "x[i] = 2")
an alias: float?
    make = SourceModule
    make(KERNEL % "int")
    SourceModule(KERNEL % "float")
an argument: float?
    import pycuda.compiler as comp
    build(comp.SourceModule)
    comp.SourceModule(KERNEL % "float")
code without a module: int
    import re
    import pycuda.driver as drv
    from pycuda.compiler import compile
    re.compile("a")
    drv.module_from_buffer(compile(KERNEL % "int"))
classes and modules of others: int?
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
""")


@pytest.fixture(scope="module")
def evaluated(check, tmp_path_factory):
    """Check the programs of `VALUES`, each in a folder of its own; return the lines of each."""
    folder = tmp_path_factory.mktemp("values")
    first = "import pycuda.autoinit\nfrom pycuda.compiler import SourceModule\n"
    first += f"KERNEL = {KERNEL!r}\nN = input()\n"
    for number, (program, _) in enumerate(VALUES.values()):
        (folder / str(number)).mkdir()
        (folder / str(number) / "program.py").write_text(first + program)
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
# Programs that compile nothing.
UNREAD = {
    "a comment": "# SourceModule",
    "an import": "from pycuda.compiler import DynamicSourceModule, SourceModule",
    "a class of its own": """
        class SourceModule:
            pass
        SourceModule()
    """,
}


@pytest.mark.parametrize("program", UNREAD.values(), ids=UNREAD)
def test_programs_without_a_source(check, tmp_path, program):
    write(tmp_path, {"program.py": program})
    text, errors = check(str(tmp_path))
    assert (text, errors.splitlines()[-1]) == (
        "",
        f"python -m bridge check: error: {tmp_path}: {NOTHING}",
    )


F = "SourceModule('__global__ void f() {}')"
# What is said of programs that need more than a compiler.
NEEDS = cases_of(r"""
a dynamic module: will run
    try:
        from pycuda.compiler import DynamicSourceModule
    except ImportError:
        from pycuda.compiler import SourceModule as DynamicSourceModule
    DynamicSourceModule("__global__ void f() {}")
a kernel that launches one: not known: a source does not compile (line 2)
    from pycuda.compiler import DynamicSourceModule
    DynamicSourceModule("__global__ void f() { f<<<1, 1>>>(); }")
a source that may not be compiled: not known: a source does not compile (line 2)
    def f():
        SourceModule('nothing')
the program itself: will not run: a source does not compile (line 2)
    if __name__ == '__main__':
        SourceModule('nothing')
packages: not known: nowhere cannot be imported (line 1), elsewhere cannot be imported (line 1)
    import bridge, skcuda, nowhere.inner, elsewhere
    from .beside import one
    from folder import two
    try:
        import optional
    except ImportError:
        optional = None
    SourceModule('__global__ void f() {}')
old names: will not run: no numpy.float here, write float (line 9), no time.clock here (line 9)
    import hashlib, sys, time
    import numpy as np
    SourceModule('__global__ void f() {}')
    try:
        start = time.clock
    except AttributeError:
        start = time.perf_counter
    np.linalg.norm(np.zeros(3)), np.fft.fft, hashlib.md5
    np.zeros(3, np.float), time.clock()
a name of PyCUDA's older versions: will not run: no pycuda.driver.nothing here (line 3)
    import pycuda.driver as drv
    SourceModule('')
    drv.nothing
an import from a module: will not run: no time.clock here (line 1)
    from time import clock
    SourceModule('__global__ void f() {}')
names of another system: not known: no time.clock here (line 4)
    import sys, time
    SourceModule('__global__ void f() {}')
    if sys.platform == 'win32':
        time.clock()
a name of a module that is bound again: not known: no time.clock here (line 4)
    import time
    SourceModule('__global__ void f() {}')
    time = input()
    time.clock()
no step of a loop: not known: no time.clock here (line 3)
    import time
    SourceModule('__global__ void f() {}')
    [time.clock() for _ in ()]
an error that anything handles: not known: no time.clock here (line 4)
    import time
    SourceModule('__global__ void f() {}')
    try:
        time.clock()
    except Exception as e:
        print(e)
scikit-cuda that may be there: will run
    try:
        import skcuda.special
    except ImportError:
        pass
    SourceModule('__global__ void f() {}')
a header: not known: the file own.cuh is not found (line 1)
    SourceModule('#include "own.cuh"')
a header that is there: will run
    SourceModule('#include "two.cuh"\nreal x;', include_dirs=["folder"])
what NVRTC needs: apply here (write #include <cstdint>)
    SourceModule('__global__ void f(uint8_t *x) {}')
a kernel that no source has: not known: no source has the kernel g (line 1)
    f = SourceModule('__global__ void f() {}').get_function('g')
kernels of which not all are known: not known: a source is made when the program runs (line 2)
    f = SourceModule('__global__ void f() {}').get_function('g')
    SourceModule(input())
a mangled name: will run
    f = SourceModule('__global__ void f() {}', no_extern_c=True).get_function('_Z1fv')
launches of other objects: will run
    import bridge, queue
    from bridge import launch
    class Window:
        def __init__(self):
            self.window = queue.Queue()
            self.window.launch()
    f = SourceModule('__global__ void f() {}').get_function('f')
    bridge.launch(f, grid=1)
    launch(f)
an escape that Python does not know: will run
    SourceModule('__global__ void f() {}')
    '\p'
""")
NEEDS["OpenGL"] = (
    f"from pycuda import gl\n{F}",
    "will run" if have_gl_ext() else "not known: pycuda.gl cannot be imported (line 1)",
)


@pytest.mark.parametrize(("program", "said"), NEEDS.values(), ids=NEEDS)
def test_what_a_program_needs(check, tmp_path, program, said):
    write(tmp_path, {"program.py": program, "folder/two.py": ""})
    write(tmp_path, {"folder/two.cuh": "typedef float real;"})
    text, errors = check(str(tmp_path))
    assert errors == ""
    assert f"{said}\n" in text
    assert ("will run\n" in text) == (said == "will run")


def test_a_program_without_a_context(check, tmp_path):
    (tmp_path / "a.py").write_text(f"import pycuda.driver\n{F}\n")
    text, _ = check(str(tmp_path))
    assert "a.py: not known: nothing makes a context (line 1)\n" in text


def test_scipys_names(check, package, tmp_path):
    package("scipy")
    write(tmp_path, {"a.py": f"from scipy import misc as m\n{F}\nm.imread('a.png')"})
    text, _ = check(str(tmp_path))
    assert re.search(r"a\.py: will not run: no scipy\.misc(\.imread)? here", text)


def test_an_architecture_is_checked(check, tmp_path):
    write(tmp_path, {"a.py": "SourceModule('')"})
    text, errors = check("--arch", "90", str(tmp_path))
    assert "--arch: '90' is no architecture; give one such as sm_90" in errors
    assert text == ""


def test_python_2_that_python_3_can_parse(check, package, tmp_path):
    package("libcst"), package("fissix")
    write(tmp_path, {"a.py": f"for i in xrange(2):\n    {F}"})
    text, _ = check(str(tmp_path))
    assert "a.py: not known: it is not Python 3: check the copy that bridge migrate" in text
    write(tmp_path, {"a.py": "for i in xrange(2): pass\nSourceModule('nothing')"})
    text, _ = check(str(tmp_path))
    assert "a.py: will not run: a source does not compile (line 2)" in text


def test_lines_of_notebooks_are_told_by_cell(check, tmp_path):
    cells = "import pycuda.compiler as c\nn = '// %d' \\\n  % 2", "%time\nc.SourceModule('no')"
    write(tmp_path, {"a.ipynb": notebook(*cells)})
    text, _ = check(str(tmp_path))
    assert "a.ipynb: code cell 2 of 2, line 2: does not compile: " in text
    assert "a source does not compile (code cell 2 of 2, line 2)\n" in text


CODE = f"import pycuda.autoinit\nfrom pycuda.compiler import SourceModule\n{F}"
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


def test_code_is_cached(check, tmp_path):
    cache = f"import os; os.environ['CUPY_CACHE_DIR'] = {str(tmp_path / 'cache')!r}"
    write(tmp_path, {"a.py": "SourceModule('__global__ void f() {}')", "cache/empty": ""})
    check(str(tmp_path), before=cache)
    assert len([*(tmp_path / "cache").glob("*.cubin")]) == 1


BAD = {
    "nothing": ("nowhere", None, "nowhere'; give a folder of programs, a program or a record"),
    "a folder without programs": ("", None, NOTHING),
    "a program that is broken": ("a.py", "SourceModule(", "a.py is neither Python 3"),
    "a notebook without a kernel": ("a.ipynb", '{"cells": []}', NOTHING),
    "a notebook that is none": ("a.ipynb", "SourceModule", "a.ipynb: Expecting value"),
    "no record": ("a.txt", "SourceModule", "a.txt: it is no program (.py, .ipynb), and no"),
    "another file": ("a.json", '{"line": 1}', "a.json: it is no program"),
    "an empty file": ("a.txt", "", "no record of bridge run --record (there is nothing in it)"),
}


@pytest.mark.parametrize(("name", "text", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_named(check, tmp_path, package, name, text, said):
    package("libcst")
    if text is not None:
        (tmp_path / name).write_text(text)
    text, errors = check(str(tmp_path / name))
    assert (text, errors.count("error: ")) == ("", 1)
    assert said in " ".join(errors.split())


def test_what_a_module_of_the_programs_own_imports_is_looked_for(check, tmp_path):
    (tmp_path / "mine.py").write_text("from nowhere.plots import line\nimport program\n")
    program = tmp_path / "program.py"
    source = "from pycuda.compiler import SourceModule\nSourceModule('__global__ void f() {}')\n"
    program.write_text(f"import pycuda.autoinit, mine\n{source}")
    text, _ = check(str(program))
    assert "program.py: not known: nowhere cannot be imported (line 1)\n" in text


def test_a_missing_compiler_is_no_wrong_usage(check, tmp_path):
    without = """
import cupy_backends.cuda.libs.nvrtc as nvrtc
def getVersion():
    raise RuntimeError("no libnvrtc.so")
nvrtc.getVersion = getVersion
"""
    assert check(str(tmp_path), before=without) == ("", "FAILED: no libnvrtc.so\n")


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


def test_names_of_before_cuda_4(check, tmp_path):
    write(tmp_path, {"program.py": BEFORE_CUDA_4})
    text, _ = check(str(tmp_path))
    found = dict(re.findall(r"(\w+) is not served, (.*?\)) \(line", text))
    assert found == {n: names.BEFORE_CUDA_4[n] for n in names.BEFORE_CUDA_4.keys() - {"launch"}}


@pytest.mark.parametrize("name", names.BEFORE_CUDA_4)
def test_functions_give_the_same_advice(name):
    function = bridge.SourceModule("__global__ void f() {}").get_function("f")
    advice = re.escape(f"{name}'; {names.BEFORE_CUDA_4[name]}")
    with pytest.raises(AttributeError, match=f"{advice}$"):
        getattr(function, name)
