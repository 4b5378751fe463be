"""Layouts of structs with alignments in every place: NVRTC's are nvcc's, or an error says so.

Each line of ``alignments.txt`` has numbers and declarations of a type T.  The numbers are those of
nvcc 13.0 for device code: the size of T, its alignment, the offset of a T after a char, and the
offset of T's member z.  The mark is > if NVRTC has other numbers until text moves, ~ if text moves
and the numbers stay, and = if nothing moves.
"""

import subprocess
from pathlib import Path

import pytest
from real_nvrtc import in_nvrtc

MACROS = """#define ALIGN16 __align__(16)
#define MY_ALIGN(n) __align__(n)
#define GNU16 __attribute__((aligned(16)))
#define PACKED __attribute__((packed))
#define UNUSED __attribute__((unused))
#define MEMBER(type, name) MY_ALIGN(16) type name
#define VECTOR(type, name) typedef struct { ALIGN16 type x, y, z; } name
#include "deep/er.h"
"""
OPTIONS = ["-DOPTION8=__align__(8)", "--pre-include=macros.h", "-w"]
HEADERS = {
    "macros.h": MACROS,
    "deep/er.h": '#pragma once\n#include "beside.h"\n',
    "deep/beside.h": "#define HEADER16 __align__(16)\nstruct MY_ALIGN(16) right { int a; };\n",
    "wrong.h": "#pragma once\n// é\n/* é */ typedef struct { int a; } ALIGN16 P;\n",
    "wrong_too.h": '#include "wrong.h"\n',
    "unused.h": "typedef struct { int a; } UNUSED Q; struct R { float __align__(16) x; };\n",
    "plain.h": "struct plain { int a; };\n",
}
NAMES = "sizeof(T)", "__alignof__(T)", "offsetof(After, t)", "offsetof(T, z)"
ROWS, MARKS = {}, {}
for _line in Path(__file__).with_name("alignments.txt").read_text().splitlines():
    *_numbers, _mark, _declarations = _line.split(" ", 5)
    _declarations = _declarations.replace("\\n", "\n")
    ROWS[_declarations], MARKS[_declarations] = _numbers, _mark


def checked(declarations: str) -> str:
    """Return the declarations, and assertions of the layout."""
    pairs = zip(NAMES, ROWS[declarations], strict=True)
    asserts = (f'static_assert({name} == {n}, "{name}");' for name, n in pairs if n != "-")
    return "\n".join((declarations, "struct After { char c; T t; };", *asserts))


TWO = "in line 1 of kernel.cu, '__align__(8)'"
REFUSED = {  # the declarations -> what the message says
    '\n#include "wrong.h"': "in line 3 of */wrong.h, 'ALIGN16'",
    "#include <wrong_too.h>": "in line 3 of */wrong.h, 'ALIGN16'",
    '#define NAME "wrong.h"\n#include "wrong.h"\n#include NAME': "in line 3 of */wrong.h",
    "struct P { int a; } ALIGN16 __align__(8);": TWO,
    "struct ALIGN16 P { int a; } __align__(8);": TWO,
    "#define S struct P { int a; } ALIGN16\n\nS;": "in line 3 of kernel.cu, 'S'",
    "#define S(n, A) struct n { int a; } A\nS(P, ALIGN16);": "in line 2 of kernel.cu, 'S(P, ALI",
    "#define END(n) } ALIGN16 n\ntypedef struct {\n int a;\nEND(P);": "in line 4 of kernel.cu",
    "#define END(n) } \\\n UNUSED ALIGN16 n\ntypedef struct { END(P);": "in line 3 of kernel.cu",
    "#define ALL(x) x\nALL(struct P { int a; } ALIGN16;)": "in line 2 of kernel.cu, 'ALL(struct",
    "#define BODY { int a; }\nstruct P BODY\nALIGN16;": "in line 3 of kernel.cu, 'ALIGN16'",
    "#define BODY(T) { T a; }\nstruct P BODY(int) ALIGN16;": "in line 2 of kernel.cu, 'ALIGN16'",
    "#define OPEN {\nstruct P OPEN int a; } ALIGN16;": "in line 2 of kernel.cu, 'ALIGN16'",
    "#ifdef ALIGN16\nstruct P {\n#else\nstruct Q {\n#endif\nint a; } ALIGN16;": "in line 6 of ker",
    "struct O { struct P {\n#if 0\nint a; } ALIGN16 p;\n#else\nlong a; } ALIGN16 p;\n#endif\n};": (
        "in line 5 of kernel.cu"
    ),
    '#line 40 "other.cu"\n#define S struct P { int a; } ALIGN16\nS;': "in line 3 of kernel.cu",
    "#pragma nv_diag_suppress 1097\n#define S struct P { int a; } ALIGN16\nS;": "in line 3 of ke",
}
RIGHT = [
    '#include "unused.h"',
    "#define DECLARE(n) struct n { float __align__(16) x; }\nDECLARE(P);",
    "#define DECLARE(n) struct n { float __align__(16) x; } variable_##n\nDECLARE(P);",
    "#define LOOP for (int i = 0; i < 3; i++) {\n#define DONE }\n"
    "int f() { int s = 0; LOOP s += i; DONE return s; }\nALIGN16 int x;",
    "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\nstruct ALIGN16 P { __half a; };",
]
# More wrong layouts than the errors after which NVRTC stops.
MANY = "\n".join(
    f'struct S{i} {{ int a; }} ALIGN16; static_assert(sizeof(S{i}) == 16, "");' for i in range(150)
)
PLAIN = ["struct P { int a; };", '#include "plain.h"\n#include <stdint.h>']


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("headers")
    for name, text in HEADERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def compiled(folder, tmp_path_factory):
    """Source -> the error of NVRTC, the error without the move, if text moved, NVRTC's runs."""
    given = {source: OPTIONS for source in (*map(checked, ROWS), *REFUSED, *RIGHT, MANY)}
    given |= {source: [] for source in PLAIN}
    script = f"""
import warnings
from bridge.compiler import fixes, nvrtc, program

def compile(source, options):
    runs.clear()
    request = program.Request(source, "nvcc", [], False, True, None, None, False, [{str(folder)!r}])
    try:
        program.compile(request, "compute_90", options=options)
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
    return ""

def count(*args):
    runs.append(args)
    compile_program(*args)

def create(source, *args):
    sources.append(source)
    return create_program(source, *args)

def attempt(source, options):
    fixes.FIXES = FIXES
    error, moved, number = compile(source, options), source not in sources[-1], len(runs)
    fixes.FIXES = [fix for fix in FIXES if fix.name != "alignments of structs"]
    return error, compile(source, options), moved, number

runs, sources, FIXES = [], [], fixes.FIXES
compile_program, create_program = nvrtc.nvrtc.compileProgram, nvrtc.nvrtc.createProgram
nvrtc.start()
nvrtc.nvrtc.compileProgram, nvrtc.nvrtc.createProgram = count, create
warnings.simplefilter("ignore")
"""
    cases = {source: (source, options) for source, options in given.items()}
    return in_nvrtc(script, cases, tmp_path_factory)


@pytest.mark.parametrize("declarations", ROWS)
def test_nvrtc_has_nvccs_layout(declarations, compiled):
    error, unmoved, moved, runs = compiled[checked(declarations)]
    assert error == ""
    assert (moved, runs) == ((True, 3) if MARKS[declarations] in ">~" else (False, 2))
    assert bool(unmoved) == (MARKS[declarations] == ">")  # the control


@pytest.mark.parametrize("source", REFUSED)
def test_an_alignment_that_cannot_move(source, compiled):
    error, _, _, _ = compiled[source]
    assert error.startswith("CompileError: NVRTC ignores the alignment in line")
    assert all(text in error for text in REFUSED[source].split("*"))
    assert "`struct __align__(16) name { ... };`" in error


@pytest.mark.parametrize("source", [*RIGHT, *PLAIN])
def test_right_code_is_compiled_as_it_is(source, compiled):
    error, _, moved, runs = compiled[source]
    assert (error, moved) == ("", False)
    assert runs == (1 if source in PLAIN else 2)


def test_many_alignments_move(compiled):
    error, unmoved, moved, _ = compiled[MANY]
    assert (error, moved) == ("", True)
    assert "static assertion failed" in unmoved


def test_nvcc_has_these_layouts(nvcc, folder):
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    if "NVIDIA" not in version:  # the host driver's
        pytest.skip("not installed: nvcc")
    rows = (f"namespace n{i} {{\n{checked(row)}\n}}" for i, row in enumerate(ROWS))
    start = "#define OPTION8 __align__(8)", MACROS, "#include <stddef.h>"
    (folder / "all.cu").write_text("\n".join((*start, *rows)))
    command = ["nvcc", "-std=c++17", "-w", "-ptx", "-arch=sm_90", "-o", "all.ptx", "all.cu"]
    done = subprocess.run([*command, "-I."], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
