"""Headers for NVRTC, which has none of the host's: bridge's own, and the vendors' folders."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import pycuda.compiler
from cupy._core.core import assemble_cupy_compiler_options

# Empty headers: NVRTC or the prelude declares the parts that kernels use.
_DECLARED = """builtin_types.h ciso646 climits cmath cstdbool cstddef cstdio cstdlib cstring ctime
cuda_runtime.h cuda_runtime_api.h device_functions.h device_launch_parameters.h endian.h iso646.h
limits.h math.h math_functions.h memory.h stdbool.h stddef.h stdio.h stdlib.h string.h
surface_functions.h sys/types.h time.h vector_types.h"""
PRELUDE = "bridge/prelude.h"  # before every source


@functools.cache
def supplied() -> dict[str, bytes]:
    """Return the headers of ``include/`` in each folder of bridge, which replace the host's."""
    found = dict.fromkeys(_DECLARED.split(), b"")
    for folder in sorted(Path(__file__).parents[1].glob("*/include")):
        files = filter(Path.is_file, folder.rglob("*"))
        found |= {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return found


@functools.cache
def vendor_folders() -> tuple[str, ...]:
    """Return the header folders of PyCUDA, of CuPy (CCCL) and of the CUDA that CuPy finds."""
    found = [o[2:] for o in assemble_cupy_compiler_options(()) if o.startswith("-I")]
    for folder in tuple(found):
        # Each pip package for CUDA 12 has its own folder, and CuPy names only the runtime's.
        for package, header in ("curand", "curand_kernel.h"), ("cuda_nvcc", "crt/mma.h"):
            other = Path(folder).parents[1] / package / "include"
            if (other / header).exists():
                found.append(str(other))
    return pycuda.compiler._find_pycuda_include_path(), *found


def for_program(folders: Sequence[str], host_headers: Iterable[str] = ()) -> dict[str, bytes]:
    """Return all headers that NVRTC is given as text; those in the user's folders come first."""
    texts = supplied() | {name: _of_host(name) for name in host_headers}
    is_own = {name: any(Path(folder, name).is_file() for folder in folders) for name in texts}
    return {name: text for name, text in texts.items() if not is_own[name]}


def _of_host(name: str) -> bytes:
    """Return a header of the C++ library: what CCCL has of it, or else an empty one."""
    if not any(Path(folder, "cuda/std", name).is_file() for folder in vendor_folders()):
        return b""
    text = f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}"
    return f'extern "C++" {{\n{text}\n}}\n'.encode()
