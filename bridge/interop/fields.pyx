"""The getters of attributes of CuPy's objects: to look one up by name takes twice as long."""

from cpython.ref cimport PyObject

from types import GetSetDescriptorType

import cupy
from cupy.cuda import MemoryPointer

cdef extern from "Python.h":
    ctypedef struct PyGetSetDescrObject:
        PyGetSetDef *d_getset


cdef PyGetSetDef *getter(kind, name) except NULL:
    """Return the getter of an attribute of a compiled class."""
    found = getattr(kind, name)
    if type(found) is not GetSetDescriptorType:
        raise ImportError(f"bridge: CuPy {cupy.__version__} has another {kind.__name__}.{name}")
    return (<PyGetSetDescrObject *> <PyObject *> found).d_getset


array_data, array_dtype = getter(cupy.ndarray, "data"), getter(cupy.ndarray, "dtype")
array_shape, array_strides = getter(cupy.ndarray, "shape"), getter(cupy.ndarray, "strides")
is_c_contiguous = getter(cupy.ndarray, "_c_contiguous")
is_f_contiguous = getter(cupy.ndarray, "_f_contiguous")
data_device = getter(MemoryPointer, "device_id")
data_memory = getter(MemoryPointer, "mem")
data_pointer = getter(MemoryPointer, "ptr")
