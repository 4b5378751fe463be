"""Programs of the years since 2010, with NumPy's numbers beside them.

Every module of the folder `sources` is a program: ``run(SourceModule)`` computes some arrays with
the `SourceModule` that it is given, and ``expected()`` computes them with NumPy. It may also have

``TOLERANCE``
    how far they may differ, relative to an array's largest number; none: not at all;
``GONE``
    what PyCUDA's own compiler says of the program today;
``NEEDS``
    a header that may be missing: then the program is skipped.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import numpy as np
import pycuda.compiler
import pycuda.driver as drv
import pytest

import bridge
from bridge.compiler.headers import vendor_folders

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("sources/*.py"))


@pytest.fixture(params=NAMES)
def program(request):
    module = importlib.import_module(f"sources.{request.param}")
    needed = getattr(module, "NEEDS", "")
    if needed and not any(Path(folder, needed).exists() for folder in vendor_folders()):
        pytest.skip(f"not installed: {needed}")
    return module


def check(program, source_module):
    got, expected = program.run(source_module), program.expected()
    tolerance = getattr(program, "TOLERANCE", 0)
    assert list(got) == list(expected)
    for name, wanted in expected.items():
        assert (got[name].dtype, got[name].shape) == (wanted.dtype, wanted.shape), name
        room = tolerance * np.abs(wanted).max()
        np.testing.assert_allclose(got[name], wanted, rtol=0, atol=room, err_msg=name)


def test_a_program_with_pycuda_gives_numpys_numbers(nvcc, program):
    if hasattr(program, "GONE"):
        with pytest.raises(drv.CompileError, match=program.GONE):
            program.run(pycuda.compiler.SourceModule)
    else:
        check(program, pycuda.compiler.SourceModule)


def test_a_program_with_the_bridge_gives_numpys_numbers(program):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s)NVRTC compiled the source, but says.*since CUDA 9")
        check(program, bridge.SourceModule)
