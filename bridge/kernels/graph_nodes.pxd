"""What functions use of graph nodes."""

from bridge.kernels.launching cimport LaunchConfig
from bridge.kernels.loaded cimport Kernel
from bridge.kernels.packing cimport Parameters

cdef last_node(Kernel kernel, Parameters parameters, LaunchConfig *config)
