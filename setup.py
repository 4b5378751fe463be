"""Build the compiled modules, or say what that needs; the rest of the package is in setup.cfg."""

from __future__ import annotations

from pathlib import Path

import Cython.Build  # noqa: F401  # where it is missing, setuptools takes a .pyx for a .c
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError


class BuildModules(build_ext):
    """Compile once; say what is missing where a module cannot be compiled."""

    def finalize_options(self) -> None:
        """Let `pip install -e` compile where `build_ext --inplace` does, not in a temporary folder."""
        super().finalize_options()
        if self.editable_mode:
            usual = self.distribution.get_command_class("build")(self.distribution)
            usual.ensure_finalized()
            self.build_lib, self.build_temp = usual.build_lib, usual.build_temp

    def build_extension(self, extension: Extension) -> None:
        """Compile one module."""
        try:
            super().build_extension(extension)
        except (CCompilerError, ExecError, PlatformError) as error:
            raise CCompilerError(
                f"{extension.name} cannot be compiled ({error}). It needs a C compiler and "
                "Python's headers, but no CUDA toolkit: on Debian or Ubuntu, "
                "`apt install gcc python3-dev`; with conda, `conda install -c conda-forge gcc`"
            ) from error


modules = [
    Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        depends=[str(header) for header in Path("bridge").rglob("*.pxd")],
        libraries=["dl"],  # dlopen, where the C library is older than 2.34
        extra_compile_args=["-O2", "-g0"],
    )
    for path in sorted(Path("bridge").rglob("*.pyx"))
]
setup(ext_modules=modules, cmdclass={"build_ext": BuildModules})
