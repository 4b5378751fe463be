# cython: auto_pickle=False
"""Functions of a `SourceModule`: calls as if on CuPy's current stream.

A call reads its configuration and launches (`bridge.kernels.launching`).
"""

from cpython.ref cimport PyObject
from libc.stdint cimport intptr_t

from bridge.interop.contexts cimport cuda_device
from bridge.interop.streams cimport is_capturing
from bridge.kernels.graph_nodes cimport last_node
from bridge.kernels.launching cimport *
from bridge.kernels.loaded cimport Kernel
from bridge.kernels.packing cimport Parameters

from types import SimpleNamespace

import cupy
import pycuda.driver as drv

from ..errors import named
from .extensions import LaunchPolicy, LaunchReference
from .parameters import parameters_of_kernel, parameters_of_prepare, types_of_prepare

cdef extern from *:
    """
    /* Let calls of a class's instances pass arguments without a tuple and a dict (PEP 590). */
    static void enable_vectorcall(PyObject *kind, Py_ssize_t offset) {
        PyTypeObject *type = (PyTypeObject *) kind;
        type->tp_vectorcall_offset = offset;
        type->tp_call = PyVectorcall_Call;
        type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
        PyType_Modified(type);
    }
    """
    void enable_vectorcall(object kind, Py_ssize_t offset)
    Py_ssize_t PyVectorcall_NARGS(size_t)
    PyObject *PyTuple_GET_ITEM(PyObject *, Py_ssize_t)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *)

ctypedef object (*Vectorcall)(object, PyObject **, size_t, PyObject *)

# Keywords of most calls, as interned in the caller's code.
cdef str BLOCK = "block", GRID = "grid", SHARED = "shared", STREAM = "stream"
cdef tuple ONE_BLOCK = (1, 1)
cdef tuple KEYWORDS = (
    BLOCK, GRID, SHARED, STREAM, "texrefs", "time_kernel", "strided", "cooperative", "cluster"
)


cdef class Function(Kernel):
    """A kernel of a `SourceModule`, called like a ``pycuda.driver.Function``.

    ``isinstance`` says that it is one, and it keeps attributes that a program sets, such as
    ``f.block``.  It has the attributes of the compiled kernel: ``num_regs``, ``shared_size_bytes``,
    ``local_size_bytes``, ``const_size_bytes``, ``max_threads_per_block`` and the others of
    ``pycuda.driver.function_attribute``.  ``ptr`` is its handle, for CuPy's functions of occupancy.

    Notes
    -----
    A function is pickled as its module's source and its name.
    *Ownership:* a function keeps its module alive.  You can drop an array after the call.  Its
    memory is reused only after the kernel, in the order of CuPy's current stream.
    *Ordering:* a call runs as if on CuPy's current stream, whatever stream it is launched on.
    GPUArrays, PyCUDA's memory and the addresses of prepared calls are also ordered with all of
    PyCUDA's streams, unless ``stream=`` names one (rule: `bridge.interop.ordering`).  The host does
    not wait, except that ``pycuda.driver.In``, ``Out`` and ``InOut`` copy synchronously.
    *Cost:* about that of calling a `cupy.RawKernel`.
    """

    cdef Vectorcall vectorcall
    cdef tuple texrefs  # the references that must be bound in prepared calls
    cdef list types  # of prepared calls; None: not prepared
    cdef Parameters known  # of calls; None until the first use
    cdef Parameters prepared  # of prepared calls; None until the first use
    cdef object __weakref__
    cdef dict __dict__  # for a program's own attributes: f.block = (32, 1, 1)

    def __cinit__(self):
        self.vectorcall = <Vectorcall> &call_function

    def __init__(self, module, name, types=None):
        super().__init__(module, name)
        self.types, self.texrefs = types, ()

    def __call__(
        self, *args, block=None, grid=(1, 1), shared=0, stream=None, texrefs=(),
        bint time_kernel=False, bint strided=False, bint cooperative=False, cluster=None,
    ):
        """Launch the kernel as if on CuPy's current stream.

        Parameters
        ----------
        *args
            As in `bridge.launch`.  If the compiler reports a parameter's type (``repr`` shows it),
            arrays of other dtypes raise, and numbers are converted to it.
        block, grid, shared, strided
            As in `bridge.launch`.  `shared` may be up to the device's limit.
        stream : pycuda.driver.Stream, cupy.cuda.Stream or any ``__cuda_stream__``, optional
            The stream to launch on; CuPy's current stream if omitted.
        time_kernel : bool
            Wait for the kernel, and return its time in seconds (a float).  Otherwise return None.
        cooperative : bool
            Run all blocks at the same time, for ``grid.sync()`` of cooperative groups.
        cluster : int or sequence of 1 to 3 ints, optional
            The number of blocks in a thread block cluster.  It must divide `grid`.

        Raises
        ------
        TypeError, OverflowError
            If an argument does not match or fit its parameter, or the number of arguments is wrong.
        ValueError
            If an array is not contiguous, or in another order than the others, or its address or
            size does not suit the kernel's items.  If an extent is less than 1, or `shared` is
            negative.  If CUDA does not know the stream, or the launch cannot be part of a capture
            that is in progress.
        pycuda.driver.Error
            If CUDA refuses the launch, e.g. because `block` is too large for the kernel, or all
            blocks of a cooperative launch do not fit.
        ContextError
            If an array is on another device, or CUDA's context is not a primary context.
        """
        cdef LaunchConfig config
        read_config(&config, self, grid, block, shared, stream, strided, cooperative, cluster)
        parameters = self.known or self._parameters()
        needed = checked_references(texrefs, self.name) if texrefs else ()
        values = PySequence_Fast_ITEMS(args)
        wait = launch(self, parameters, values, len(args), &config, time_kernel, needed)
        return wait() if time_kernel else None

    def capture(
        self, *args, block=None, grid=(1, 1), shared=0, stream=None, bint strided=False,
        bint cooperative=False, cluster=None,
    ):
        """Launch while a stream is captured into a graph; return the graph's node of this launch.

        The parameters are those of a call, without `time_kernel` and `texrefs`.

        Returns
        -------
        bridge.kernels.graph_nodes.GraphNode
            Its method ``update`` gives the launch other arguments.

        Raises
        ------
        ValueError
            If the stream of the launch is not being captured.
        TypeError, ValueError, ContextError, pycuda.driver.Error
            As in calls.
        """
        cdef LaunchConfig config
        if stream is None:  # named, whatever the policy of launches without a stream is
            stream = cupy.cuda.get_current_stream()
        read_config(&config, self, grid, block, shared, stream, strided, cooperative, cluster)
        if not is_capturing(config.stream):
            raise ValueError(
                f"{self.name}.capture: the stream of the launch is not being captured; call "
                "stream.begin_capture() before, under `with stream:`"
            )
        parameters, values = self._parameters(), PySequence_Fast_ITEMS(args)
        launch(self, parameters, values, len(args), &config, False, ())
        return last_node(self, parameters, &config)

    def prepared_call(self, grid, block, *args, shared_size=0, bint strided=False):
        """Launch as if on CuPy's current stream.

        `grid`, `block`, `strided`, `shared_size` (bytes) and arrays are as in `bridge.launch`.  An
        int may also be an address.  Numbers are converted to the kernel's type, and to the prepared
        type if the kernel's is not known.
        """
        self.call_prepared(args, grid, block, shared_size, None, strided, False)

    def prepared_async_call(self, grid, block, stream, *args, shared_size=0, bint strided=False):
        """Launch like `prepared_call`, on the given stream (None: CuPy's current stream)."""
        self.call_prepared(args, grid, block, shared_size, stream, strided, False)

    def prepared_timed_call(self, grid, block, *args, shared_size=0, bint strided=False):
        """Launch like `prepared_call`; return a function that waits and returns the seconds."""
        return self.call_prepared(args, grid, block, shared_size, None, strided, True)

    cdef call_prepared(self, tuple args, grid, block, shared, stream, bint strided, bint timed):
        cdef LaunchConfig config
        parameters = self.prepared or self.prepared_parameters()
        read_config(&config, self, grid, block, shared, stream, strided, False, None)
        values = PySequence_Fast_ITEMS(args)
        return launch(self, parameters, values, len(args), &config, timed, self.texrefs)

    def prepare(self, arg_types, texrefs=()):
        """Allow the ``prepared_`` calls; return this function.

        Of `arg_types`, only the number is checked where the compiler reports the kernel's types.

        Parameters
        ----------
        arg_types : str or iterable
            Codes of `struct` in a str, "PPif", or a list of these, of NumPy's scalar types and of
            dtypes.  Another object in a list, such as a class of arrays, means a pointer.
        texrefs : list, optional
            References of the module that must be bound when a prepared call launches.

        Raises
        ------
        TypeError
            If the number of types differs from the kernel's.
        """
        self.texrefs = checked_references(texrefs or (), self.name)
        types = types_of_prepare(arg_types, self.name)
        self.prepared = parameters_of_prepare(self.name, types, self._parameters())
        self.types = types
        return self

    def param_set_texref(self, texref):
        """Require a reference to be bound in prepared calls, as ``texrefs`` of `prepare` does."""
        self.texrefs += checked_references([texref], self.name)

    @property
    def __class__(self):
        """Let ``isinstance(f, pycuda.driver.Function)`` hold, which programs ask."""
        return drv.Function

    def __reduce__(self):
        """Pickle the module, the name and what is prepared."""
        return Function, (self.module, self.name, self.types)

    def __repr__(self):
        """Show the types of the parameters; show the size of one whose type is not known."""
        known = self.known or f"{self.name}(...)"  # not before it is loaded
        return f"<bridge.kernels.function.Function {known}>"

    cpdef Parameters _parameters(self):
        """Return the kernel's parameters, read at the first use: unpickling needs no GPU."""
        if self.known is None:
            handle = <intptr_t> self.handle(cuda_device())
            types = self.module._signature(self.name)
            self.known = parameters_of_kernel(self.name, types, handle, self.module._members)
        return self.known

    cdef Parameters prepared_parameters(self):
        """Return the parameters of prepared calls, also of a function that was unpickled."""
        if self.types is None:
            raise TypeError(
                f"{self.name}: it is not prepared; call prepare(arg_types) before the prepared "
                f"calls: {self._parameters()}"
            )
        self.prepared = parameters_of_prepare(self.name, self.types, self._parameters())
        return self.prepared


cdef object call_function(Function self, PyObject **args, size_t flags, PyObject *names):
    """Call a function, as ``__call__`` does."""
    cdef LaunchConfig config
    cdef Py_ssize_t index, count = PyVectorcall_NARGS(flags)
    cdef PyObject *name
    block, grid, shared, stream = None, ONE_BLOCK, 0, None
    for index in range(0 if names is NULL else PyTuple_GET_SIZE(names)):
        name, value = PyTuple_GET_ITEM(names, index), <object> args[count + index]
        if name == <PyObject *> BLOCK:
            block = value
        elif name == <PyObject *> GRID:
            grid = value
        elif name == <PyObject *> SHARED:
            shared = value
        elif name == <PyObject *> STREAM:
            stream = value
        else:
            values = [<object> args[i] for i in range(count + PyTuple_GET_SIZE(names))]
            keywords = dict(zip(<object> names, values[count:]))
            if unknown := [word for word in keywords if word not in KEYWORDS]:
                raise TypeError(
                    f"{self.name}: {unknown[0]!r} is no keyword of a launch; these are accepted: "
                    f"{', '.join(KEYWORDS)}"
                )
            return Function.__call__(self, *values[:count], **keywords)
    read_config(&config, self, grid, block, shared, stream, False, False, None)
    launch(self, self.known or self._parameters(), args, count, &config, False, ())
    return None


cdef tuple checked_references(texrefs, name):
    """Return references; raise TypeError if one is not of a `SourceModule`."""
    for one in texrefs if isinstance(texrefs, (list, tuple)) else [texrefs]:
        if not isinstance(one, LaunchReference) or one is texrefs:
            raise TypeError(
                f"{name}: texrefs has {named(one)}; a list of references of a bridge.SourceModule "
                "is accepted: [module.get_texref('name')]; a block goes to each prepared call"
            )
    return tuple(texrefs)


# The offset of `vectorcall` in the instances of a class, which Cython does not tell.
cdef Function one = Function(SimpleNamespace(_policy=LaunchPolicy(), _resources={}), "")
enable_vectorcall(Function, <char *> &one.vectorcall - <char *> <PyObject *> one)
one = None
