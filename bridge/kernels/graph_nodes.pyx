# cython: auto_pickle=False
"""Nodes of CUDA graphs that launch a kernel, and get other arguments."""

cimport cython
from libc.stdint cimport intptr_t, uint64_t

from bridge.interop.contexts cimport Handle, cuStreamGetCaptureInfo, cuda_device, find
from bridge.kernels.launching cimport BUFFER_POINTER, BUFFER_SIZE, How, PySequence_Fast_ITEMS
from bridge.kernels.packing cimport Call, Table

import cupy
from cupy.cuda import driver

from ..errors import ContextError, named

cdef int (*cuGraphExecKernelNodeSetParams)(Handle, Handle, NodeParams *) noexcept nogil
find("cuGraphExecKernelNodeSetParams_v2", &cuGraphExecKernelNodeSetParams)


cdef struct NodeParams:  # CUDA_KERNEL_NODE_PARAMS_v2
    Handle function
    unsigned extents[6]
    unsigned shared
    void **params
    void **extra
    void *kernel
    void *context



@cython.final
cdef class GraphNode:
    """A launch in a graph, made by `BoundFunction.capture`."""

    def __repr__(self):
        return f"<bridge.kernels.graph_nodes.GraphNode {self.table}>"

    def update(self, graph, /, *args):
        """Give the launch other arguments, from the graph's next launch on.

        Parameters
        ----------
        graph : cupy.cuda.Graph
            The graph that the launch was captured into.
        *args
            The kernel's arguments, as in a call.  They are checked as there.

        Raises
        ------
        TypeError, ValueError, ContextError
            As in calls.  ValueError also if CUDA does not know the node in this graph.

        Notes
        -----
        *Ownership:* a graph does not keep arrays: keep them as long as it is launched.
        *Ordering:* none; order the stream that the graph is launched on.
        *Cost:* less than that of a launch.
        """
        cdef Call call
        cdef NodeParams params
        cdef void *extra[5]
        cdef int status
        name = self.table.name
        if not isinstance(graph, cupy.cuda.Graph):
            raise TypeError(
                f"{name}: update: graph is {named(graph)}; the cupy.cuda.Graph of the "
                "capture is accepted"
            )
        call.device_id, call.strided, call.lenient = cuda_device(), self.how.strided, False
        if call.device_id != self.device_id:
            raise ContextError(
                f"{name}: update: the graph is of device {self.device_id}, but device "
                f"{call.device_id} is current; work under `with bridge.primary_context("
                f"{self.device_id}):`"
            )
        kept = self.table.pack(PySequence_Fast_ITEMS(args), len(args), &call)
        if call.handlers:
            raise TypeError(
                f"{name}: update: pycuda.driver.In, Out and InOut copy when a call "
                "begins and ends, which a graph cannot; pass device arrays"
            )
        extra[:] = [
            <void *> BUFFER_POINTER, &call.packed[0], <void *> BUFFER_SIZE, &call.size, NULL
        ]
        params.function, params.extents = self.kernel, self.how.extents
        params.shared, params.params, params.extra = self.how.shared, NULL, extra
        params.kernel = params.context = NULL
        status = cuGraphExecKernelNodeSetParams(
            <Handle> <intptr_t> graph.graphExec, self.node, &params
        )
        if status:
            raise ValueError(
                f"{name}: update: CUDA refuses it ({driver.CUDADriverError(status)}); "
                "the graph that this launch was captured into is accepted"
            )
        self.kept = kept


cdef GraphNode last_node(function, Table table, Handle kernel, How *how, int device_id):
    """Return the node of the launch that was captured last on its stream."""
    cdef int state = 0
    cdef uint64_t number = 0
    cdef size_t count = 0
    cdef Handle *nodes = NULL
    driver.check_status(
        cuStreamGetCaptureInfo(how.stream, &state, &number, NULL, &nodes, &count)
    )
    cdef GraphNode made = GraphNode.__new__(GraphNode)
    made.function, made.table, made.kernel, made.node = function, table, kernel, nodes[0]
    made.how, made.device_id = how[0], device_id
    return made
