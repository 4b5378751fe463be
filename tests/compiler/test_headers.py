"""The macros of the supplied headers are those of the host's headers, which nvcc uses."""

import os
import platform
import re
import shutil
import subprocess

import pytest
from real_nvrtc import in_nvrtc

from bridge.compiler.headers import supplied, vendor_folders

# Other names that start with an underscore are the host's own.
DOCUMENTED = r"__\w*(ENDIAN|ORDER)(__)?|__WORDSIZE|_Bool|__bool_true_false_are_defined"
LEFT_OUT = {  # what kernels do not have
    "types": r"LDBL_\w+|DECIMAL_DIG|M_\w+l|HUGE_VALL|SNANL|(M_|HUGE|SNANF)\w*(32|64|128)[xX]?",
    "types that CCCL makes smaller": r"PRI\wFAST(16|32)",
    "formats that printf does not have there": r"PRI[bB]\w+",
    "files, scanf": r"(SEEK_|RENAME_|[LP]_|SCN|TMP_|FOPEN_|FILENAME_)\w+|std(in|out|err)|BUFSIZ",
    "processes, select": r"W[A-Z]*(STOP|EXIT|CONT|SIG|TERM|WAIT|HANG|TRACED)[A-Z]*|FD_\w+|NFDBITS",
    "limits of the system": r"(AIO|BC|CHARCLASS|COLL|DELAYTIMER|EXPR|HOST|IOV|LINE|LOGIN|MQ|NAME|NL"
    r"|NGROUPS|PATH|PIPE|PTHREAD|RE|RTSIG|SEM|TTY|XATTR)_\w+|MAX_(CANON|INPUT)|NZERO",
    "locale, clocks": r"MB_\w+_MAX|(is|to)(ascii|\w+_l)|(ADJ|CLOCK|MOD|STA|TIMER)_\w+|TIME_UTC",
    "functions": r"alloca|assert_perror|strn?dupa|issub\w+|FP_(INT|LLOGB)\w+|[bl]e\d+toh|hto\w+",
    "CUDA's interface, system": r"cu\w+|CU(?!DA_VERSION)\w+|RESOURCE_ABI_\w+|unix|linux",
}
OURS = {name for name in supplied() if name.startswith(("bridge/", "cub/", "thrust/"))}
OURS.add("surface_functions.h")  # gone in CUDA 13
HEADERS = {"nothing": "", **{h: f"#include <{h}>\n" for h in sorted({*supplied()} - OURS)}}
# The name, the value, the type and the use in #if differ.
CONTROLS = ["undef DBL_DIG", "define DBL_DIG 7", "define DBL_DIG 15l", "define DBL_DIG int(15)"]
SAME = """
#define __builtin_nan(text) BRIDGE_DOUBLE(0x7ff8000000000000)
#define __builtin_nanf(text) float(__builtin_nan(text))
#define __builtin_huge_val() BRIDGE_DOUBLE(0x7ff0000000000000)
#define __builtin_huge_valf() float(__builtin_huge_val())
typedef long __clock_t;
template <class A, class B> constexpr bool same(A a, B b) {  // long and long long are alike
  return sizeof(A) == sizeof(B) && (A(-1) < A(0)) == (B(-1) < B(0)) && A(.5) == B(.5)
    && (a == b || (a != a && b != b));
}
constexpr bool same(const char *a, const char *b) { return *a == *b && (!*a || same(++a, ++b)); }
"""


def check(name, value):
    """Return what NVRTC refuses unless `name` is defined, as `value` if that is an expression."""
    lines = [f'#line 1 "{name}"', f"#ifndef {name}", "static_assert(false);", "#endif"]
    value = "CUDART_VERSION" if name == "CUDA_VERSION" else value  # nvcc's may differ
    value = value.replace('"l" "', '"ll').replace("nans", "nan").replace("inff", "huge_valf")
    used = name + "(1)" * name.endswith("_C")
    if re.fullmatch(r"[-+*()\s0-9a-fxulUL]+|CUDART_VERSION", value):
        lines += [f"#if {used} != ({value})", "static_assert(false);", "#endif"]
    if value not in (name, "", "bool", "__null"):
        lines.append(f"static_assert(same({used}, {value}));")
    return "\n".join(lines)


REFUSED = r"""
import re
from bridge.compiler import nvrtc

def attempt(source):
    found = nvrtc.compile_program(nvrtc.Program(source, "compute_90"))
    if isinstance(found, nvrtc.Compiled):
        return []
    return sorted(set(re.findall(r"(?m)^(\S+)\(\d+\): .*error", found))) or found
"""


@pytest.fixture(scope="module")
def differing(tmp_path_factory):
    """Header or control -> the names that differ; without headers that nvcc or g++ misses."""
    # Without hostcuda's nvcc.
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if "hostcuda" not in p)
    if shutil.which("g++", path=path) is None:
        pytest.skip("not installed: g++")
    if tuple(map(int, platform.libc_ver()[1].split("."))) > (2, 41):
        pytest.skip("not installed: the C library's headers as they were until glibc 2.41")
    file, nvcc = tmp_path_factory.mktemp("headers") / "source.cu", shutil.which("nvcc", path=path)
    gxx = ["g++", "-x", "c++", *(f"-I{folder}" for folder in vendor_folders())]

    def preprocess(text, option, command=(nvcc, "-Xcompiler") if nvcc else gxx):
        file.write_text(text)
        command = ["env", f"PATH={path}", *command, option, "-E", file]
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode else done.stdout

    left_out, names = re.compile("|".join(LEFT_OUT.values())), {}
    known = set(re.findall(r"#define (\w+)", preprocess("", "-dM", gxx)))
    for header, line in HEADERS.items():
        if found := set(re.findall(r"#define (\w+)", preprocess(line, "-dM"))):
            new = {n for n in found - known if n[0] != "_" and not left_out.fullmatch(n)}
            names[header] = new | {n for n in found if re.fullmatch(DOCUMENTED, n)}
            known |= new if header == "nothing" else set()
    text = "".join(map(HEADERS.get, names))
    for name in set().union(*names.values()):
        text += f'"@{name}" {name}{"(1)" * name.endswith("_C")}\n'
    found = re.findall(r'"@(\w+)"([^@]*)(?="@|\Z)', preprocess(text, "-P"))
    values = {name: " ".join(value.split()) for name, value in found}
    checks = {h: "\n".join(check(n, values[n]) for n in sorted(names[h])) for h in names}
    cases = {header: [HEADERS[header] + SAME + checks[header]] for header in names}
    cases |= {c: [f"{HEADERS['float.h']}#{c}\n{SAME}{checks['float.h']}"] for c in CONTROLS}
    return in_nvrtc(REFUSED, cases, tmp_path_factory)


@pytest.mark.parametrize("header", HEADERS)
def test_the_macros_of(header, differing):
    if header not in differing:
        pytest.skip(f"not installed: a toolkit with {header}")
    assert differing[header] == []


@pytest.mark.parametrize("change", CONTROLS)
def test_a_macro_that_differs_is_found(change, differing):
    assert differing[change] == ["DBL_DIG"]
