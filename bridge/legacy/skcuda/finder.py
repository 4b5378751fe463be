"""The finder behind ``import skcuda`` and ``import scikits.cuda``."""

from __future__ import annotations

import os.path
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ...errors import warn
from ..names import SERVED, not_served, within_skcuda

_PACKAGES = ("skcuda", "scikits.cuda")
_NOT_INSTALLED = (*_PACKAGES, "scikits")  # a ModuleNotFoundError for one of them


class Finder(MetaPathFinder, Loader):
    """Finds bridge's modules under scikit-cuda's names, unless an installed scikit-cuda imports."""

    def __init__(self) -> None:
        # None: not known yet.  False also while the installed package is tried.
        self.is_needed: bool | None = None
        self.scikits: list[str] = []  # where other packages of the namespace may be
        self.specs: dict[str, Any] = {}  # an import replaces a module's own

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Find a module of scikit-cuda; find ``scikits`` only if no other finder does."""
        if name == "scikits":
            return self._find_namespace()
        if path is self.scikits:
            path[:] = [os.path.join(folder, "scikits") for folder in sys.path]  # may have grown
        package = next((one for one in _PACKAGES if f"{name}.".startswith(f"{one}.")), None)
        if package is None:
            return None
        if self.is_needed is None and (error := self._try_installed()):
            warn(
                f"the installed scikit-cuda cannot be imported ({type(error).__name__}: {error}); "
                "bridge.legacy.skcuda takes its place"
            )
        if self.is_needed:
            if name != package:
                import_module(package)  # again, if it was the installed one
            return ModuleSpec(name, self, is_package=name == package)
        if target is not None or name not in sys.modules:
            return None
        module = sys.modules[name]  # imported to try it: not executed again
        self.specs[name], module.__spec__ = module.__spec__, ModuleSpec(name, self)
        return module.__spec__

    def _find_namespace(self) -> ModuleSpec | None:
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        if self.is_needed is False or any(one.find_spec("scikits", None) for one in others):
            return None
        spec = ModuleSpec("scikits", self)
        spec.submodule_search_locations = self.scikits
        return spec

    def _try_installed(self) -> Exception | None:
        """Import the installed scikit-cuda, if there is one; return the error if that fails."""
        self.is_needed = False
        found = None
        for package in _PACKAGES:
            try:
                import_module(f"{package}.misc")  # which imports most others
                return None
            except Exception as error:
                for name in [one for one in sys.modules if f"{one}.".startswith(f"{package}.")]:
                    del sys.modules[name]
                if getattr(error, "name", "") not in _NOT_INSTALLED:
                    found = error
                    break
        self.is_needed = True
        return found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import bridge's module, or return the installed one."""
        if spec.name in self.specs:
            return sys.modules[spec.name]
        part = ".".join(within_skcuda(spec.name))
        if part == "autoinit" or spec.name == "scikits":  # CuPy makes its handles when needed
            return ModuleType(spec.name)
        if part and part not in SERVED:
            raise ImportError(not_served(part))
        module = import_module(f"{__package__}.{part}" if part else str(__package__))
        self.specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing: the module has been."""
        module.__spec__ = self.specs.pop(module.__name__, module.__spec__)
