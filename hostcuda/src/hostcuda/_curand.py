"""cuRAND's host functions for CuPy, on NumPy: as random, but other numbers than on a GPU.

It takes the place of ``cupy_backends.cuda.libs.curand``.  Numbers are made at the call, and copied
to the device in the order of the generator's stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cupy_backends.cuda.api import runtime

from . import _work

# cuRAND's values of curandRngType.
CURAND_RNG_PSEUDO_DEFAULT = 100
CURAND_RNG_PSEUDO_XORWOW = 101
CURAND_RNG_PSEUDO_MRG32K3A = 121
CURAND_RNG_PSEUDO_MTGP32 = 141
CURAND_RNG_PSEUDO_MT19937 = 142
CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161


class CURANDError(RuntimeError):
    """An error of cuRAND."""


_generators: dict[int, np.random.Generator] = {}


def createGenerator(rng_type: int) -> int:  # noqa: N802 (the names are cuRAND's)
    number = max(_generators, default=0) + 1
    _generators[number] = np.random.default_rng(0)
    return number


def destroyGenerator(generator: int) -> None:  # noqa: N802
    _generators.pop(generator, None)


def getVersion() -> int:  # noqa: N802
    return 10000


def setStream(generator: int, stream: int) -> None:  # noqa: N802
    """Do nothing: CuPy sets its current stream before each call."""


def setPseudoRandomGeneratorSeed(generator: int, seed: int) -> None:  # noqa: N802
    _generators[generator] = np.random.default_rng(seed)


def setGeneratorOffset(generator: int, offset: int) -> None:  # noqa: N802
    _generators[generator].bit_generator.advance(offset)


def _filling(method: str, dtype: Any) -> Any:
    """Return a function of cuRAND's that fills memory with numbers of a NumPy generator."""

    def fill(generator: int, pointer: int, n: int, *parameters: float) -> None:
        if method != "poisson" and n % 2:  # as CuPy says it
            raise ValueError(f"cuRAND makes an even number of normal numbers; {n} were asked for")
        _put(pointer, getattr(_generators[generator], method)(*parameters, n), dtype)

    return fill


def _put(pointer: int, values: Any, dtype: Any) -> None:
    stream = _work.current_stream()
    if runtime.streamIsCapturing(stream):  # as CuPy does
        raise NotImplementedError("cuRAND's functions cannot be captured into a graph")
    values = np.ascontiguousarray(values, dtype)
    runtime.memcpyAsync(pointer, values.ctypes.data, values.nbytes, 1, stream)


def generate(generator: int, pointer: int, n: int) -> None:
    _put(pointer, _generators[generator].integers(0, 1 << 32, n, np.uint32), np.uint32)


def generateUniform(generator: int, pointer: int, n: int) -> None:  # noqa: N802
    _put(pointer, 1 - _generators[generator].random(n, np.float32), np.float32)  # not 0, but 1


def generateUniformDouble(generator: int, pointer: int, n: int) -> None:  # noqa: N802
    _put(pointer, 1 - _generators[generator].random(n), np.float64)


generateNormal = _filling("normal", np.float32)  # noqa: N816
generateNormalDouble = _filling("normal", np.float64)  # noqa: N816
generateLogNormal = _filling("lognormal", np.float32)  # noqa: N816
generateLogNormalDouble = _filling("lognormal", np.float64)  # noqa: N816
generatePoisson = _filling("poisson", np.uint32)  # noqa: N816
