"""``python -m bridge run``: programs as they are, in one context, without nvcc."""

import itertools
import json
import os
import re
import subprocess
import sys
import textwrap

import pytest
from gpus import ON_GPU
from processes import ROOT, surroundings

HOST = "" if ON_GPU else "import hostcuda; hostcuda.install()"


@pytest.fixture
def run(tmp_path, run_module):
    """Run a program, by ``python -m bridge run`` or by Python alone, in a folder of its own."""

    def run(program, *arguments, options=(), plainly=False, **environment):
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        # Child processes need the host driver, too: what Python imports first installs it.
        (tmp_path / "sitecustomize.py").write_text(HOST)
        around = {"cwd": tmp_path, "env": surroundings()["env"]}
        around["env"]["PYTHONPATH"] = os.pathsep.join((str(tmp_path), around["env"]["PYTHONPATH"]))
        nowhere = {"PATH": "/usr/bin:/bin"} if ON_GPU else {}  # no nvcc
        around["env"].update(nowhere | environment)
        if not plainly:
            return run_module("bridge", "run", *options, "program.py", *arguments, **around)
        command = [sys.executable, "program.py", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **around)

    return run


START = """
import bridge, cupy, numpy as np
import pycuda.autoinit
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.compiler import SourceModule
"""
LEGACY = """
    import sys
    import numpy as np
    import pycuda.driver as drv
    import pycuda.autoinit
    from pycuda import gpuarray
    from pycuda.compiler import SourceModule

    module = SourceModule("__global__ void twice(float *x) { x[threadIdx.x] *= 2; }")
    twice = module.get_function("twice")
    a = gpuarray.to_gpu(np.arange(4, dtype=np.float32))
    twice(a, block=(4, 1, 1))
    host = np.ones(4, np.float32)
    memory = drv.mem_alloc(host.nbytes)
    drv.memcpy_htod(memory, host)
    twice(memory, block=(4, 1, 1))
    drv.memcpy_dtoh(host, memory)
    print((a + 1).get(), host, gpuarray.sum(a).get())
"""


WITH_CUPY = """
    import cupy
    x = cupy.ones(4, np.float32)
    twice(x, block=(4, 1, 1))
    print(x, cupy.cuda.driver.ctxGetCurrent() == drv.Context.get_current().handle)
    try:
        twice(cupy.ones(4), block=(4, 1, 1))
    except TypeError as error:
        print(error)
"""


@pytest.mark.starts
def test_a_program_needs_no_change_and_its_kernels_take_cupy_arrays(run):
    done = run(LEGACY + WITH_CUPY)
    assert (done.stderr, done.returncode) == ("", 0)
    first, second, error = done.stdout.splitlines()
    assert (first, second) == ("[1. 3. 5. 7.] [2. 2. 2. 2.] 12.0", "[2. 2. 2. 2.] True")
    assert error.startswith("twice: argument 0 (`float *x`) is an array of float64")


EARLY = """
    import importlib.util, multiprocessing, os, sys
    os.environ["CUPY_ACCELERATORS"] = "cub"
    early = [name for name in ("numpy", "cupy", "pycuda") if name in sys.modules]
    found = importlib.util.find_spec("pycuda").name
    import cupy, pycuda.compiler
    accelerators = cupy._core.get_reduction_accelerators()

    def work(_):
        return early, found, accelerators, hasattr(pycuda.compiler.SourceModule, "_signature")

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(*pool.map(work, [0]), work(0))
"""


@pytest.mark.starts
def test_nothing_is_imported_before_the_program_sets_its_environment(run):
    done = run(EARLY)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "([], 'pycuda', [1], True) ([], 'pycuda', [1], True)\n"


@pytest.mark.starts
@pytest.mark.parametrize("first", ["bridge.hooks", "bridge.autoinit", "skcuda.misc", "cupy"])
def test_the_first_import_may_be_another(first, run):
    program = "import pycuda.compiler as c, bridge\nprint(c.SourceModule.__base__)"
    done = run(f"import {first}\n{program}")
    assert (done.stdout, done.stderr) == ("<class 'bridge.kernels.module.SourceModule'>\n", "")


@pytest.mark.starts
def test_a_program_may_have_a_module_cuda(run_module, tmp_path):
    """It hides NVIDIA's package of that name, which CuPy imports."""
    (tmp_path / "cuda.py").write_text("VALUE = 3\n")
    program = "import pycuda.autoinit, cuda, cupy\nprint(cuda.VALUE, cupy.ones(3).sum())"
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path}
    done = run_module("bridge", "run", "program.py", cwd=tmp_path, env=environ)
    if ON_GPU:
        assert (done.stdout, done.stderr) == ("3 3.0\n", "")
    else:
        assert done.stderr.startswith("FAILED: bridge: libcuda.so.1 is missing"), done.stderr


def test_a_context_may_be_popped_when_modules_are_cleared(run, tmp_path):
    (tmp_path / "popper.py").write_text(
        textwrap.dedent("""
        import pycuda.driver as drv
        class Popper:
            def __init__(self):
                drv.init()
                self.context = drv.Device(0).make_context()
            def __del__(self):
                self.context.pop()
    """)
    )
    done = run("""
        import popper
        def main():
            kept = popper.Popper()
            raise ValueError("the end")
        main()
    """)
    assert done.stderr.endswith("ValueError: the end\n"), done.stderr


@pytest.mark.starts
def test_a_missing_library_is_named_when_the_program_needs_it(run):
    done = run("""
        import sys
        class Missing:
            def find_spec(name, path, target=None):
                if name == "cupy":
                    raise ImportError("No module named 'cupy'", name=name)
        sys.modules.pop("cupy", None)
        sys.meta_path.insert(0, Missing)
        print("here", flush=True)
        try:
            import pycuda
        except ImportError:
            pass
    """)
    assert (done.returncode, done.stdout) == (1, "here\n")
    assert done.stderr.startswith(
        "FAILED: bridge: CuPy is not installed: `pip install cupy-cuda12x"
    )


MISMATCH = """
put = SourceModule("__global__ void put(int *x) { x[threadIdx.x] = 7; }").get_function("put")
a = gpuarray.zeros(4, np.float32)
for _ in range(3):
    put(a, block=(4, 1, 1))
print(a.get().view(np.int32))
"""


def test_a_program_that_passes_other_dtypes_works_and_is_told(run):
    """PyCUDA's own test_large_smem is such a program."""
    done = run(START + MISMATCH)
    assert (done.returncode, done.stdout) == (0, "[7 7 7 7]\n")
    assert done.stderr.count("UserWarning") == 1
    told = "put: argument 0 (`int *x`) is an array of float32"
    assert f"program.py:11: UserWarning: {told}" in done.stderr
    done = run(START + MISMATCH, options=["--strict"])
    assert (done.returncode, done.stdout) == (1, "")
    assert f"TypeError: {told}" in done.stderr


KERNEL_OBJECTS = """
from pycuda.reduction import ReductionKernel
total = ReductionKernel("f4", "0", "a+b", "x[i]", arguments="const float *x", name="total")
print(total(cupy.arange(4, dtype="f4")))
total(gpuarray.to_gpu(np.arange(4.0)))
"""


def test_kernel_objects_take_cupy_arrays_and_other_dtypes_are_told(run):
    told = "total: argument 0 (`float *x`) is an array of float64, but the kernel takes float32"
    done = run(START + KERNEL_OBJECTS)
    assert (done.returncode, done.stdout) == (0, "6.0\n"), done.stderr
    assert f"UserWarning: ReductionKernel: {told}" in done.stderr
    done = run(START + KERNEL_OBJECTS, options=["--strict"])
    assert done.returncode == 1
    assert f"TypeError: ReductionKernel: {told}" in done.stderr


def test_pycudas_error_on_a_thread_without_a_context_says_what_to_do(run):
    thread = "on_a_thread(lambda: gpuarray.to_gpu(np.zeros(3)))"
    said = "invalid device context; a thread needs a context: work under `with bridge"
    assert said in run(f"{START}from other_threads import on_a_thread\n{thread}").stderr


PROGRAMS = sorted((ROOT / "tests" / "legacy" / "programs").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs_of_the_years_print_the_same_with_pycuda_alone(path, run, nvcc):
    plain = run(path.read_text(), plainly=True, PATH=os.environ["PATH"])
    assert plain.returncode == 0, plain.stderr
    for options in ([], ["--pool"]):
        done = run(path.read_text(), options=options)
        assert (done.stdout, done.stderr, done.returncode) == (plain.stdout, "", 0)
        assert done.stdout.count("\n") == 1


USE = """
import atexit
import bridge, numpy as np
import pycuda.driver as drv
from pycuda import gpuarray
from other_threads import on_threads

drv.init()

def use():
    a = gpuarray.to_gpu(np.arange(3.0))
    assert bridge.as_cupy(a).sum() == 3

def make():
    return drv.Device(0).make_context()
"""
CONTEXTS = """
outer, inner = make(), make()  # one made, popped and detached within another
inner.pop()
inner.detach()
use()
outer.detach()
print(drv.Context.get_current())

context = make()  # make_context, pop, detach
use()
context.pop()
context.detach()
print(drv.Context.get_current())

context = make()  # push and pop
drv.Context.pop()
for _ in range(3):
    context.push()
    use()
    context.pop()
print(drv.Context.get_current())

outer, inner = make(), make()  # two contexts
use()
inner.pop()
use()
outer.pop()
print(drv.Context.get_current())
"""
AUTOINIT = """
import pycuda.autoinit
context = make()  # beside autoinit's
use()
context.pop()
context.detach()
use()
pycuda.autoinit.context.pop()
context = make()  # after autoinit's is popped
use()
context.detach()
print(drv.Context.get_current())
"""
ON_A_THREAD = """
def work():
    import pycuda.autoinit
    use()
on_threads(lambda _: work(), None)
print(drv.Context.get_current())
"""
AT_EXIT = """
context = make()
atexit.register(context.pop)
use()
"""
PROGRAMS_OF_CONTEXTS = {
    "of its own": (CONTEXTS, 4),
    "autoinit's": (AUTOINIT, 1),
    "autoinit on a thread": (ON_A_THREAD, 1),
    "popped at exit": (AT_EXIT, 0),
    "never popped": ("context = make()\nuse()", 0),
}


@pytest.mark.parametrize(
    ("program", "times"), PROGRAMS_OF_CONTEXTS.values(), ids=PROGRAMS_OF_CONTEXTS
)
def test_contexts_of_its_own_are_the_primary_one(program, times, run):
    done = run(USE + program)
    assert (done.stdout, done.stderr, done.returncode) == ("None\n" * times, "", 0)


IN_DEL = """
import sys
import pycuda.driver as drv
drv.init()
class Owner:
    def __init__(self):
        if "retained" in sys.argv:
            self.context = drv.Device(0).retain_primary_context()
            self.context.push()
        else:
            self.context = drv.Device(0).make_context()
        self.memory = drv.mem_alloc(3)
        self.own = self
    def __del__(self):
        drv.Context.synchronize()
        self.memory.free()
        drv.Context.pop()
        self.context.detach()
        print("done")
owners = [Owner() for _ in sys.argv[1:]]
print("the end")
"""


@pytest.mark.parametrize("how", ["made", "retained"])
def test_the_programs_last_objects_have_its_context(how, run):
    ours, plain = run(IN_DEL, how), run(IN_DEL, how, plainly=True)
    assert (ours.stdout, ours.stderr, ours.returncode) == ("the end\ndone\n", "", 0)
    assert (plain.stdout, plain.stderr, plain.returncode) == (ours.stdout, "", 0)
    two = run(IN_DEL, how, "two")
    assert (two.stdout, two.stderr, two.returncode) == ("the end\ndone\ndone\n", "", 0)


def test_cupy_may_have_enabled_access_to_another_device(python):
    done = python(
        """
        import warnings
        import bridge.legacy.run
        bridge.legacy.run.replace()
        import cupy, pycuda.driver as drv
        drv.init()
        contexts = [drv.Device(i).make_context() for i in (0, 1)]
        with cupy.cuda.Device(0): x = cupy.arange(3)
        warnings.simplefilter("ignore")  # CuPy's, of what it does
        with cupy.cuda.Device(1): x * 2
        contexts[1].enable_peer_access(contexts[0])
        try:
            contexts[1].enable_peer_access(contexts[1])
        except drv.Error as error:
            print(error)
        """,
        devices=2,
    )
    said = r"cuCtxEnablePeerAccess failed: invalid device.*\n"
    assert re.fullmatch(said, done.stdout), done.stderr


OF_THREADS = """
def work(index):
    context = make()
    use()
    if index == 3:
        raise KeyError("before pop")
    context.pop()

on_threads(work, *range(4))
print("the end")
"""


def test_a_thread_has_its_own(run):
    done = run(USE + OF_THREADS)
    assert (done.stdout, done.returncode) == ("the end\n", 0)
    assert done.stderr.count("KeyError: 'before pop'") == 1
    assert "PyCUDA ERROR" not in done.stderr


POPS_FIRST = """
import sys, threading
import pycuda.driver as drv
from pycuda import gpuarray

drv.init()
barrier = threading.Barrier(3)  # their threads are different ones


def free_bytes():
    context = drv.Device(0).make_context()
    free, _ = drv.mem_get_info()
    context.pop()
    return free


def work():
    context = drv.Device(0).make_context()
    bare, array, converted = drv.mem_alloc(1 << 20), *(gpuarray.empty(1 << 20, "u1") for _ in "ab")
    if "convert" in sys.argv:
        import bridge
        bridge.as_cupy(converted)
    barrier.wait()
    context.pop()
    del bare, array, converted
    barrier.wait()


before = free_bytes()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
work_on_main, barrier = work, threading.Barrier(1)
work_on_main()
print(before - free_bytes())
"""


@pytest.mark.alone
@pytest.mark.parametrize("how", ["under run", "converted", "with PyCUDA alone"])
def test_memory_that_a_thread_drops_after_its_context_is_freed(how, run):
    given = ["convert"] if how == "converted" else []
    done = run(POPS_FIRST, *given, plainly=how == "with PyCUDA alone")
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)


AFTER_THE_MAIN_THREAD = """
import _thread, threading
import numpy as np
import pycuda.driver as drv
from pycuda.compiler import SourceModule

drv.init()


def refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")


def work():
    threading.main_thread().join()
    _thread.start_new_thread = refuse  # as of Python 3.12
    context = drv.Device(0).make_context()
    f = SourceModule("__global__ void f(int *x) { *x = 7; }").get_function("f")
    out = np.zeros(1, np.int32)
    f(drv.Out(out), block=(1, 1, 1))
    print(out[0])
    context.pop()


threading.Thread(target=work).start()
"""


def test_a_thread_compiles_after_the_main_threads_last_line(run):
    done = run(AFTER_THE_MAIN_THREAD, PYCUDA_DISABLE_CACHE="1")
    assert (done.stdout, done.stderr, done.returncode) == ("7\n", "", 0)


def test_without_run_such_a_thread_aborts_the_process(run):
    """The control."""
    done = run(USE + "on_threads(lambda _: make(), None)\nprint('the end')", plainly=True)
    assert done.returncode != 0
    assert "PyCUDA ERROR" in done.stderr


IN_ORDER = """
import os, pickle, sys
import program
class P: pass
print(type(pickle.loads(pickle.dumps(P()))) is P, program.__name__)
print(sys.argv, __name__, __file__, sys.path[0])
if __name__ == "__main__":
    os.chdir("/")
    print(open(__file__).read())
"""
ENDS = {
    "an exit status": ("import sys; sys.exit(3)", 3),
    "an error": ("def f():\n    return 1 / 0\nf()", 1),
    "its arguments, folder, classes and module": (IN_ORDER, 0),
    "bad syntax": ("def f(:\n    pass", 1),
    "an interrupt": ("raise KeyboardInterrupt", -2),
    "pickling at the end": (
        "import atexit, pickle\nclass P: pass\natexit.register(lambda: pickle.dumps(P()))",
        0,
    ),
    "a hook of its own": ("import sys\nsys.excepthook = lambda *e: print(e[0])\n1 / 0", 1),
}


@pytest.mark.starts
@pytest.mark.parametrize(("program", "status"), ENDS.values(), ids=ENDS)
def test_it_ends_as_with_python_alone(program, status, run):
    ours, plain = run(program, "one", "--two"), run(program, "one", "--two", plainly=True)
    assert ours.returncode == status, ours.stderr
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert ours.stderr == plain.stderr
    assert "bridge" not in ours.stderr


NAMES = "queue", "concurrent", "random", "string", "json", "ast", "argparse", "signal"
COMMANDS = {
    "run program.py": "ran",
    "migrate program.py": "  line 1: from pycuda import autoinit -> from bridge import autoinit",
    "check .": "sources: 1 can be compiled for sm_90, 0 cannot",
}


@pytest.mark.parametrize(("words", "said"), COMMANDS.items(), ids=COMMANDS)
def test_files_beside_the_program_do_not_hide_what_bridge_imports(
    words, said, run, package, tmp_path
):
    if words.startswith("migrate"):
        package("libcst")
    (tmp_path / "programs").mkdir()
    for name in NAMES:
        (tmp_path / "programs" / f"{name}.py").write_text("raise ImportError('a program's')")
    (tmp_path / "programs" / "program.py").write_text("from pycuda import autoinit\nprint('ran')\n")
    (tmp_path / "programs" / "source.py").write_text("SourceModule('')")
    command = f"[sys.executable, '-m', 'bridge', *{words.split()}]"
    start = f"import os, sys\nos.chdir('programs')\nos.execv(sys.executable, {command})"
    done = run(start, plainly=True)
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", said)


def test_python_2_is_named(run):
    for program in 'print "one"', 'exec "one = 1"':
        assert run(program).stderr.endswith("python -m bridge migrate converts it\n")


def test_a_module(run, tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(LEGACY) + "\nprint(sys.argv[1:], __name__)")
    done = run("", options=["-m", "mine", "one"])
    assert done.stdout.endswith("['one', 'program.py'] __main__\n"), done.stderr


def test_processes_that_it_spawns_are_alike(run):
    done = run("""
        import multiprocessing
        import numpy as np

        def work(n):
            import pycuda.autoinit, pycuda.compiler
            import pycuda.driver as drv
            from pycuda import gpuarray
            import bridge
            a = gpuarray.to_gpu(np.arange(n, dtype=np.float32))
            replaced = issubclass(pycuda.compiler.SourceModule, bridge.SourceModule)
            return float(bridge.as_cupy(a + 1).sum()), replaced

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(work, [2, 3]))
    """)
    assert done.stdout == "[(3.0, True), (6.0, True)]\n", done.stderr


def test_a_record_is_read_by_check(run, tmp_path):
    (tmp_path / "real.cuh").write_text("typedef short real;")
    done = run(
        """
        import multiprocessing, pycuda.autoinit
        from pycuda import gpuarray
        from pycuda.compiler import SourceModule
        from pycuda.elementwise import ElementwiseKernel
        def make(kind):
            text = '#include "real.cuh"\\n__global__ void f(%s *x) {}  // \\ "' % kind
            SourceModule(text, options=["-DA=1"], include_dirs=["."])
        if __name__ == "__main__":
            for kind in ("real", "int", "int"):
                make(kind)
            ElementwiseKernel("float *x", "x[i] = 1")(gpuarray.zeros(3, "f"))
            SourceModule("__global__ void f() {}", options=["-arch=sm_90"])
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                pool.map(make, ["char"])
        """,
        options=["--record", "record"],
    )
    assert done.returncode == 0, done.stderr
    record = tmp_path / "record"
    assert re.search(rf"bridge run: \d sources are in {record}\n", done.stderr), done.stderr

    def check(*arguments):
        command = ["check", *arguments, str(record)]
        return run(f"import bridge.__main__\nbridge.__main__.main({command})").stdout

    text = check("--verbose", "--arch", "sm_80")
    assert {*re.findall(r"(\w+) \*x", text)} >= {"short", "int", "char", "float"}
    assert {*re.findall(r"program\.py:(\d+): compiles", text)} == {"8", "12", "13"}
    compiled, of_all = re.search(r"(\d+) of (\d+) compile for sm_80", text).groups()
    assert compiled == of_all == str(len(record.read_text().splitlines()))
    run("", options=["--record", "record"])
    assert record.read_text() == ""  # of the last run


DYNAMIC = """
from pycuda.compiler import DynamicSourceModule
source = "__global__ void scale(float *x) { x[threadIdx.x] *= N; } // g<<<1, 1>>>(x);"
one = DynamicSourceModule(source, options=["-DN=2", "-rdc=true", "-lcudadevrt"], cuda_libdir="/")
other = DynamicSourceModule(source, "nvcc", ["-DN=3"], False, False, *(None,) * 4, "/")
x = cupy.ones(2, "f")
for module in one, other:
    module.get_function("scale")(x, block=(2, 1, 1))
print(x, flush=True)
launching = "__global__ void g(int *x) { ++*x; } __global__ void f(int *x) { g<<<1, 1>>>(x); }"
y = gpuarray.zeros(1, np.int32)
DynamicSourceModule(launching).get_function("f")(y, block=(1, 1, 1))
print(y)
"""


def test_a_dynamic_module_is_linked_only_if_kernels_launch_kernels(run):
    done = run(START + DYNAMIC)
    if not done.returncode:
        assert done.stdout == "[6. 6.]\n[1]\n", done.stderr
    else:  # there is no linker, as on the host driver, or no library for it
        assert done.stdout == "[6. 6.]\n", done.stderr
        assert "DynamicSourceModule: a kernel that launches kernels is linked with" in done.stderr


@pytest.mark.starts
def test_record_says_that_a_program_compiles_nothing(run):
    done = run("def work():\n    import pycuda.autoinit", options=["--record", "new"])
    assert done.stderr.startswith("bridge run: 0 sources are in ")


def test_options_behind_the_program_are_the_programs(run):
    done = run("import sys\nprint(sys.argv[1:])", "--strict", "-x")
    assert done.stdout == "['--strict', '-x']\n"
    assert done.stderr.startswith("bridge run: --strict stands behind the program, so it is the")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--record", "docs", "setup.py"], "docs'; give a file, which is overwritten"),
        (["nothing.py"], "there is no file 'nothing.py'; give a program, or -m and a module"),
        (["notebooks/05_streams.ipynb"], "is a notebook; write %load_ext bridge in its first cell"),
        (["notebooks/05_streams.ipynb"], "jupyter nbconvert --to script"),
        ([], "the following arguments are required: PROGRAM"),
        (["--foo", "setup.py"], "bridge run: error: unrecognized arguments: --foo"),
        (["docs"], "'docs' has no __main__.py; give a program"),
    ],
)
def test_what_it_cannot_run(arguments, said, run_module):
    done = run_module("bridge", "run", *arguments, cwd=ROOT, env={**os.environ})
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.starts
def test_a_traceback_starts_in_the_program_where_another_one_runs_bridge(run, tmp_path):
    outer = """
        import runpy, sys
        sys.argv[:] = ["bridge", "run", "inner.py"]
        runpy.run_module("bridge", None, "__main__")
    """
    (tmp_path / "inner.py").write_text("def f():\n    return 1 / 0\nf()\n")
    said = run(outer, plainly=True).stderr
    assert re.findall(r", line (\d)", said) == ["3", "2"], said
    (tmp_path / "inner.py").write_text("print 'a'\n")
    said = run(outer, plainly=True).stderr
    assert said.endswith("This is Python 2: python -m bridge migrate converts it\n")


def test_after_autoinit_it_is_too_late(python):
    done = python("""
        import pycuda.autoinit
        import bridge.legacy.run
        try:
            bridge.legacy.run.replace()
        except bridge.ContextError as error:
            print(error)
    """)
    assert "`import pycuda.autoinit` ran before" in done.stdout, done.stderr


def test_a_notebook_loads_it(python):
    done = python("""
        import bridge, types
        from pycuda.compiler import SourceModule  # as a cell that ran earlier
        bridge.load_ipython_extension(types.SimpleNamespace(user_ns=globals()))
        import pycuda.autoinit, cupy
        import pycuda.driver as drv
        print(cupy.cuda.driver.ctxGetCurrent() == drv.Context.get_current().handle)
        print(issubclass(SourceModule, bridge.SourceModule))
    """)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


# ---- one pool ------------------------------------------------------------------------------------

REUSE = (
    START
    + """
import json
from latch import Latch, compile_plain
from other_threads import on_a_thread

put = SourceModule('''
__global__ void put(int *x, int n, int value)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value; }
''').get_function("put")
latch = Latch(compile_plain)
make = {"blocking": lambda: drv.Stream(), "non-blocking": lambda: drv.Stream(1)}
n = 1000

def reuse(first, second, when):
    one, two = make[first](), (make[second]() if when != "made later" else None)
    put(gpuarray.zeros(n, np.int32), np.int32(n), np.int32(0), block=(32, 1, 1), stream=one)
    drv.Context.synchronize()
    held = make[first]() if "dropped" in when else one
    with latch.hold(held):
        a = gpuarray.GPUArray(n, np.int32)
        address = int(a.gpudata)
        if "dropped" in when:
            bridge.wait_stream(one, held)
        put(a, np.int32(n), np.int32(1), block=(32, 1, 1), stream=one)
        if "dropped" in when:
            dropped = [one]
            del one
            if when != "dropped":
                on_a_thread(dropped.clear)
            dropped.clear()
        del a  # plain PyCUDA waits here for the kernel
        if two is None:
            two = make[second]()
        b = gpuarray.GPUArray(n, np.int32)
        assert int(b.gpudata) == address, "the block was not reused"
        put(b, np.int32(n), np.int32(2), block=(32, 1, 1), stream=two)
    drv.Context.synchronize()
    return sorted(set(b.get().tolist()))

print(json.dumps([reuse(*case) for case in CASES]))
"""
)
KINDS = "blocking", "non-blocking"
WHEN = "made before", "made later", "dropped", "dropped without a context"
CASES = [*itertools.product(KINDS, KINDS, WHEN)]


@pytest.mark.latch
def test_a_block_is_reused_after_the_work_on_every_stream(run):
    done = run(REUSE.replace("CASES", repr(CASES)), options=["--pool"])
    assert done.returncode == 0, done.stderr
    found = dict(zip(CASES, json.loads(done.stdout), strict=True))
    assert found == {case: [2] for case in CASES}


@pytest.mark.latch
def test_with_the_plain_allocator_it_is_not(run):
    """The control: the block is written to by the first stream's kernel after the second's."""
    plain = REUSE.replace("import pycuda.autoinit", "import bridge.autoinit; bridge.use_nvrtc()")
    plain = plain.replace("GPUArray(n, np.int32)", "GPUArray(n, np.int32, allocate)")
    allocate = "from exporters import Plain\nallocate = lambda n: Plain(cupy.cuda.alloc(n))"
    plain = plain.replace("n = 1000", f"n = 1000\n{allocate}")
    end = "block=(32, 1, 1), stream=two)"  # while the first stream is held up
    plain = plain.replace(end, f"{end}; two.synchronize()")
    case = ("non-blocking", "non-blocking", "made before")
    done = run(plain.replace("CASES", repr([case])), plainly=True)
    assert (done.stdout, done.returncode) == ("[[1]]\n", 0), done.stderr


OVERLAP = """
import json
from latch import Latch, compile_plain

put = SourceModule('''
struct one { int item; };
__global__ void put(int *x, one value) { *x = value.item; }
''').get_function("put")
latch = Latch(compile_plain)
latch._patience = np.int32(min(latch._patience, 200_000))  # where it waits, not for ten seconds
one, two, views, zero = drv.Stream(1), drv.Stream(1), [], ((), np.int32)
values = [np.array(n, [("item", "i4")]) for n in range(3)]  # these are no arrays for a kernel

def converted(a):
    views.append(bridge.as_cupy(a))
    return a

MAKE = {
    "arrays of PyCUDA": lambda: gpuarray.zeros(*zero),
    "of pycuda_allocator": lambda: gpuarray.zeros(*zero, bridge.pycuda_allocator()),
    "arrays of CuPy": lambda: cupy.zeros(*zero),
    "views of CuPy": lambda: bridge.as_pycuda(cupy.zeros(*zero)),
    "arrays that CuPy views": lambda: converted(gpuarray.zeros(*zero)),
}

def waits(make):
    x, y = make(), make()
    put(x, values[0], block=(1, 1, 1), stream=one)
    drv.Context.synchronize()
    found = False
    try:
        with latch.hold(one):
            put(x, values[1], block=(1, 1, 1), stream=one)
            put(y, values[2], block=(1, 1, 1), stream=two)
            two.synchronize()
    except AssertionError as error:
        found = "the host waited" in str(error)
    assert (int(x.get()), int(y.get())) == (1, 2)
    return found

print(json.dumps([kind for kind in MAKE if waits(MAKE[kind])]))
"""


@pytest.mark.latch
@pytest.mark.parametrize("options", [[], ["--pool"]], ids=["plain memory", "one pool"])
def test_launches_on_two_streams_overlap(options, run):
    """But not of memory on which CuPy's current stream may work before."""
    done = run(START + OVERLAP, options=options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["arrays of CuPy", "views of CuPy", "arrays that CuPy views"]


SHARED = """
module = SourceModule("__global__ void add(float *to, float *x) { *to = *x + 1; }")
add, s = module.get_function("add"), drv.Stream(1)

def read(name, cupy_stream):
    memory, a, out = drv.mem_alloc(4), gpuarray.zeros(8, np.float32), drv.mem_alloc(4)
    host = np.zeros(1, np.float32)
    drv.memcpy_htod(memory, host)
    drv.Context.synchronize()
    with cupy_stream:
        x = bridge.as_cupy(memory, shape=1, dtype="f4") if name == "memory" else bridge.as_cupy(a)
        x[:] = 3
        array = {"memory": memory, "a slice": a[4:], "gpudata": a.gpudata}[name]
        add(out, array, block=(1, 1, 1), stream=s)
        drv.memcpy_dtoh_async(host, out, s)
        s.synchronize()
    return host[0]

for name in ("memory", "a slice", "gpudata"):
    for cupy_stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        assert read(name, cupy_stream) == 4, (name, cupy_stream)
"""


def test_memory_that_cupy_views_is_ordered_by_any_name(run):
    done = run(START + SHARED)
    assert (done.returncode, done.stderr) == (0, "")


ARITHMETIC = """
module = SourceModule("__global__ void fill(float *x) { x[threadIdx.x] = 5; }")
fill = module.get_function("fill")
c, s = cupy.cuda.Stream(), drv.Stream()
a, host = gpuarray.zeros(20, np.float32)[10:], np.zeros(10, np.float32)
drv.Context.synchronize()
with c:
    fill(a, block=(10, 1, 1), stream=s)
    a += 1
fill(drv.Out(host), block=(10, 1, 1), stream=drv.Stream(1))
print(set(a.get().tolist()), set(host.tolist()))
"""


def test_pycudas_arithmetic_and_copies_stay_pycudas_beside_other_streams(run):
    done = run(START + ARITHMETIC)
    assert (done.stdout, done.stderr) == ("{6.0} {5.0}\n", "")


CAPTURE = """
streams = [drv.Stream(1), drv.Stream()]
a, x = gpuarray.zeros(8, np.float32), cupy.zeros(8, np.float32)
used = cupy.get_default_memory_pool().used_bytes()
with bridge.as_cupy_stream(streams[1]) as stream:
    x += 1
    stream.synchronize()
    stream.begin_capture()
    x += 1
    del a
    graph = stream.end_capture()
    graph.launch(stream)
    bridge.wait_stream(stream, streams[0])
drv.Context.synchronize()
print(x, used - cupy.get_default_memory_pool().used_bytes())
"""


def test_a_capture_is_not_spoilt_by_what_is_dropped(run):
    done = run(START + CAPTURE, options=["--pool"])
    assert (done.stdout, done.stderr) == ("[2. 2. 2. 2. 2. 2. 2. 2.] 512\n", "")
