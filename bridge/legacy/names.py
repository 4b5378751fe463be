"""Names that old programs use: PyCUDA's of before CUDA 4, and scikit-cuda's.

Importing this module imports neither library, and installs nothing.
"""

from __future__ import annotations

import re

AUTOINIT = ("pycuda.autoinit", "pycuda.autoprimaryctx")  # modules that make a context

# Methods of PyCUDA's functions of before CUDA 4, and what to write.
BEFORE_CUDA_4 = {
    "launch": "call f(*args, block=...)",
    "launch_grid": "call f(*args, grid=..., block=...)",
    "launch_grid_async": "call f(*args, grid=..., block=..., stream=...)",
    **dict.fromkeys(
        ("param_set", "param_set_size", "param_seti", "param_setf", "param_setv"),
        "call f(*args, grid=..., block=...)",
    ),
    "set_block_shape": "call f(*args, block=...)",
    "set_shared_size": "call f(*args, block=..., shared=...)",
}
AMBIGUOUS = {"launch"}  # other objects have a method of this name, too: bridge.launch

# scikit-cuda's modules that `bridge.legacy.skcuda` has, and what to use instead of others.
SERVED = ("cublas", "cufft", "cusolver", "fft", "linalg", "misc")
_INSTEAD = {
    "cusparse": "cupyx.scipy.sparse",
    "integrate": "cupy.trapezoid",
    "rlinalg": "cupyx.scipy.sparse.linalg.svds",
    "special": "cupyx.scipy.special",
}

# cuBLAS's functions in `skcuda.cublas`, and their parameters after the handle.
_FAMILIES = {
    "amax amin asum nrm2": "n x incx result",
    "axpy": "n alpha x incx y incy",
    "copy swap": "n x incx y incy",
    "dot dotu dotc": "n x incx y incy result",
    "scal": "n alpha x incx",
    "gemv": "trans m n alpha A lda x incx beta y incy",
    "ger geru gerc": "m n alpha x incx y incy A lda",
    "gemm": "trans trans m n k alpha A lda B ldb beta C ldc",
    "gemmBatched": "trans trans m n k alpha A lda B ldb beta C ldc batch",
    "gemmStridedBatched": "trans trans m n k alpha A lda s B ldb s beta C ldc s batch",
    "trsm": "side uplo trans diag m n alpha A lda B ldb",
    "trsmBatched": "side uplo trans diag m n alpha A lda B ldb batch",
    "syrk": "uplo trans n k alpha A lda beta C ldc",
    "geam": "trans trans m n alpha A lda beta B ldb C ldc",
    "dgmm": "side m n A lda x incx C ldc",
    "getrfBatched": "n A lda P info batch",
    "getrsBatched": "trans n nrhs A lda P B ldb info batch",
    "getriBatched": "n A lda P C ldc info batch",
}
CUBLAS = {name: parameters for names, parameters in _FAMILIES.items() for name in names.split()}
PATTERNS = {
    "cublas": rf"cublas(I(?=[sdcz])|(?=[SDCZ]))([a-zSDCZ])([cdsz]?)({'|'.join(CUBLAS)})",
    "cusolver": r"cusolverDn([SDCZ]|Xsyevj)\w+",
}


def within_skcuda(name: str) -> list[str]:
    """Return the parts of a name in scikit-cuda, as ["linalg", "dot"]; [] for other names."""
    root, *parts = name.replace("scikits.cuda", "skcuda", 1).split(".")
    return parts if root == "skcuda" else []


def not_served(part: str) -> str:
    """Return what to say of a module of scikit-cuda that `bridge.legacy.skcuda` does not have."""
    instead = f"; use {_INSTEAD[part]}" if part in _INSTEAD else ""
    return f"bridge.legacy.skcuda serves {', '.join(SERVED)}, not {part}{instead}"


def cupy_name(library: str, name: str) -> str:
    """Return CuPy's name for a function of cuBLAS or cuSOLVER that may be served, or ""."""
    if not re.fullmatch(PATTERNS.get(library, ""), name):
        return ""
    name = name.removeprefix("cublas").removeprefix("cusolverDn")
    return f"{name[0].lower()}{name[1:]}"
