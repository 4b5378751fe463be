"""Any layout, made by either library and converted back and forth, against NumPy.

``BRIDGE_EXAMPLES=100000`` in the environment runs that many cases in all.
"""

import os
from math import prod

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import pointer_of
from hypothesis import HealthCheck, given, seed, settings, strategies as st
from pycuda import gpuarray

import bridge
from bridge.interop.dtypes import PLAIN_DTYPES

EXAMPLES = int(os.environ.get("BRIDGE_EXAMPLES", "600"))
MOST_AXES = 6
MOST_CONVERSIONS = 5


class Case:
    """An array on the device, and the view of NumPy's that it should be."""

    def __init__(self, data):
        self.draw = data.draw
        shape = self.draw(st.lists(st.integers(0, 4), max_size=MOST_AXES).map(tuple))
        dtype = self.draw(st.sampled_from(sorted(PLAIN_DTYPES, key=str)))
        self.host = np.empty(shape, dtype, order=self.draw(st.sampled_from("CF")))
        self.host[...] = self.values(1, shape)
        self.model = self.host
        if self.draw(st.booleans()):
            self.base = cupy.array(self.host, order="K")
        else:
            self.base = gpuarray.to_gpu(self.host)
        self.array = self.base

    def values(self, seed, shape):
        """Return numbers that any of the dtypes holds."""
        return (np.arange(prod(shape)) * (2 * seed + 1) % 113 + seed).reshape(shape) % 127

    @property
    def on_cupy(self):
        return isinstance(self.array, cupy.ndarray)

    # ---- operations; each does to the model what it does to the array ----------------------------

    def slice(self):
        empty = self.on_cupy and self.draw(st.integers(0, 9)) == 0
        if not (self.on_cupy or self.model.size):
            return  # PyCUDA cannot
        index = []
        for n in self.model.shape:
            kind = self.draw(st.integers(0, 5))
            if kind == 0 and n:
                index.append(self.draw(st.integers(-n, n - 1)))
            elif kind == 1 or not n:
                index.append(slice(None))
            else:
                low = self.draw(st.integers(0, n - 1))
                high = low if empty else self.draw(st.integers(low + 1, n))
                step = self.draw(st.integers(1, 3))
                if self.draw(st.booleans()):
                    index.append(slice(low, high, step))
                else:
                    index.append(slice(high - 1, low - 1 if low else None, -step))
        if len(index) < MOST_AXES and self.draw(st.booleans()):
            index.insert(self.draw(st.integers(0, len(index))), np.newaxis)
        self.apply(lambda a: a[(*index, ...)])  # NumPy: an array, also of no axes

    def transpose(self):
        axes = self.draw(st.permutations(range(self.model.ndim)))
        if axes and (self.on_cupy or self.model.size):
            self.apply(lambda a: a.transpose(axes))

    def reshape(self):
        shape = list(self.model.shape)
        if not self.model.size or not (self.on_cupy or self.array.flags.c_contiguous):
            return
        if len(shape) > 1 and self.draw(st.booleans()):
            axis = self.draw(st.integers(0, len(shape) - 2))
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
        elif len(shape) < MOST_AXES and shape and shape[-1] % 2 == 0:
            shape[-1:] = [shape[-1] // 2, 2]
        else:
            shape = [self.model.size]
        viewed = self.model.reshape(shape)
        if np.shares_memory(viewed, self.model):  # else both would copy
            self.apply(lambda a: a.reshape(tuple(shape)))

    def squeeze(self):
        if self.model.size:
            self.apply(lambda a: a.squeeze())

    def apply(self, function):
        self.array = function(self.array)
        self.model = function(self.model)

    def convert(self):
        before = self.array
        self.array = (bridge.as_pycuda if self.on_cupy else bridge.as_cupy)(before)
        assert self.on_cupy != isinstance(before, cupy.ndarray)
        if before.size:
            assert pointer_of(self.array) == pointer_of(before)

    # ---- what is seen ----------------------------------------------------------------------------

    def check(self):
        """Compare the layout and, through either library, the elements."""
        model = self.model
        for array in (self.array, *self.views()):
            assert (array.shape, array.dtype, array.size) == (model.shape, model.dtype, model.size)
            assert array.strides == model.strides or steps(array) == steps(model)
            np.testing.assert_array_equal(self.read(array), model)
        if self.on_cupy and model.size:  # PyCUDA goes by the strides alone
            flags = bridge.as_pycuda(self.array).flags
            assert flags.c_contiguous == model.flags.c_contiguous
            assert flags.f_contiguous == model.flags.f_contiguous

    def views(self):
        """Yield the array as one of the other library, and that as one of its own again."""
        there, back = bridge.as_cupy, bridge.as_pycuda
        if self.on_cupy:
            there, back = back, there
        yield there(self.array)
        yield back(there(self.array))

    def in_a_copy(self, array):
        """Return a copy of the memory, as bytes, and what an array of PyCUDA's is in it."""
        start = pointer_of(self.base)
        copy = drv.from_device(start, self.base.nbytes, np.uint8)
        offset = int(array.gpudata) - start
        try:
            return copy, np.ndarray(array.shape, array.dtype, copy, offset, array.strides)
        except (TypeError, ValueError) as error:
            raise AssertionError("it is not in the memory") from error

    def read(self, array):
        if isinstance(array, cupy.ndarray) or not array.size:
            return array.get()
        return self.in_a_copy(array)[1]

    def write(self, array, values):
        if isinstance(array, cupy.ndarray):
            array[...] = cupy.asarray(values)
        elif array.size:
            copy, there = self.in_a_copy(array)
            there[...] = values
            drv.memcpy_htod(pointer_of(self.base), copy)

    def check_writes(self):
        """Write on one side, and read the whole memory on the side where it began."""
        if self.on_cupy != self.draw(st.booleans()):
            self.convert()
        values = self.values(2, self.model.shape).astype(self.model.dtype)
        self.write(self.array, values)
        self.model[...] = values
        np.testing.assert_array_equal(self.base.get(), self.host)


def steps(array):
    """Return the strides that tell elements apart: of axes longer than 1, where there are any."""
    if not array.size:
        return ()
    return tuple(step for n, step in zip(array.shape, array.strides, strict=True) if n > 1)


OPERATIONS = ["convert", "convert", "slice", "slice", "transpose", "reshape", "squeeze"]


def check(data):
    case = Case(data)
    conversions = 0
    for _ in range(data.draw(st.integers(0, 8))):
        name = data.draw(st.sampled_from(OPERATIONS))
        conversions += name == "convert"
        if conversions <= MOST_CONVERSIONS:
            getattr(case, name)()
    case.check()
    case.check_writes()


def run(count, seed_of_all=0):
    """Run `check` that often: always on the same cases."""
    checks = {"suppress_health_check": list(HealthCheck), "report_multiple_bugs": False}
    settled = settings(max_examples=count, deadline=None, database=None, **checks)
    seed(seed_of_all)(settled(given(data=st.data())(check)))()


PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_any_layout_is_what_numpy_says(part):
    run(EXAMPLES // PARTS, part)


def the_first_axis_from_back_to_front(a):
    """All elements are in the memory, so that nothing is read outside of it."""
    if not (a.size and a.shape):
        return a
    last = int(a.gpudata) + (a.shape[0] - 1) * a.strides[0]
    strides = -a.strides[0], *a.strides[1:]
    return gpuarray.GPUArray(a.shape, a.dtype, base=a, gpudata=last, strides=strides)


def a_copy(a):
    """What is in other memory is what no case has."""
    if not a.size:
        return a
    other = gpuarray.GPUArray(a.shape, a.dtype)
    drv.memset_d8(other.gpudata, 0xA5, other.nbytes)
    return other


@pytest.mark.parametrize("fault", [the_first_axis_from_back_to_front, a_copy])
def test_a_fault_is_found(fault, monkeypatch):
    """The control: a few hundred cases show what is wrong."""
    real = bridge.as_pycuda
    monkeypatch.setattr(bridge, "as_pycuda", lambda array: fault(real(array)))
    with pytest.raises(AssertionError):
        run(300)
