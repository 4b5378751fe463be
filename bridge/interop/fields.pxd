"""What other compiled modules use to read CuPy's objects."""

cdef extern from "Python.h":
    ctypedef struct PyGetSetDef:
        object (*get)(object, void *)
        void *closure

# Of an ndarray, and of its `data`, a MemoryPointer.
cdef PyGetSetDef *array_data
cdef PyGetSetDef *array_dtype
cdef PyGetSetDef *array_shape
cdef PyGetSetDef *array_strides
cdef PyGetSetDef *is_c_contiguous
cdef PyGetSetDef *is_f_contiguous
cdef PyGetSetDef *data_device
cdef PyGetSetDef *data_memory
cdef PyGetSetDef *data_pointer

cdef inline read(PyGetSetDef *field, value):
    return field.get(value, field.closure)
