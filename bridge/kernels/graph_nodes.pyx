# cython: auto_pickle=False
"""Nodes of CUDA graphs that launch a kernel, and get other arguments."""

cimport cython
from libc.stdint cimport intptr_t, uint64_t

from bridge.interop.contexts cimport cuda_device
from bridge.interop.driver cimport *
from bridge.kernels.launching cimport LaunchConfig, PySequence_Fast_ITEMS, parameter_buffer
from bridge.kernels.loaded cimport Kernel
from bridge.kernels.packing cimport PackedArguments, Parameters

import cupy
from cupy.cuda import driver

from ..errors import ContextError, named


@cython.final
cdef class GraphNode:
    """A launch in a graph, made by `Function.capture`."""

    cdef Kernel kernel  # keeps the code loaded
    cdef Parameters parameters
    cdef Handle node
    cdef LaunchConfig config
    cdef list kept  # what was exported for the last update

    def __repr__(self):
        return f"<bridge.kernels.graph_nodes.GraphNode {self.parameters}>"

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
        cdef PackedArguments packed
        cdef CUDA_KERNEL_NODE_PARAMS params
        cdef void *extra[5]
        cdef int status
        name = self.kernel.name
        if not isinstance(graph, cupy.cuda.Graph):
            raise TypeError(
                f"{name}: update: graph is {named(graph)}; the cupy.cuda.Graph of the "
                "capture is accepted"
            )
        packed.device_id, packed.strided = cuda_device(), self.config.strided
        if packed.device_id != self.config.device_id:
            raise ContextError(
                f"{name}: update: the graph is of device {self.config.device_id}, but device "
                f"{packed.device_id} is current; work under `with bridge.primary_context("
                f"{self.config.device_id}):`"
            )
        values, warned = PySequence_Fast_ITEMS(args), self.kernel.warned
        kept = self.parameters.pack(values, len(args), &packed, None, warned)
        if packed.has_handlers:
            raise TypeError(
                f"{name}: update: pycuda.driver.In, Out and InOut copy when a call "
                "begins and ends, which a graph cannot; pass device arrays"
            )
        parameter_buffer(extra, &packed)
        params.function = self.kernel.handle(packed.device_id)
        params.extents, params.shared = self.config.extents, self.config.shared
        params.params, params.extra = NULL, extra
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


cdef last_node(Kernel kernel, Parameters parameters, LaunchConfig *config):
    """Return the node of the launch that was captured last on its stream.

    Between the launch and here, another thread may have queued something into the capture.
    """
    cdef int state = 0
    cdef uint64_t number = 0
    cdef size_t count = 0
    cdef Handle *nodes = NULL
    driver.check_status(
        cuStreamGetCaptureInfo(config.stream, &state, &number, NULL, &nodes, &count)
    )
    if count != 1:
        raise ValueError(
            f"{kernel.name}.capture: another thread has queued work into the capture, so that the "
            "node of this launch cannot be told; capture on streams that only this thread uses"
        )
    cdef GraphNode made = GraphNode.__new__(GraphNode)
    made.kernel, made.parameters, made.config, made.node = kernel, parameters, config[0], nodes[0]
    return made
