"""NVRTC and nvcc give types one layout: sizes, alignments and signs, where nvcc is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
from gpus import ON_GPU, PACKAGE_MISSING
from processes import run_python

TYPES = """
struct plain { int a; short b; };
struct mixed { char a; long long b; float c[3]; };
struct bits { int a : 3; int b : 30; unsigned c : 5; };
struct bits_of_char { char a : 4; int b : 4; };
struct no_bits { char a; int : 0; char b; };
struct __attribute__((packed)) packed { char a; double b; };
struct __align__(16) aligned { float a[3]; };
struct alignas(32) aligned_too { float a; };
struct member { char a; __align__(8) float b; };
struct member_after { char a; float b __align__(8); };
typedef struct __attribute__((aligned(32))) { int a; short b; } aligned_name;
typedef float vector __attribute__((aligned(16)));
struct of_vector { char a; vector b; };
struct of_float3 { char a; float3 b; };
struct of_double2 { char a; double2 b; };
struct of_longlong2 { char a; longlong2 b; };
struct with_bool { bool a; int b; bool c; };
struct empty { };
struct derived : plain { char c; };
struct with_virtual { virtual __device__ void f() {} int a; };
#pragma pack(push, 1)
struct pragma_packed { char a; int b; };
#pragma pack(pop)
union either { char a; double b; };
enum of_unsigned { first }; enum of_int { minus = -1 }; enum of_char : char { one };
enum of_long { far = 1ll << 40 };
"""
NAMES = [
    *re.findall(r"(?:struct|union|enum) (?:__\w+\(.*?\)+ |alignas\(32\) )?(\w+) [:{]", TYPES),
    *("aligned_name", "vector", "char", "wchar_t", "char16_t", "long", "long long", "size_t"),
    *("bool", "void *", "float2", "float3", "float4", "double3", "uchar3", "ushort3", "longlong2"),
    *("ulonglong3", "double2", "dim3", "int plain::*"),
]
VALUES = [
    *(f"{measure}({name})" for name in NAMES for measure in ("sizeof", "alignof")),
    *(f"({name})-1 < 0" for name in ("char", "wchar_t", "of_unsigned", "of_int", "of_char")),
    *("-7 / 2", "-7 % 2", "-8 >> 1", "'\\xff' < 0", "sizeof('a')", "sizeof(0x80000000)"),
    *("sizeof(true + true)", "sizeof(1.0f * 1.0)", "__cplusplus"),
]
UNDEFINED = {"__NVCC__", "__GNUC__", "__linux__", "__x86_64__", "_LP64"}
MACROS = ["__CUDACC__", "__CUDA_ARCH__", "NDEBUG", "__LP64__", "__FAST_MATH__", *sorted(UNDEFINED)]
SWITCH = "#ifdef {0}\n#define HAS{0} 1\n#else\n#define HAS{0} 0\n#endif\n"
SOURCE = f"""
{TYPES}
{"".join(map(SWITCH.format, MACROS))}
__device__ long long values[] = {{{", ".join(f"(long long)({value})" for value in VALUES)}, 7}};
__device__ int macros[] = {{{", ".join(f"HAS{name}" for name in MACROS)}, 7}};
"""


def numbers(ptx, name, size):
    """Read an array of ints in PTX, up to the 7 at its end."""
    text = re.search(rf" {name}\[\d+\] = {{(.*?)}}", ptx)[1]
    found = [int(byte, 0) for byte in text.split(",")]
    data = bytes([*found, *bytes(-len(found) % size)])
    ints = [
        int.from_bytes(data[at : at + size], "little", signed=True)
        for at in range(0, len(data), size)
    ]
    assert ints.pop() == 7
    return ints


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What nvcc and NVRTC found."""
    folders = os.environ["PATH"].split(os.pathsep)  # but that of the imitation
    nvcc = shutil.which("nvcc", path=os.pathsep.join(f for f in folders if "hostcuda" not in f))
    if nvcc is None:
        pytest.skip(PACKAGE_MISSING + "nvcc")
    path = tmp_path_factory.mktemp("layouts") / "layouts.cu"
    path.write_text(SOURCE)
    subprocess.run(
        [nvcc, "-ptx", "-arch=compute_90", path, "-o", "nvcc.ptx"], check=True, cwd=path.parent
    )
    script = f"""
    import json, pathlib
    {"" if ON_GPU else "import hostcuda; hostcuda.install(compilers=False)"}
    from bridge.compiler.program import Request, compile
    source = pathlib.Path({str(path)!r}).read_text()
    request = Request(source, "nvcc", [], False, True, "compute_90", None, False, [])
    print(json.dumps(compile(request, "compute_90").code.decode()))
    """
    done = run_python(script, devices=0)
    assert done.returncode == 0, done.stderr
    texts = path.with_name("nvcc.ptx").read_text(), json.loads(done.stdout)
    return [(numbers(text, "values", 8), numbers(text, "macros", 4)) for text in texts]


def test_layouts_and_signs_agree(both):
    (theirs, _), (ours, _) = both
    differences = [row for row in zip(VALUES, theirs, ours, strict=True) if row[1] != row[2]]
    assert len(VALUES) > 80
    assert not differences


def test_the_macros_that_nvrtc_lacks_are_those_of_the_guide(both):
    (_, theirs), (_, ours) = both
    rows = zip(MACROS, theirs, ours, strict=True)
    assert {name for name, there, here in rows if there != here} == UNDEFINED
