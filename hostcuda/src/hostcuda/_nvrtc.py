"""The real NVRTC: it needs no GPU, and says whether a GPU could run a kernel.

Its cubin tells what a launch may ask for.  Source: NVRTC documentation; the attributes of a cubin
are those that ``cuobjdump -elf`` shows.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ARCHITECTURE = "-arch=sm_90"  # of the devices of this driver
FILE = "kernel.cu"  # each source's name: a program's own can be that of a temporary folder
# Headers of the host that sources for nvcc include: NVRTC declares what kernels use of them.
HOST_HEADERS = """assert.h cassert cfloat climits cmath complex.h cstddef cstdint cstdio cstdlib
cstring cuda.h cuda_runtime.h device_launch_parameters.h float.h inttypes.h limits.h math.h
stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h surface_functions.h vector_types.h"""
TYPES = """#pragma once
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned uint32_t;
typedef long int64_t; typedef unsigned long uint64_t;
typedef unsigned long uintptr_t; typedef long intptr_t;
"""
# <sys/types.h> has these, which CUDA's headers include for nvcc.
SHORT_TYPES = """typedef unsigned int uint; typedef unsigned short ushort;
typedef unsigned long ulong;
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define HUGE_VALF INFINITY
#define HUGE_VAL __builtin_bit_cast(double, 0x7ff0000000000000ll)
"""
# nvcc's <cmath> takes numbers of all kinds; NVRTC has the functions of float and double alone.
OVERLOADS = """#ifdef __cplusplus
template <class T> struct hostcuda_integer {};
template <class T> struct hostcuda_number {};
#define HOSTCUDA_KIND(T) template <> struct hostcuda_integer<T> { typedef double is; }; \\
  template <> struct hostcuda_number<T> { typedef double is; };
HOSTCUDA_KIND(char) HOSTCUDA_KIND(signed char) HOSTCUDA_KIND(unsigned char) HOSTCUDA_KIND(short)
HOSTCUDA_KIND(unsigned short) HOSTCUDA_KIND(int) HOSTCUDA_KIND(unsigned) HOSTCUDA_KIND(long)
HOSTCUDA_KIND(unsigned long) HOSTCUDA_KIND(long long) HOSTCUDA_KIND(unsigned long long)
template <> struct hostcuda_number<float> { typedef double is; };
template <> struct hostcuda_number<double> { typedef double is; };
#define HOSTCUDA_ONE(f) template <class T> __device__ inline \\
  typename hostcuda_integer<T>::is f(T x) { return ::f((double)x); }
HOSTCUDA_ONE(sqrt) HOSTCUDA_ONE(exp) HOSTCUDA_ONE(log) HOSTCUDA_ONE(log2) HOSTCUDA_ONE(log10)
HOSTCUDA_ONE(sin) HOSTCUDA_ONE(cos) HOSTCUDA_ONE(tan) HOSTCUDA_ONE(floor) HOSTCUDA_ONE(ceil)
HOSTCUDA_ONE(atan) HOSTCUDA_ONE(tanh) HOSTCUDA_ONE(fabs) HOSTCUDA_ONE(round) HOSTCUDA_ONE(cbrt)
#define HOSTCUDA_TWO(f) template <class A, class B> __device__ inline \\
  typename hostcuda_number<A>::is f(A a, B b) { \\
    return ::f((double)a, (typename hostcuda_number<B>::is)b); }
HOSTCUDA_TWO(pow) HOSTCUDA_TWO(fmod) HOSTCUDA_TWO(atan2) HOSTCUDA_TWO(hypot) HOSTCUDA_TWO(fmax)
HOSTCUDA_TWO(fmin)
#endif
"""
STD_NAMES = """abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp
exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp lgamma
log log10 log1p log2 logb lrint lround modf nan nextafter pow remainder rint round signbit sin sinh
sqrt tan tanh tgamma trunc"""
_USED = " ".join(f"using ::{name};" for name in STD_NAMES.split())
STD = f"#pragma once\nnamespace std {{ {_USED} }}\n"


class Refused(Exception):  # noqa: N818 (it says what it is)
    """NVRTC refused the source; its log is the message."""


class Limits(NamedTuple):
    """What a kernel uses, and the most threads that a block of it may have."""

    registers: int = 32  # per thread
    shared: int = 0  # bytes, static
    local: int = 0  # bytes per thread
    constant: int = 0  # bytes of the module
    threads: int = 1024


class Checked(NamedTuple):
    """What NVRTC says of a source."""

    log: str
    lowered: dict[str, str]  # of the name expressions
    limits: dict[str, Limits]  # of the kernels, by their mangled names
    ptx: str


def find_files(package: str, pattern: str) -> list[Path]:
    """Return the files that match a pattern in the folders of a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations or []) if spec else []
    return sorted(path for root in roots for path in Path(root).glob(pattern))


@functools.cache
def library() -> Any:
    """Load NVRTC from pip's packages or the system; raise FileNotFoundError."""
    found = [str(path) for path in find_files("nvidia", "*/lib/libnvrtc.so.1?")]
    for name in (
        *filter(None, [os.environ.get("HOSTCUDA_NVRTC")]),
        *found[::-1],
        "libnvrtc.so.12",
        "libnvrtc.so.13",
    ):
        try:
            loaded = ctypes.CDLL(name)
            # NVRTC opens it by name, and CUDA 13's package has no path to it.
            for part in Path(name).parent.glob("libnvrtc-builtins.so.1*") if "/" in name else ():
                ctypes.CDLL(str(part))
        except OSError:
            continue
        os.environ["HOSTCUDA_NVRTC"] = name  # for the processes of `_nvcc.py`
        return loaded
    raise FileNotFoundError(
        "hostcuda: NVRTC is not found; install nvidia-cuda-nvrtc-cu12, or nvidia-cuda-nvrtc for "
        "CUDA 13"
    )


@functools.cache
def version() -> tuple[int, int]:
    """Return NVRTC's version."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def check(
    source: str,
    options: Iterable[str],
    names: Iterable[str] = (),
    headers: Mapping[str, str | bytes] | None = None,
) -> Checked:
    """Compile for the GPU.

    Raises
    ------
    Refused
        With NVRTC's log.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    texts = [_bytes(text) for text in (headers or {}).values()]
    called = [_bytes(name) for name in headers or {}]
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program),
        source.encode(),
        FILE.encode(),
        len(texts),
        _array(texts),
        _array(called),
    )
    if status:
        raise Refused(f"nvrtcCreateProgram: error {status}")
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        given = [_bytes(option) for option in options]
        status = nvrtc.nvrtcCompileProgram(program, len(given), _array(given))
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        log = log.decode(errors="replace").strip("\0\n ")
        if status:
            raise Refused(log or f"nvrtcCompileProgram: error {status}")
        lowered = {}
        for name in names:
            found = ctypes.c_char_p()
            if not nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(found)):
                lowered[name] = (found.value or b"").decode()
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode().rstrip("\0")
        return Checked(log, lowered, dict(_limits(cubin)), ptx)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


_UNMARKED = "function without execution space annotations"


def check_for_nvcc(source: str, options: Iterable[str], macros: str) -> Checked:
    """Compile a source written for nvcc.

    Functions of the host that nothing calls are let pass.  `options` are those that both compilers
    have.  `macros` is a header with those of the host.
    """
    given = [ARCHITECTURE, "-w", "--pre-include=hostcuda.h", *options]
    headers = {name: TYPES if "int" in name else "" for name in HOST_HEADERS.split()}
    headers["cmath"] = STD
    headers["hostcuda.h"] = SHORT_TYPES + macros + OVERLOADS
    try:
        return check(source, given, headers=headers)
    except Refused as error:
        wrong = [line for line in str(error).splitlines() if " error: " in line]
        for line in wrong or [""]:
            place = re.match(r"kernel\.cu\((\d+)\)", line)
            if _UNMARKED not in line or not place:
                raise
            name = re.search(r"(\w+)\s*\(", source.splitlines()[int(place[1]) - 1])
            if name and len(re.findall(rf"\b{name[1]}\s*\(", source)) > 1:
                raise
        return check(source, [*given, "--device-as-default-execution-space"], headers=headers)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _array(items: list[bytes]) -> Any:
    return (ctypes.c_char_p * len(items))(*items)


def _text(size_of: Any, get: Any, program: Any) -> bytes:
    size = ctypes.c_size_t()
    if size_of(program, ctypes.byref(size)) or not size.value:
        return b""
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    return text.raw


_REGISTERS, _FRAME, _THREADS = 0x2F, 0x11, 0x05  # EIATTR_REGCOUNT, _FRAME_SIZE, _MAX_THREADS


def _limits(cubin: bytes) -> Iterator[tuple[str, Limits]]:
    """Yield each kernel's name and limits."""
    if cubin[:4] != b"\x7fELF":
        return
    start, count = struct.unpack_from("<Q", cubin, 40)[0], struct.unpack_from("<H", cubin, 60)[0]
    names_at = struct.unpack_from("<H", cubin, 62)[0]
    sections = [struct.unpack_from("<IIQQQQII", cubin, start + 64 * i) for i in range(count)]

    def text(at: int) -> str:
        return cubin[at : cubin.index(b"\0", at)].decode()

    named = {text(sections[names_at][4] + s[0]): s for s in sections}
    symbols, strings = named[".symtab"], named[".strtab"]
    kernels: dict[int, str] = {}
    for index in range(symbols[5] // 24):
        name, _, _, _ = struct.unpack_from("<IBBH", cubin, symbols[4] + 24 * index)
        kernels[index] = text(strings[4] + name)
    registers, local = {}, {}
    for attribute, data in _attributes(cubin, named.get(".nv.info")):
        if attribute in (_REGISTERS, _FRAME):
            symbol, value = struct.unpack("<II", data[:8])
            (registers if attribute == _REGISTERS else local)[kernels[symbol]] = value
    constant = sum(s[5] for name, s in named.items() if name.startswith(".nv.constant3"))
    for name in (n.removeprefix(".text.") for n in named if n.startswith(".text.")):
        shared = named.get(f".nv.shared.{name}")
        threads = 1024
        for attribute, data in _attributes(cubin, named.get(f".nv.info.{name}")):
            if attribute == _THREADS:
                x, y, z = struct.unpack("<III", data[:12])
                threads = x * y * z
        used = registers.get(name, 32)
        # 65536 registers per block, given to warps by 256, in groups of four warps.
        warps = 65536 // (max(-(-used // 8), 1) * 8 * 32) // 4 * 4
        # CUDA reserves 1 KiB of shared memory for itself since sm_90.
        static = max(shared[5] - 1024, 0) if shared else 0
        most = min(threads, 32 * warps, 1024)
        yield name, Limits(used, static, local.get(name, 0), constant, most)


def _attributes(cubin: bytes, section: Any) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a section: a form, a number, and a value."""
    if section is None:
        return
    at, end = section[4], section[4] + section[5]
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form == 4:
            yield attribute, cubin[at : at + size]
            at += size
