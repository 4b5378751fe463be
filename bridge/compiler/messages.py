"""What a user is told of a compilation: errors with hints, and remarks."""

from __future__ import annotations

import re
from pathlib import Path

import pycuda.driver as drv

from .nvrtc import Program

# In a header, C++ that may not stand inside of extern "C" can be an overload as well.
_IN_EXTERN_C = r"(?m)may not have extern \"C\" linkage|^(?!kernel\.cu\().*has \"C\" linkage"
_NO_HEADERS = "no headers of the host (<cuda/std/...> has parts of the C++ library for kernels)"
_HINTS = {
    _IN_EXTERN_C: (
        'the source is compiled inside of extern "C"; for templates and other C++ pass '
        'no_extern_c=True, put extern "C" before kernels, and list instances of kernels that are '
        'templates: name_expressions=["scale<float>"]'
    ),
    r"(?m)^kernel\.cu\(.*overloaded function .* has \"C\" linkage": (
        "CUDA, or the source, has another function of that name: rename one"
    ),
    r"identifier \"u?int\d+_t\" is undefined": "write #include <cstdint>",
    r"<<<": (
        "a kernel that launches kernels needs pycuda.compiler.DynamicSourceModule; leave out host "
        "code that launches kernels"
    ),
    r"identifier \"cuda[A-Z]\w*\" is undefined": (
        "NVRTC compiles device code only: leave host code, such as main and cudaMalloc, out of the "
        "source"
    ),
    r"the size of an array must be greater than zero": (
        "nvcc accepts arrays of no elements, NVRTC does not: leave the member out, and "
        "write `(float *)(s + 1)` for the elements behind a struct"
    ),
    r"not open source file \"crt/": (
        "<mma.h> needs headers of the pip package nvidia-cuda-nvcc-cu12 (for CUDA 13: "
        "nvidia-cuda-crt), or of a toolkit (CUDA_PATH)"
    ),
    r"not open source file \"(cu|nv)[^\"]*\.": (
        "CUDA's headers come with a toolkit (CUDA_PATH) or from pip (curand_kernel.h: "
        "nvidia-curand-cu12 or nvidia-curand); name the folder of your own in include_dirs"
    ),
    r"not open source file \"(?!cu|nv|crt/)[^\"]*\.": (
        "the header is not found: name its folder, include_dirs=['...']"
    ),
    r"not open source file \"[^\".]*\"": f"NVRTC has {_NO_HEADERS}",
}


def remarks(program: Program, log: str) -> str:
    """Return what a user should know of a program that compiled."""
    return "\n".join(filter(None, (_left_out(program), log)))


def _left_out(program: Program) -> str:
    errors = "\n".join(program.left_out)
    return errors and f"Host code is left out, where NVRTC found errors:\n{errors}"


def compile_error(program: Program, log: str) -> drv.CompileError | ValueError:
    """Return the error for a program that NVRTC cannot compile."""
    options = program.given_options()
    text = log.removeprefix("nvrtc: error: ")
    if text != log:
        advice = "leave out options that it does not support, or compile with backend='nvcc'"
        if "--gpu-architecture" in text:
            advice = "leave out arch for the current device's, or give one such as 'sm_90'"
        if any(" -" in option for option in options):
            advice = "give each option as a str of its own"
        return ValueError(
            f"SourceModule: NVRTC refuses the options ({options[0]} ...): {text}; {advice}"
        )
    hints = [
        hint
        for pattern, hint in _HINTS.items()
        if re.search(pattern, log) and (program.in_extern_c or pattern != _IN_EXTERN_C)
    ]
    missing = [folder for folder in program.folders if not Path(folder).is_dir()]
    if missing and "not open source file" in log:
        hints.append(f"of the folders, these do not exist: {', '.join(missing)}")
    if not program.in_extern_c and re.search(r"may not have extern \"C\" linkage", log):
        hints.append('move templates and other C++ out of the source\'s own extern "C" { }')
    if program.host_headers:
        names = ", ".join(f"<{name}>" for name in program.host_headers)
        hints.append(f"NVRTC has {_NO_HEADERS}: what it lacks of {names} is left out")
        if "<thrust/" in names:
            hints.append("in kernels, <curand_kernel.h> and <cub/cub.cuh> do what Thrust does")
    message = "; ".join(["NVRTC could not compile the source", *hints])
    log = "\n\n".join(filter(None, (log, _left_out(program))))
    return drv.CompileError(message, ["nvrtc", *options], stderr=log)
