"""Sorts, transforms and random numbers by NumPy: the functions that ``linked.cpp`` asks for.

They get numbers and addresses, check them as the library does, and queue work.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _work

# ---- Thrust -------------------------------------------------------------------------------------

_TYPES = "bBhHiIqQefdFD?"  # by CuPy's number of the type


def _shape(pointer: int, n: int) -> tuple[int, ...]:
    return tuple(_work.view(pointer, "q", (n,)).tolist())


def sort(number: int, data: int, shape: int, dimensions: int, stream: int) -> int:
    keys = _work.view(data, _TYPES[number], _shape(shape, dimensions))
    return _work.queue("thrust::sort", lambda: keys.sort(), [keys], [keys], stream)


def _order(name: str, order: Any, keys: Any, out: int, shape: tuple[int, ...], stream: int) -> int:
    indices = _work.view(out, "q", shape)
    return _work.queue(name, lambda: np.copyto(indices, order(keys)), [keys], [indices], stream)


def argsort(number: int, out: int, data: int, shape: int, dimensions: int, stream: int) -> int:
    keys = _work.view(data, _TYPES[number], _shape(shape, dimensions))
    order = functools.partial(np.argsort, kind="stable")
    return _order("thrust::stable_sort_by_key", order, keys, out, keys.shape, stream)


def lexsort(number: int, out: int, data: int, k: int, n: int, stream: int) -> int:
    keys = _work.view(data, _TYPES[number], (k, n))
    return _order("thrust::stable_sort", np.lexsort, keys, out, (n,), stream)


# ---- cuFFT --------------------------------------------------------------------------------------

INVALID_PLAN, INVALID_VALUE, EXEC_FAILED, NOT_SUPPORTED = 1, 4, 6, 16
_FROM = {0: "f", 1: "d", 4: "F", 5: "D", 0x29: "F", 0x2A: "f", 0x2C: "F"}  # by cudaDataType, ...
_FROM |= {0x69: "D", 0x6A: "d", 0x6C: "D"}  # and by cufftType
_TO = {**_FROM, 0x2A: "F", 0x2C: "f", 0x6A: "D", 0x6C: "d"}


class _Layout(NamedTuple):
    dtype: str
    shape: tuple[int, ...]  # the batch's size comes first
    strides: tuple[int, ...]

    def at(self, pointer: int) -> np.ndarray:
        return _work.view(pointer, self.dtype, self.shape, self.strides)


class _Plan(NamedTuple):
    size: tuple[int, ...] = ()  # of the real space
    source: Any = None
    target: Any = None


_plans: dict[int, _Plan] = {}
_streams: dict[int, int] = {}
_numbers = itertools.count(1)


def create() -> int:
    number = next(_numbers)
    _plans[number] = _Plan()
    return number


def destroy(number: int) -> int:
    _streams.pop(number, None)
    return 0 if _plans.pop(number, None) else INVALID_PLAN


def set_stream(number: int, stream: int) -> int:
    _streams[number] = stream
    return 0 if number in _plans else INVALID_PLAN


def plan(number: int, rank: int, width: int, n: int, *rest: int) -> int:
    """Make a plan; the sizes at `n` have so many bytes."""
    in_embed, in_step, in_distance, out_embed, out_step, out_distance, batch, *types = rest
    if number not in _plans:
        return INVALID_PLAN
    kinds = _FROM.get(types[0], ""), _TO.get(types[1], "")
    if "" in kinds:
        return NOT_SUPPORTED  # of half precision
    size = tuple(_work.view(n, f"i{width}", (rank,)).tolist())
    if min(size) < 1 or batch < 1:
        return INVALID_VALUE
    is_real = kinds[0].islower() or kinds[1].islower()

    def layout(dtype: str, embed: int, step: int, distance: int) -> _Layout:
        shape = (*size[:-1], size[-1] // 2 + 1) if is_real and dtype.isupper() else size
        widths = _work.view(embed, f"i{width}", (rank,)).tolist() if embed else shape
        steps = [int(np.prod(widths[i:])) for i in range(1, rank + 1)]
        if not embed:
            step, distance = 1, int(np.prod(shape))
        return _Layout(dtype, (batch, *shape), (distance, *(step * s for s in steps)))

    source = layout(kinds[0], in_embed, in_step, in_distance)
    target = layout(kinds[1], out_embed, out_step, out_distance)
    _plans[number] = _Plan(size, source, target)
    return 0


def execute(number: int, source: int, target: int, sign: int) -> int:
    size, *layouts = _plans.get(number, _Plan())
    if not size:
        return INVALID_PLAN
    x, y = layouts[0].at(source), layouts[1].at(target)
    axes = range(1, x.ndim)
    if x.dtype.kind == "f":
        transform = functools.partial(np.fft.rfftn, axes=axes)
    elif y.dtype.kind == "f":
        transform = functools.partial(np.fft.irfftn, s=size, axes=axes, norm="forward")
    elif sign < 0:
        transform = functools.partial(np.fft.fftn, axes=axes)
    else:
        transform = functools.partial(np.fft.ifftn, axes=axes, norm="forward")
    work = functools.partial(_work.queue, "cuFFT", lambda: np.copyto(y, transform(x), "same_kind"))
    return EXEC_FAILED if work([x], [y], _streams.get(number, 0)) else 0


# ---- the generators of `cupy.random.default_rng` ------------------------------------------------
# The distributions are right, the numbers are not those of a GPU. The state is in device
# memory, so that streams race for it: the seed, and how many calls there were.


def seed(state: int, value: int, stream: int) -> int:
    words = _work.view(state, "q", (2,))
    return _work.queue("a seed", lambda: np.copyto(words, [value, 0]), [], [words], stream)


def _fill(
    dtype: str,
    draw: Callable[[np.random.Generator], Any],
    state: int,
    out: int,
    n: int,
    stream: int,
) -> int:
    words, target = _work.view(state, "Q", (2,)), _work.view(out, dtype, (n,))

    def run() -> None:
        random = np.random.Generator(np.random.Philox(key=words))
        words[1] += np.uint64(1)
        target[...] = draw(random)

    return _work.queue("random numbers", run, [words], [words, target], stream)


def _integers(dtype: str, state: int, out: int, n: int, stream: int, most: int = -1) -> int:
    most &= int(np.iinfo(dtype).max)
    draw = functools.partial(np.random.Generator.integers, high=most, size=n, endpoint=True)
    return _fill(dtype, lambda random: draw(random, 0, dtype=dtype), state, out, n, stream)


def _numbers_of(
    method: str, dtype: str, kinds: str, state: int, out: int, n: int, stream: int, *arrays: int
) -> int:
    """Queue out = random.method(*arrays, size=n), for arrays of these kinds."""

    def draw(random: np.random.Generator) -> Any:
        if not kinds:
            return getattr(random, method)(n, dtype)
        given = [_described(at, kind) for at, kind in zip(arrays, kinds, strict=True)]
        if method == "hypergeometric":  # NumPy draws no more than there are
            given[2] = np.minimum(given[2], given[0] + given[1])
        return getattr(random, method)(*given, n)

    return _fill(dtype, draw, state, out, n, stream)


def _described(pointer: int, dtype: str) -> np.ndarray:
    """Answer an array that CuPy describes in memory: its address, dimensions, shape and strides."""
    words = _work.view(pointer, "q", (2,))
    _work.use([words], [])
    address, dimensions = words.tolist()
    words = _work.view(pointer + 16, "q", (2, dimensions))
    _work.use([words], [])
    array = _work.view(address, dtype, words[0].tolist(), words[1] // 8)
    _work.use([array], [])
    return array.ravel()


raw = interval_32 = functools.partial(_integers, "I")
interval_64 = functools.partial(_integers, "Q")
random_uniform = functools.partial(_numbers_of, "random", "d", "")
random_uniform_float = functools.partial(_numbers_of, "random", "f", "")
exponential = functools.partial(_numbers_of, "standard_exponential", "d", "")
standard_normal = functools.partial(_numbers_of, "standard_normal", "d", "")
standard_normal_float = functools.partial(_numbers_of, "standard_normal", "f", "")
standard_gamma = functools.partial(_numbers_of, "standard_gamma", "d", "d")
poisson = functools.partial(_numbers_of, "poisson", "q", "d")
geometric = functools.partial(_numbers_of, "geometric", "q", "d")
logseries = functools.partial(_numbers_of, "logseries", "q", "d")
beta = functools.partial(_numbers_of, "beta", "d", "dd")
binomial = functools.partial(_numbers_of, "binomial", "q", "qd")
hypergeometric = functools.partial(_numbers_of, "hypergeometric", "q", "qqq")
