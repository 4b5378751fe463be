"""``python -m bridge migrate``: what it edits, what it leaves, and what the copies print."""

import os
import re
import textwrap

import pytest
from processes import ROOT, surroundings

pytest.importorskip("libcst", reason="not installed: libcst")
pytest.importorskip("fissix", reason="not installed: fissix")

from bridge.legacy import names
from bridge.legacy.migrate.command import migrate, write_copy


def lines(text):
    return textwrap.dedent(text).strip("\n") + "\n"


def migrated(program):
    return migrate(lines(program).encode()).text.decode()


# ---- programs that print the same ----------------------------------------------------------------

BOTH_LIBRARIES = """
import numpy as np, cupy as cp
import pycuda.autoinit
import pycuda.driver as drv
import pycuda.compiler
from pycuda import gpuarray, autoprimaryctx
from pycuda.elementwise import ElementwiseKernel

module = pycuda.compiler.SourceModule("__global__ void add(float *x) { x[threadIdx.x] += 1; }")
add = module.get_function("add").prepare("P")
a = gpuarray.to_gpu(np.arange(4, dtype=np.float32))
x = cp.asarray(a)
y = cp.asarray((2 * a).get())
host = cp.asnumpy(y)
b = gpuarray.to_gpu(host)
c = gpuarray.GPUArray(x.shape, x.dtype, allocator=lambda size: x.data.ptr)
stream = drv.Stream()
add.prepared_async_call((1, 1), (4, 1, 1), stream, a.gpudata)
stream.synchronize()
ElementwiseKernel("float *x", "x[i] *= 3")(b)
x += 10
y += 20
print(a, x, y, b, c)
print(pycuda.driver.Context.get_current() == autoprimaryctx.context)
"""
OF_PYTHON_2 = """
import numpy, threading
import pycuda.driver as cuda
from pycuda import gpuarray
from pycuda.compiler import SourceModule

SOURCE = '__global__ void put(int *x) { x[threadIdx.x] = threadIdx.x; }'
N = 9
half = N / 2

class Worker(threading.Thread):
    def run(self):
        self.context = self.device.make_context()
        put = SourceModule(SOURCE).get_function('put')
        a = cuda.mem_alloc(4 * half)
        put(a, block=(half, 1, 1))
        found = numpy.empty(half, numpy.int32)
        cuda.memcpy_dtoh(found, a)
        print 'thread', found, 1. / half
        self.context.pop()
        del a, put
        del self.context

cuda.init()
for i in xrange(2):
    worker = Worker()
    worker.device = cuda.Device(0)
    worker.start()
    worker.join()

context = cuda.Device(0).make_context()
try:
    a = gpuarray.zeros(3, numpy.int32)
    SourceModule(SOURCE).get_function('put')(a, block=(3, 1, 1))
    print a.get(), 0777L
    del a
finally:
    context.pop()
    context.detach()
"""
AT_EXIT = """
import atexit
import numpy as np
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.compiler import SourceModule
drv.init()
for i in range(2):
    other = drv.Device(0).make_context()
    print(gpuarray.arange(3, dtype="f") + i)
    other.pop()
    other.detach()
ctx = drv.Device(0).make_context(drv.ctx_flags.SCHED_AUTO)
atexit.register(ctx.pop)
import cupy
x = cupy.zeros(3, "f")
a = gpuarray.to_gpu(np.ones(3, "f"))
f = SourceModule("__global__ void f(float *x) { x[threadIdx.x] += 1; }").get_function("f")
f(a, block=(3, 1, 1))
print(a, x)
"""
SCIKIT = """
import numpy as np
import pycuda.autoprimaryctx as auto
from pycuda import gpuarray
try:
    import skcuda.misc as misc
except ImportError:
    misc = None
a = gpuarray.to_gpu(np.arange(6.0).reshape(2, 3))
print(a.get().sum(axis=1) if misc is None else misc.sum(a, axis=1), auto.device.name() != "")
"""
PROGRAMS = {
    **{path.stem: path.read_text() for path in (ROOT / "tests/legacy/programs").glob("*.py")},
    **{"both libraries": BOTH_LIBRARIES, "Python 2": OF_PYTHON_2, "scikit-cuda": SCIKIT},
    "a context that ends at exit": AT_EXIT,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_print_the_same(program, python):
    done = migrate(program.encode())
    text = done.text.decode()
    assert not re.search(r"import pycuda\.auto|make_context|from pycuda\.compiler import S", text)
    before, after = (python(one.decode()) for one in (done.before, done.text))
    assert (before.returncode, after.returncode, after.stderr) == (0, 0, "")
    assert after.stdout == before.stdout != ""


# ---- single edits --------------------------------------------------------------------------------

KEPT = """
    #!/usr/bin/env python
    # -*- coding: utf-8 -*-
    '''Docstring.'''
    import os,  sys  # spaces
    import pycuda.autoinit, pycuda.driver as drv  # two
    x=[ 1,2 , 3]\t# a tab
    if x :
       print( 'é' ) ; y = \\
          2
    \f
    from pycuda.compiler import ( SourceModule as Module, DEFAULT_NVCC_FLAGS )  # names
    """


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_everything_else_stays_byte_for_byte(end):
    before = lines(KEPT).replace("\n", end).encode()
    after = before.replace(b"pycuda.autoinit", b"bridge.autoinit").replace(
        b"from pycuda.compiler import ( SourceModule as Module, DEFAULT_NVCC_FLAGS )",
        b"from bridge import SourceModule as Module; "
        b"from pycuda.compiler import DEFAULT_NVCC_FLAGS",
    )
    assert migrate(before).text == after


START = """
import numpy as np, cupy as cp
import pycuda.autoinit
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.compiler import SourceModule
a = gpuarray.to_gpu(np.zeros(3))
x = cp.zeros(3)
"""
EDITS = {
    "a view": ("y = cp.asarray(a)", "y = bridge.as_cupy(a)"),
    "an array computed": ("y = cp.asarray(2 * a)", "y = bridge.as_cupy(2 * a)"),
    "a holder": (
        "b = gpuarray.GPUArray(x.shape, x.dtype, gpudata=int(x.data.ptr), base=x)",
        "b = bridge.as_pycuda(x)",
    ),
    "only with an array that is certain": ("def f(a):\n    return cp.asarray(a)", None),
    "not after a second value": ("a = cp.zeros(3)\ny = cp.asarray(a)", None),
    "not with a dtype": ("y = cp.asarray(a, np.float32)", None),
    "not of another module": ("import numpy as cp\ny = cp.asarray(a)", None),
    "not a name of its own": ("class gpuarray:\n    GPUArray = list\ngpuarray.GPUArray(3)", None),
    "not an allocator that allocates": ("b = gpuarray.zeros(3, 'f', drv.mem_alloc)", None),
    "not the driver's": ("b = gpuarray.GPUArray(3, 'f', drv.mem_alloc)", None),
    "prepared, with the array": (
        "f = SourceModule('').get_function('f')\nf.prepared_async_call((1,), (1,), s, a.gpudata)",
        "f = SourceModule('').get_function('f')\nf.prepared_async_call((1,), (1,), s, a)",
    ),
}


@pytest.mark.parametrize(("code", "edited"), EDITS.values(), ids=EDITS)
def test_arrays(code, edited):
    assert migrated(f"{START}{code}").endswith(f"\n{edited or code}\n")


NOTES = {
    "a copy of something": ("def f(q):\n    return cp.asarray(q.get())", "If q is a GPUArray"),
    "a copy that waits for a stream": (
        "drv.Stream(1)\ny = cp.asarray(a.get())",
        "this copies through the host. If a is a GPUArray, write bridge.as_cupy(a).copy",
    ),
    "memory that is freed": (
        "b = gpuarray.to_gpu(x.get())\nb.gpudata.free()",
        "as_pycuda(x.copy())",
    ),
    "memcpy": ("drv.memcpy_htod(a.gpudata, x.get())", "view[...] = array"),
    "a pointer": ("m = cp.cuda.UnownedMemory(a.ptr, 24, a)", "use bridge.as_cupy(a)"),
    "an allocator": ("b = gpuarray.GPUArray(3, 'd', lambda n: x.data.ptr)", "use bridge.as_pycuda"),
    "an allocator that is a function": (
        "def take(n):\n    return x.data.ptr\nb = gpuarray.GPUArray(3, 'd', allocator=take)",
        "if this allocator gives memory in use, a + 1 overwrites it",
    ),
    "an address": ("f.prepared_async_call((1,), (1,), s, a.gpudata)", "pass the array"),
    "prepare with a block": ("f.prepare('P', (16, 1, 1))", "give it to each call"),
    "scikit-cuda": ("import skcuda.rlinalg", "bridge.legacy.skcuda serves"),
    "a context of a function": (
        "def f(d):\n    return d.make_context()",
        "primary_context(device):`",
    ),
    "the default context": (
        "from pycuda.tools import make_default_context as make\nmake()",
        "primary_context(device):`",
    ),
    "OpenGL": ("import pycuda.gl.autoinit", "primary_context(device):`"),
}


@pytest.mark.parametrize(("code", "said"), NOTES.values(), ids=NOTES)
def test_what_is_not_certain_stays_with_a_comment(code, said):
    done = migrate(lines(f"{START}{code}").encode())
    text = done.text.decode()
    without = re.sub(r" *#( bridge:|        ) .*\n", "", text)
    assert all(line in without.splitlines() for line in code.splitlines())
    (number, note) = next(one for one in done.notes if said in one[1])
    assert text.splitlines()[number - 1].strip().startswith("# bridge: ")
    assert note.split()[0] in text.splitlines()[number - 1]


REFUSED = {
    "a context": ("import pycuda.gl.autoinit", "once each context is CuPy's"),
    "launch_grid": ("f.launch_grid(1, 1)", "once nothing calls launch_grid"),
    "launch": ("f = SourceModule('').get_function('f')\nf.launch()", "once nothing calls launch"),
    "nvcc": ("SourceModule('', nvcc='/bin/nvcc')", "once no call gives nvcc="),
}


@pytest.mark.parametrize(("code", "said"), REFUSED.values(), ids=REFUSED)
def test_the_compiler_stays_where_the_program_could_not_run(code, said):
    text = migrated(f"{START}{code}")
    assert (
        f"# bridge: {said}, write `from bridge import SourceModule`\nfrom pycuda.compiler" in text
    )


@pytest.mark.parametrize("name", names.BEFORE_CUDA_4)
def test_names_of_before_cuda_4_stay_with_their_advice(name):
    function = "f = SourceModule('').get_function('f')\n"
    text = migrated(f"{START}{function}f.{name}()").replace("\n#         ", " ")
    said = f"# bridge: functions of bridge have no {name}: {names.BEFORE_CUDA_4[name]}"
    assert text.endswith(f"\n{said}\nf.{name}()\n")


def test_a_launch_of_another_object_is_none():
    code = "import bridge\nbridge.launch(f, grid=1)\nwindow.launch()"
    text = migrated(f"{START}f = SourceModule('').get_function('f')\n{code}")
    assert text.endswith(f"\n{code}\n")
    assert "from bridge import SourceModule" in text


def test_a_name_that_only_autoinit_imports_stays_bound():
    text = migrated("import pycuda.autoinit\npycuda.driver.init()\npycuda.autoinit.context.pop()")
    assert text.startswith(
        "import bridge.autoinit, pycuda\npycuda.driver.init()\nbridge.autoinit.c"
    )
    text = migrated("import pycuda.autoinit, pycuda.driver\npycuda.driver.init()")
    assert text == "import bridge.autoinit, pycuda.driver\npycuda.driver.init()\n"


def test_autoinit_on_a_thread_is_left():
    text = migrated("import threading\ndef f():\n    import pycuda.autoinit")
    assert "    # bridge: import bridge.autoinit instead, at the top" in text
    assert migrated("def f():\n    import pycuda.autoinit").endswith("    import bridge.autoinit\n")


def test_a_module_without_a_context_says_who_makes_it():
    text = migrated("from pycuda.compiler import SourceModule")
    assert "the program that imports it needs `import bridge.autoinit`" in text.replace(
        "\n#         ", " "
    )
    assert text.endswith("\nfrom bridge import SourceModule\n")


def test_division_of_python_2():
    text = migrated("n = 5\nprint n / 2, 1. / n, len(x) / n\ny = f(n) / n\n")
    assert "print(n // 2, 1. / n, len(x) // n)\n# bridge: in Python 2, / of two" in text
    assert text.endswith("\ny = f(n) / n\n")
    circle = "z = f()\nq = g()\nfor i in range(9):\n    z = z * z + q\n    q = z / q\nprint z\n"
    assert "    q = z / q\n" in migrated(circle)  # in less than the age of the universe
    true = "from __future__ import division\nprint 1 / 2"
    assert migrated(true).endswith("\nprint(1 / 2)\n")


CONTEXTS = {
    "an attribute": ("self.c = d.make_context()", "self.c = {}; self.c.push()"),
    "nothing": ("d.make_context()", "{}.push()"),
    "in one line": ("if d: c = d.make_context(); c.pop()", "if d: c = {}; c.push(); c.pop()"),
    "an elif": ("if d: pass\nelif f(): d.make_context()", "if d: pass\nelif f(): {}.push()"),
    "flags": (
        "c = d.make_context(4)",
        "# bridge: CuPy's context takes no flags: they are left out\nc = {}; c.push()",
    ),
    "another library's": ("import moderngl\nc = moderngl.make_context()", None),
}


@pytest.mark.parametrize(("code", "edited"), CONTEXTS.values(), ids=CONTEXTS)
def test_contexts(code, edited):
    wanted = edited.format("d.retain_primary_context()") if edited else code
    assert migrated(code) == f"{wanted}\n"


MIXED_TABS = """
import pycuda.autoinit
class A:
    def f(self):
\tif self:  # a tab is eight columns
\t    print 'a'
\t\t\t# a comment
        return '''b
\tc'''

    def g(self):
        pass
"""


def test_mixed_tabs_of_python_2_become_spaces():
    text = migrate(MIXED_TABS.encode()).text.decode()
    program = MIXED_TABS.partition("class")[2].replace("print 'a'", "print('a')")
    before, string, after = program.partition("\tc'''")
    assert text.partition("class")[2] == before.expandtabs(8) + string + after


TABS = """
import pycuda.driver as drv
def f(x):
\tc = drv.Device(0).make_context()
\t# a comment
\tif x:
\t    y = 1\t# two kinds
\tc.pop()
"""


def test_indentation_by_tabs_stays():
    block = "; c.push()\n\t# a comment\n\tif x:\n\t    y = 1\t# two kinds\n\tc.pop()\n"
    assert migrated(TABS).endswith(f"\tc = drv.Device(0).retain_primary_context(){block}")


MAGICS = """
%matplotlib inline
import pycuda.autoinit
if True:
    !pip install pycuda
text = '''
!not a command''' \\
%text
"""


@pytest.mark.parametrize(("old", "new"), [("", ""), ("print 1", "print(1)")])
def test_lines_for_ipython_become_comments(old, new):
    done = migrate(lines(f"{MAGICS}{old}").encode())
    edited = MAGICS.replace("%matplotlib", "pass  # %matplotlib").replace("!pip", "pass  # !pip")
    assert done.text.decode() == lines(f"{edited}{new}").replace("import pycuda", "import bridge")
    assert (4, "!pip install pycuda -> (a comment)") in done.edits


# Programs in Python 2 that Python 3 can parse, in Python 3.
OF_PYTHON_2_TO_PARSE = {
    "xrange(2)": "range(2)",
    "raw_input()": "input()",
    "unicode(unichr(1))": "str(chr(1))",
    "isinstance(a, basestring)": "isinstance(a, str)",
    "a = long(1)": "a = int(1)",
    "a.has_key(1)": "1 in a",
    "a = xrange(1); b = 3 / 2": "a = range(1); b = 3 // 2",
    "import cPickle, Queue": "import pickle, queue",
    "from ConfigParser import ConfigParser": "from configparser import ConfigParser",
    "import urllib2; urllib2.urlopen(a)": "import urllib.request, urllib.error, urllib.parse; "
    "urllib.request.urlopen(a)",
    "from StringIO import StringIO": "from io import StringIO",
    "import itertools; itertools.izip(a)": "import itertools; zip(a)",
    "import string; string.maketrans(a, b)": "import string; str.maketrans(a, b)",
    "k = d.keys(); k.sort()": "k = list(d.keys()); k.sort()",
    "d.keys().sort()": "list(d.keys()).sort()",
    "file(a).read()": "open(a).read()",
    "import Image": "from PIL import Image",
    "import sys; sys.maxint": "import sys; sys.maxsize",
    "g = (w / 4, 1); f(grid=g)": "g = (w // 4, 1); f(grid=g)",
    "w = n / 4; f(grid=(w + 1, 1))": "w = n // 4; f(grid=(w + 1, 1))",
    "f(block=(w / 2 * 3, 1, 1))": "f(block=(w // 2 * 3, 1, 1))",
    "for k in a.iteritems(): pass": "for k in a.items(): pass",
    "print('a', xrange(1))": "print(('a', range(1)))",
}
# Programs that run in Python 3, or that Python 2 does not read.
OF_PYTHON_3 = [
    "try:\n    xrange\nexcept NameError:\n    xrange = range",
    "import sys\nif sys.version_info < (3,):\n    input = raw_input",
    "def xrange(n):\n    return range(n)\nprint(xrange(2))",
    "from past.builtins import unicode\nunicode(1)",
    "import six\nsix.iteritems({})",
    "class A:\n    def has_key(self, k):\n        return 1\nA().has_key(2)",
    "print(unicode(1), end='')",
    "a: int = long(1)",
    "try:\n    import cPickle as pickle\nexcept ImportError:\n    import pickle",
    "import itertools\nizip = getattr(itertools, 'izip', zip)",
    "k = sorted(d.keys())\nk.sort()",
    "from .Queue import Queue",
    "with open(a) as file:\n    file(1)",
    "f(grid=(int(w / 4), 1))\ng = w / 4",
]
NOTED_OF_PYTHON_2 = {
    "import Image, os": "Python 3 has no Image: write from PIL import Image",
    "from string import maketrans": "Python 3 has no string.maketrans: write str.maketrans",
    "cmp(a, b)": "Python 3 has no cmp: write (a > b) - (a < b)",
}


@pytest.mark.parametrize(("old", "new"), OF_PYTHON_2_TO_PARSE.items())
def test_names_of_python_2_are_converted(old, new):
    done = migrate(old.encode())
    assert done.before.decode().rstrip().startswith(new)
    assert (1, "Python 2 -> Python 3 (fissix)") in done.edits


@pytest.mark.parametrize(("program", "said"), NOTED_OF_PYTHON_2.items())
def test_names_that_fissix_does_not_know_are_noted(program, said):
    assert migrate(program.encode()).text.decode() == f"# bridge: {said}\n{program}\n"


@pytest.mark.parametrize("start", ["", "print 1\n"])
def test_a_parameter_that_is_a_keyword_now(start):
    done = migrate(f"{start}a.get(async=True); b.set(a, async = x == 1)".encode())
    assert done.text.decode().rstrip().endswith("a.get(async_=True); b.set(a, async_ = x == 1)")
    assert (1 + bool(start), "async= -> async_=") in done.edits


def test_a_module_of_the_package_is_noted(tmp_path):
    (tmp_path / "util.py").touch()
    text, name = b"from util import f\nimport os", str(tmp_path / "program.py")
    assert migrate(text, name).text == text
    (tmp_path / "__init__.py").touch()
    assert b"write `from . import util` or" in migrate(text, name).text


@pytest.mark.parametrize("program", OF_PYTHON_3)
def test_names_that_are_defined_are_not_converted(program):
    assert migrate(program.encode()).text == program.encode()


UNREADABLE = {
    "no Python": ("a b c", "is neither Python 3 (invalid syntax"),
    "a name of ours": ("bridge = 3\nimport pycuda.autoinit", "`bridge` of its own, in line 1"),
    "a null byte": ("a = 1\0", "is neither Python 3 (source code"),
    "a name that is a keyword": ("print 'a'\nasync = 1", "is not Python 3 after fissix has conv"),
    "too many operators": ("a = " + "-" * 10000 + "1", " cannot be read: "),
    "too long a sum": ("a = 1" + " + a" * 2000, " cannot be read: "),
}


@pytest.mark.parametrize(("program", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_errors(program, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        migrate(program.encode())


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, run_module):
    """Run the command on a program in a folder of its own."""

    def command(program, *arguments, **environment):
        (tmp_path / "program.py").write_text(lines(program))
        env = surroundings()["env"] | environment
        return run_module("bridge", "migrate", *arguments, cwd=tmp_path, env=env)

    return command


def test_the_copy_is_beside_the_program_and_not_overwritten(command, tmp_path):
    program = "import pycuda.autoinit\nc = pycuda.autoinit.context\n"
    done = command(program, "program.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "program.py -> program_bridge.py",
        "  line 1: import pycuda.autoinit -> import bridge.autoinit",
        "  line 2: pycuda.autoinit -> bridge.autoinit",
    ]
    copy = tmp_path / "program_bridge.py"
    assert copy.read_text() == program.replace("pycuda", "bridge")
    copy.write_text("mine")
    done = command(program, "program.py")
    assert done.returncode == 2
    assert "program_bridge.py exists, perhaps with your edits; --force overwrites it" in done.stderr
    assert copy.read_text() == "mine"
    assert command(program, "--force", "program.py").returncode == 0
    assert copy.read_text() != "mine"


def test_a_copy_that_exists_is_compared_as_it_is(command, tmp_path):
    copy = tmp_path / "program_bridge.py"
    for edited, status, said in ("print(2)", 1, "-1\n+2\n"), ("print(1)", 0, "print the same"):
        copy.write_text(edited)
        done = command("import pycuda.autoinit\nprint(1)", "--compare", "program.py")
        assert done.returncode == status
        assert done.stdout.startswith("program_bridge.py stays as it is; --force writes it anew\n")
        assert said in done.stdout
        assert copy.read_text() == edited


def test_the_page_shows_what_the_command_prints(command):
    page = (ROOT / "docs" / "run.md").read_text().partition("## Edits that are certain")[2]
    program, said = re.search(r"```py\n(.*?)```.*?```text\n(.*?)```", page, re.DOTALL).groups()
    assert command(program, "program.py").stdout == said


WRONG = {
    "no program": (["nowhere.py"], "there is no file 'nowhere.py'; give a program"),
    "a file that cannot be read": (["/proc/self/mem"], "error: [Errno 5] Input/output error"),
    "a folder": (["."], "there is no file '.'; give a program"),
    "arguments": (["program.py", "-n"], "'-n' is for the program, which only --compare runs"),
    "options behind": (["program.py", "--force"], "options of bridge migrate stand before the"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(arguments, said, command):
    done = command("", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_comment_of_the_program_is_no_part_of_a_note():
    pytest.importorskip("libcst")
    from bridge.legacy.migrate.editing import NEXT, NOTE, notes_in

    lines = NOTE + "one", NEXT + "two", "pass", NEXT + "three"
    assert notes_in("\n".join(lines).encode()) == [(1, "one two")]


def test_nothing_to_edit(command, tmp_path):
    said = "program.py: there is nothing to edit, so no copy is written"
    assert command("a = 1", "program.py").stdout == f"{said}\n"
    done = command("a = 1", "--compare", "program.py")
    assert (done.stdout, done.returncode) == (f"{said}, and nothing is compared\n", 0)
    assert not (tmp_path / "program_bridge.py").exists()


def test_a_bridge_beside_the_program(tmp_path):
    program = tmp_path / "program.py"
    for path in (program, tmp_path / "bridge.py"):
        path.write_text("import pycuda.autoinit")
    with pytest.raises(ValueError, match="would hide the package of this name from the copy"):
        write_copy(program, tmp_path / "program_bridge.py", None)


@pytest.mark.starts
@pytest.mark.parametrize(
    ("missing", "said"),
    [("libcst", "LibCST, which edits programs,"), ("fissix", "fissix, which converts Python 2,")],
)
def test_a_missing_library_is_named(missing, said, command, tmp_path):
    (tmp_path / f"{missing}.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), surroundings()["env"]["PYTHONPATH"]])
    done = command("print 1", "program.py", PYTHONPATH=path)
    assert done.returncode == 2
    assert f"{said} is not installed (not here): `pip install" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


COMPARED = {
    "equal": ("print(sys.argv[1:], time.time())\nprint(a)", 0, "same (lines: 2, but for 1 that"),
    "different": ("print(pycuda.autoinit.__name__)", 1, "-pycuda.autoinit\n+bridge.autoinit\n"),
    "nothing": ("sys.exit(0)", 0, "nothing is printed, so only the exit status 0 is compared"),
    "both fail": ("print(1); sys.exit(3)", 1, "same (lines: 1), and both fail: exit status 3"),
    "a line for IPython": ("!ls\nprint(1)", 0, "program.py is not Python 3; it runs converted"),
    "another status": (
        "sys.exit(pycuda.autoinit.__name__[0] == 'b')",
        1,
        "is 0 before and 1 after",
    ),
    "the program fails": ("a.nothing", 1, "fails, so there is nothing to compare: AttributeError"),
    "the copy fails": ("assert pycuda.autoinit.__name__ > 'p'", 1, "_bridge.py fails: Assertion"),
}


@pytest.mark.parametrize(("code", "status", "said"), COMPARED.values(), ids=COMPARED)
def test_comparing(code, status, said, command):
    program = f"import sys, time\n{START.strip()}\n{code}"
    done = command(program, "--compare", "program.py", "--x")
    assert (done.returncode, done.stderr) == (status, "")
    assert said in done.stdout
