"""What functions use of graph nodes."""

from bridge.interop.contexts cimport Handle
from bridge.kernels.launching cimport How
from bridge.kernels.packing cimport Table


cdef class GraphNode:
    cdef object function  # keeps the kernel's code loaded
    cdef Table table
    cdef Handle kernel, node
    cdef How how
    cdef int device_id
    cdef list kept  # what was exported for the last update


cdef GraphNode last_node(function, Table table, Handle kernel, How *how, int device_id)
