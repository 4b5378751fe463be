"""What functions use of graph nodes."""

from bridge.interop.driver cimport Handle
from bridge.kernels.launching cimport LaunchConfig
from bridge.kernels.loaded cimport Kernel
from bridge.kernels.packing cimport Parameters


cdef class GraphNode:
    cdef Kernel kernel  # keeps the code loaded
    cdef Parameters parameters
    cdef Handle node
    cdef LaunchConfig config
    cdef list kept  # what was exported for the last update


cdef GraphNode last_node(Kernel kernel, Parameters parameters, LaunchConfig *config)
