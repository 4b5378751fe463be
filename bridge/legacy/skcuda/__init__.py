"""scikit-cuda's commonest functions for GPUArrays, with CuPy's FFT, BLAS and solvers inside.

``import bridge.legacy.skcuda`` makes ``import skcuda`` and ``import scikits.cuda`` find these
modules; ``bridge run`` does so, too.  scikit-cuda 0.5.3 itself does not import beside current
packages.  Parameters, and the dtypes and orders of results, are those of its documentation.

*Ordering:* work queued on PyCUDA's streams runs before a function's work, which runs on CuPy's
current stream, and later work on PyCUDA's streams runs after it (rule: `bridge.interop.ordering`).
*Ownership:* results are in CuPy's pool.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.5.3"  # whose functions these are
SERVED = ("cublas", "cusolver", "fft", "linalg", "misc")
_INSTEAD = {
    "cusparse": "cupyx.scipy.sparse",
    "integrate": "cupy.trapezoid",
    "rlinalg": "cupyx.scipy.sparse.linalg.svds",
    "special": "cupyx.scipy.special",
}


class _Finder(MetaPathFinder, Loader):
    """Finds the modules here under scikit-cuda's names."""

    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}  # an import replaces a module's own

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        is_package = name in ("scikits", "scikits.cuda", "skcuda")
        if is_package or name.startswith(("scikits.cuda.", "skcuda.")):
            return ModuleSpec(name, self, is_package=is_package)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        part = spec.name.removeprefix("scikits.cuda").removeprefix("skcuda").removeprefix(".")
        if part in ("scikits", "autoinit"):  # CuPy makes its handles when they are needed
            return ModuleType(spec.name)
        if part and part not in SERVED:
            raise _not_served(part)
        module = import_module(f"{__name__}.{part}" if part else __name__)
        self.specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing: the module has been."""
        module.__spec__ = self.specs.pop(module.__name__, module.__spec__)


def _not_served(part: str) -> ImportError:
    instead = f"; use {_INSTEAD[part]}" if part in _INSTEAD else ""
    return ImportError(f"bridge.legacy.skcuda serves {', '.join(SERVED)}, not {part}{instead}")


def __getattr__(name: str) -> Any:
    if name in SERVED or name.startswith("_"):  # it is a module that is not yet imported
        raise AttributeError(name)
    raise _not_served(name)


sys.meta_path.insert(0, _Finder())


def missing(module: str, name: str) -> AttributeError:
    """Return the error for a name of scikit-cuda that is not here."""
    return AttributeError(
        f"{module} has no {name!r}: it has scikit-cuda's commonest functions; convert with "
        "bridge.as_cupy(a), and use cupy, cupy.linalg or cupyx.scipy"
    )


@contextmanager
def ordered() -> Iterator[None]:
    """Run work on CuPy's current stream between earlier and later work on PyCUDA's streams."""
    import cupy  # importing this package touches neither library

    from ...interop.ordering import order
    from ...interop.streams import ALL_PYCUDA_STREAMS

    here = cupy.cuda.get_current_stream().ptr
    order(here, ALL_PYCUDA_STREAMS)  # what is given
    try:
        yield
    finally:
        order(ALL_PYCUDA_STREAMS, here)  # what is returned


def on_cupy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of CuPy arrays one of GPUArrays; an argument that it returns stays itself."""

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        import cupy
        from pycuda.gpuarray import GPUArray

        from ...interop.conversions import as_cupy, as_pycuda
        from ...interop.pool import Allocation

        given: list[tuple[Any, Any]] = []

        def there(value: Any) -> Any:
            if not isinstance(value, GPUArray):
                return value
            given.append((as_cupy(value, stream=-1), value))
            return given[-1][0]

        def back(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(back, value))
            if not isinstance(value, cupy.ndarray):
                return value
            for view, array in given:
                if view is value:
                    return array
            found = as_pycuda(value)
            if found.gpudata is not None:  # programs call its free()
                memory = Allocation(found.gpudata)
                memory.memory, found.base, found.gpudata = found.base, None, memory
            return found

        with ordered():
            args = tuple(map(there, args))
            return back(function(*args, **{name: there(v) for name, v in keywords.items()}))

    return wrapper
