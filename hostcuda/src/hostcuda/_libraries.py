"""Libraries that bring their own GPU code: say so where a program calls one.

Left alone, some of them would fail with an error about something else, and one silently.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

# CuPy's modules -> what is meant, and how a program reaches it.
LIBRARIES = {
    "cupy.cuda.cufft": "cuFFT (cupy.fft)",
    "cupy.cuda.jitify": "Jitify (jitify=True)",
    "cupy.cuda.thrust": "Thrust (cupy.sort, argsort, unique, median)",
    "cupy.random._generator_api": "cuRAND's device code (cupy.random.default_rng)",
    "cupy_backends.cuda.libs.cublas": "cuBLAS (cupy.dot, matmul, and asfortranarray of floats)",
    "cupy_backends.cuda.libs.cusolver": "cuSOLVER (cupy.linalg)",
    "cupy_backends.cuda.libs.cusparse": "cuSPARSE (cupyx.scipy.sparse)",
    "cupy_backends.cuda.libs.cutensor": "cuTENSOR",
    "cupy_backends.cuda.libs.cusparselt": "cuSPARSELt",
    "cupyx.cusolver": "cuSOLVER (cupyx.cusolver)",
    "cupyx.cutensor": "cuTENSOR (cupyx.cutensor)",
}


class Missing(NotImplementedError):  # noqa: N818 (it says what it is)
    """A library that the host cannot run was called."""


class _Function(type):
    """What stands for a function or a class of a library: calling it raises."""

    title: str

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        cls()

    def __call__(cls, *args: Any, **keywords: Any) -> NoReturn:
        raise Missing(
            f"hostcuda: {cls.title} brings its own GPU code, which the host cannot run; compute "
            "this part with NumPy in tests without a GPU, or leave the test out there"
        )


class _Library(ModuleType):
    """Stands for a module of CuPy's."""

    available = True

    def __init__(self, name: str, title: str) -> None:
        super().__init__(name)
        self._title = title

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():  # a constant, for a call that follows
            return 0
        return _Function(name, (), {"title": self._title})


class _Finder(MetaPathFinder, Loader):
    """Imports the stand-ins."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in LIBRARIES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Library(spec.name, LIBRARIES[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        pass


def replace() -> None:
    """Put the stand-ins in place, before CuPy imports the modules."""
    from . import _curand  # needs NumPy, which `_nvcc.py` does without

    sys.meta_path.insert(0, _Finder())
    sys.modules["cupy_backends.cuda.libs.curand"] = _curand
    try:
        from cuda import pathfinder
    except ImportError:  # CuPy 13 does not need it
        return
    load = pathfinder.load_nvidia_dynamic_lib

    def load_unless_replaced(name: str) -> Any:
        names = {module.rpartition(".")[2] for module in (*LIBRARIES, "curand")}
        if name.lower() in names:
            return None
        return load(name)

    pathfinder.load_nvidia_dynamic_lib = load_unless_replaced
