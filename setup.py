"""Build the compiled modules, or say what that needs; the rest of the package is in setup.cfg."""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize  # where it is missing, setuptools takes a .pyx for a .c
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError


class BuildModules(build_ext):
    """Compile once, on all cores; say what is missing where a module cannot be compiled."""

    def finalize_options(self) -> None:
        """Let `pip install -e` work where `build_ext --inplace` does: its folder is removed."""
        super().finalize_options()
        if self.editable_mode:
            usual = self.distribution.get_command_class("build")(self.distribution)
            usual.ensure_finalized()
            self.build_lib, self.build_temp = usual.build_lib, usual.build_temp

    def build_extensions(self) -> None:
        """Translate all modules to C, one by one since Cython has no threads; then compile them."""
        translated = cythonize(self.extensions, force=self.force, quiet=True)
        for extension, in_c in zip(self.extensions, translated, strict=True):
            extension.sources = in_c.sources
        self.parallel = os.cpu_count()
        super().build_extensions()

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
