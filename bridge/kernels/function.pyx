# cython: auto_pickle=False
"""Functions of a `SourceModule`, and bound ones: calls as if on CuPy's current stream.

A call packs the arguments (`packing`), orders the streams and calls CUDA (`launching`).
"""

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport intptr_t

from bridge.interop.views cimport views_are_alive
from bridge.interop.contexts cimport Handle, MOST_DEVICES, Stream, cuda_device
from bridge.interop.streams cimport current_stream, handle_of, is_capturing
from bridge.kernels.graph_nodes cimport last_node
from bridge.kernels.launching cimport (
    How, Order, PySequence_Fast_ITEMS, begin, end, launch_kernel, read_extent, three,
)
from bridge.kernels.packing cimport Call, Table

import ctypes
import functools
import operator
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import cupy
import pycuda.driver as drv
from cupy.cuda import driver, runtime

from ..interop.contexts import failure
from ..errors import named
from ..interop.ordering import seconds_between
from .parameters import codes_of, declared, libcuda, prepared
from .launch_limits import REFUSALS, explain, extent, refusal, shared_bytes

cdef enum:
    USUAL_SHARED = 48 << 10  # bytes that need no higher limit

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

cdef int LIMIT = int(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
cdef object limit_lock = threading.RLock()  # several of our functions may share one CUfunction


cdef class Function:
    """A kernel of a `SourceModule`, called like a ``pycuda.driver.Function``.

    It has the attributes of the compiled kernel: ``num_regs``, ``shared_size_bytes``,
    ``local_size_bytes``, ``const_size_bytes``, ``max_threads_per_block`` and the others of
    ``pycuda.driver.function_attribute``.

    Notes
    -----
    A function is pickled as its module's source and its name.
    *Ownership:* a function keeps its module alive.  You can drop an array after the call.  Its
    memory is reused only after the kernel, in the order of CuPy's current stream.
    *Ordering:* a call runs as if on CuPy's current stream, whatever stream it is launched on.
    GPUArrays, PyCUDA's memory and the addresses of prepared calls are also ordered with all of
    PyCUDA's streams, unless ``stream=`` names one (rule: `bridge.interop.ordering`).  The host does not wait, except
    that ``pycuda.driver.In``, ``Out`` and ``InOut`` copy synchronously.
    *Cost:* about that of calling a `cupy.RawKernel`.
    """

    cdef Vectorcall vectorcall
    cdef readonly str name
    cdef object module
    cdef dict textures  # of the module: the references on each device that were asked for
    cdef tuple texrefs  # that must be bound
    cdef list codes  # of the prepared types
    cdef Table table, prepared_table  # of calls, and of prepared calls; made at the first use
    cdef public bint overlaps  # launches are PyCUDA's own as long as CuPy views no memory
    cdef public bint lenient  # a mismatch of PyCUDA's own arrays is a warning
    cdef Py_ssize_t free_shared  # bytes of dynamic shared memory that need no higher limit
    cdef Handle handles[MOST_DEVICES]
    cdef object __weakref__

    def __cinit__(self):
        self.vectorcall = <Vectorcall> &call_function

    def __init__(self, module, name, codes=None):
        self.module, self.name, self.codes = module, name, codes
        self.textures, self.texrefs = module._textures, ()
        self.free_shared = -1

    def __call__(
        self, *args, block=None, grid=(1, 1), shared=0, stream=None, texrefs=(),
        bint time_kernel=False, bint strided=False, bint cooperative=False, cluster=None,
        **unknown,
    ):
        """Launch the kernel as if on CuPy's current stream.

        Parameters
        ----------
        *args
            As in `bridge.launch`.  If the compiler reports a parameter's type (``repr`` shows it),
            other dtypes and widths raise, and Python numbers are converted.
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
        if unknown:
            raise TypeError(
                f"{self.name}: {next(iter(unknown))}= is no keyword of a launch; block, grid, "
                "shared, stream, strided, cooperative, cluster, texrefs and time_kernel are "
                "accepted, and the kernel's arguments by position"
            )
        cdef How how
        cdef int device_id = self.read(
            &how, grid, block, shared, stream, strided, cooperative, cluster
        )
        wait = self.start(
            device_id, self.table or self.declared(), PySequence_Fast_ITEMS(args), len(args), &how,
            time_kernel, checked(texrefs, self.name) if texrefs else (),
        )
        return wait() if time_kernel else None

    def bind(
        self, *args, block=None, grid=(1, 1), shared=0, stream=None, bint strided=False,
        bint cooperative=False, cluster=None,
    ):
        """Return a function that launches this one: call it with the kernel's arguments only.

        The parameters are those of a call, without `time_kernel` and `texrefs`, and are read once;
        CUDA checks at each launch what the device allows.  Calls of the result check the arguments
        and order the streams as calls of this function do.

        Returns
        -------
        bridge.kernels.function.BoundFunction
        """
        if args:
            raise TypeError(
                f"{self.name}: bind takes no arguments of the kernel; pass them to what it returns: "
                "g = f.bind(block=128), then g(x, n)"
            )
        cdef BoundFunction bound = BoundFunction(self, stream)
        bound.device_id = self.read(
            &bound.how, grid, block, shared, stream, strided, cooperative, cluster
        )
        return bound

    def prepared_call(self, grid, block, *args, shared_size=0, bint strided=False):
        """Launch as if on CuPy's current stream, with arguments of the prepared types.

        `grid`, `block`, `strided`, `shared_size` (bytes) and arrays are as in `bridge.launch`.  An
        int may also be an address.  Numbers are converted to the prepared type.
        """
        self.call_prepared(args, grid, block, shared_size, None, strided, False)

    def prepared_async_call(
        self, grid, block, stream, *args, shared_size=0, bint strided=False
    ):
        """Launch like `prepared_call`, on the given stream (None: CuPy's current stream)."""
        self.call_prepared(args, grid, block, shared_size, stream, strided, False)

    def prepared_timed_call(self, grid, block, *args, shared_size=0, bint strided=False):
        """Launch like `prepared_call`; return a function that waits and returns the seconds."""
        return self.call_prepared(args, grid, block, shared_size, None, strided, True)

    cdef call_prepared(self, tuple args, grid, block, shared, stream, bint strided, bint timed):
        cdef How how
        table = self.prepared_table or self.find_prepared()
        cdef int device_id = self.read(&how, grid, block, shared, stream, strided, False, None)
        return self.start(
            device_id, table, PySequence_Fast_ITEMS(args), len(args), &how, timed, self.texrefs
        )

    def prepare(self, arg_types, texrefs=(), block=None):
        """Fix the types of the arguments, for the ``prepared_`` calls; return this function.

        Parameters
        ----------
        arg_types : str or iterable
            Codes of `struct` ("PPif"), NumPy scalar types or dtypes; anything else means a pointer.
        texrefs : list, optional
            References of the module that must be bound when a prepared call launches.
        block
            Not accepted: give it to the prepared calls.

        Raises
        ------
        TypeError
            If the number of types differs from the kernel's.
        """
        if block is not None or type(texrefs) is tuple and isinstance((*texrefs, None)[0], int):
            raise TypeError(
                f"{self.name}: prepare takes no block; give it to each prepared call: "
                "f.prepared_call(grid, block, *args)"
            )
        self.texrefs = checked(texrefs or (), self.name)
        codes = codes_of(arg_types, self.name)
        self.prepared_table = prepared(self.name, codes, self.declared())
        self.codes = codes
        return self

    def param_set_texref(self, texref):
        """Require a reference to be bound in prepared calls, as ``texrefs`` of `prepare` does."""
        self.texrefs += checked([texref], self.name)

    def __reduce__(self):
        """Pickle the module, the name and what is prepared."""
        return Function, (self.module, self.name, self.codes)

    def __repr__(self):
        """Show the types of the parameters; show the size of one whose type is not known."""
        known = self.table or f"{self.name}(...)"  # not before it is loaded
        return f"<bridge.kernels.function.Function {known}>"

    def get_attribute(self, attribute):
        """Return a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        with self._asking(f"attribute {named(attribute)}") as handle:
            return int(driver.funcGetAttribute(operator.index(attribute), handle))

    def set_attribute(self, attribute, value):
        """Set a ``pycuda.driver.function_attribute`` of the kernel on the current device."""
        with self._asking(
            f"attribute {named(attribute)} cannot be set to {named(value)}"
        ) as handle:
            driver.funcSetAttribute(handle, operator.index(attribute), operator.index(value))

    def set_cache_config(self, config):
        """Set the preferred split of L1 cache and shared memory, a ``pycuda.driver.func_cache``."""
        with self._asking(f"config {named(config)}") as handle:
            status = libcuda.cuFuncSetCacheConfig(ctypes.c_void_p(handle), operator.index(config))
            driver.check_status(status)

    @contextmanager
    def _asking(self, what):
        """Yield the CUfunction on the current device, and explain errors of CUDA."""
        handle = <intptr_t> self.handle(cuda_device())
        try:
            yield handle
        except TypeError as error:
            raise TypeError(
                f"{self.name}: {what}: an int is accepted, or a member of pycuda.driver's "
                f"function_attribute and func_cache ({error})"
            ) from None
        except REFUSALS as error:
            what += f": CUDA refuses it on this device ({error})"
            raise refusal(self.name, what) from error

    def __getattr__(self, name):
        """Return an attribute of the compiled kernel, e.g. ``num_regs``."""
        attribute = getattr(drv.function_attribute, name.upper(), None)
        if attribute is None:
            from ..legacy.names import BEFORE_CUDA_4  # few programs are that old

            advice = f"; {BEFORE_CUDA_4[name]}" if name in BEFORE_CUDA_4 else ""
            raise AttributeError(f"'Function' object has no attribute {name!r}{advice}")
        return self.get_attribute(attribute)

    cpdef Table declared(self):
        """Return the kernel's table.  It is made at the first use: unpickling needs no GPU."""
        if self.table is None:
            handle, types = self.module._kernel(self.name, cuda_device())
            self.table = declared(self.name, types, handle)
        return self.table

    cdef Table find_prepared(self):
        """Return the table of prepared calls, also of a function that was unpickled."""
        if self.codes is None:
            raise TypeError(
                f"{self.name}: it is not prepared; call prepare(arg_types) before the prepared "
                f"calls: {self.declared()}"
            )
        self.prepared_table = prepared(self.name, self.codes, self.declared())
        return self.prepared_table

    cdef Handle handle(self, int device_id) except NULL:
        """Return the CUfunction on the current device."""
        if self.handles[device_id] is NULL:
            handle, _ = self.module._kernel(self.name, device_id)
            self.handles[device_id] = <Handle> <intptr_t> handle
        return self.handles[device_id]

    cdef int read(
        self, How *how, grid, block, shared, stream, bint strided, bint cooperative, cluster
    ) except -1:
        """Check how to launch on the current device; return its id."""
        cdef int device_id = cuda_device()
        if block is None:
            raise ValueError(
                f"{self.name}: block is missing; give it by name, after any arguments of the kernel: "
                "block=(128, 1, 1), grid=(8, 1)"
            )
        how.is_named, how.strided, how.is_cooperative = stream is not None, strided, cooperative
        how.shared = how.cluster[0] = 0
        if stream is not None:
            how.stream = handle_of(stream, self.name, may_be_unordered=False)
        try:
            read_extent(how.extents, grid, "grid", self.name)
            read_extent(how.extents + 3, block, "block", self.name)
            if cluster is not None:
                how.cluster = extent(cluster, "cluster", self.name)
            if type(shared) is not int or shared:
                how.shared = self.allow(shared_bytes(shared, self.name), device_id)
        except REFUSALS as error:
            raise explain(error, self.name, self, grid, block, shared, device_id) from error
        return device_id

    cdef start(
        self, int device_id, Table table, PyObject **args, Py_ssize_t count, How *how, bint timed,
        tuple texrefs,
    ):
        """Launch on a stream (CuPy's current stream if none is named), as if on CuPy's current one.

        For a timed launch, return a function that waits for the kernel and returns the seconds.
        """
        cdef Call call
        cdef Order streams
        streams.here = current_stream(device_id)
        streams.is_named = how.is_named
        streams.there = how.stream if how.is_named else streams.here
        call.device_id, call.strided, call.lenient = device_id, how.strided, self.lenient
        kept = table.pack(args, count, &call)  # noqa: F841
        references = self.textures.get(device_id) if self.textures else None
        if references is not None:
            of_pycuda, of_cupy = references.memory()
            call.has_pycuda_memory = call.has_pycuda_memory or of_pycuda
            call.has_other_arrays = call.has_other_arrays or of_cupy
        streams.are_pycudas = self.overlaps and not (
            call.has_other_arrays or call.handlers or views_are_alive()
        )
        if streams.are_pycudas and not how.is_named:
            streams.there = 0
        elif self.overlaps:
            call.has_pycuda_memory = True  # PyCUDA's own kernels get bare addresses
        handlers = begin(&call, &streams, args, count, timed, self.name)
        if timed:
            if reason := failure():
                raise drv.LaunchError(f"{self.name}: {reason}")
            first, last = cupy.cuda.Event(), cupy.cuda.Event()
            runtime.eventRecord(first.ptr, streams.there)
        if references is None:
            self.launch(how, &call, streams.there)
        else:
            with references.launching(streams.there, texrefs):
                self.launch(how, &call, streams.there)
        if timed:
            runtime.eventRecord(last.ptr, streams.there)
        end(&call, &streams, handlers)
        return functools.partial(seconds_between, first, last) if timed else None

    cdef int launch(self, How *how, Call *call, Stream stream) except -1:
        cdef int status = launch_kernel(self.handle(call.device_id), how, call, stream)
        if status:
            self.refuse(status, how, call.device_id)
        return 0

    cdef refuse(self, int status, How *how, int device_id):
        """Raise the error for a status of CUDA."""
        grid, block = three(how.extents), three(how.extents + 3)
        cluster = three(how.cluster) if how.cluster[0] else None
        try:
            driver.check_status(status)
        except REFUSALS as error:
            raise explain(
                error, self.name, self, grid, block, how.shared, device_id, cluster,
                how.is_cooperative
            ) from error

    cdef allow(self, shared, int device_id):
        """Return the bytes of dynamic shared memory; raise the kernel's limit if it is lower."""
        if self.free_shared < 0:
            self.free_shared = USUAL_SHARED - self.shared_size_bytes
        if shared > self.free_shared:
            handle = <intptr_t> self.handle(device_id)
            with limit_lock:
                if driver.funcGetAttribute(LIMIT, handle) < shared:
                    driver.funcSetAttribute(handle, LIMIT, shared)
        return shared


cdef object call_function(Function self, PyObject **args, size_t flags, PyObject *names):
    """Call a function, as ``__call__`` does."""
    cdef How how
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
            return Function.__call__(self, *values[:count], **keywords)
    cdef int device_id = self.read(&how, grid, block, shared, stream, False, False, None)
    self.start(device_id, self.table or self.declared(), args, count, &how, False, ())
    return None


@cython.final
cdef class BoundFunction:
    """A function of a `SourceModule` with its grid, block, shared memory and stream: `Function.bind`.

    Call it with the kernel's arguments.

    Notes
    -----
    *Ownership:*, *Ordering:* as in `Function`, whose module it keeps alive.
    *Cost:* less than that of a `Function`.
    """

    cdef Vectorcall vectorcall
    cdef readonly Function function
    cdef readonly object stream
    cdef How how
    cdef int device_id  # that `how` was checked for
    cdef object __weakref__

    def __cinit__(self, Function function not None, stream):
        self.vectorcall = <Vectorcall> &call_bound
        self.function, self.stream = function, stream

    def __call__(self, *args):
        """Launch the kernel with these arguments, as `Function` does.  Return None."""
        self.start(PySequence_Fast_ITEMS(args), len(args))

    def __repr__(self):
        grid, block = three(self.how.extents), three(self.how.extents + 3)
        known = self.function.table or f"{self.function.name}(...)"
        return f"<bridge.kernels.function.BoundFunction {known}, {grid=}, {block=}>"

    cdef int start(self, PyObject **args, Py_ssize_t count) except -1:
        cdef Function function = self.function
        cdef int device_id = cuda_device()
        self.check(device_id)
        table = function.table or function.declared()
        function.start(device_id, table, args, count, &self.how, False, ())
        return 0

    cdef int check(self, int device_id) except -1:
        """Check again if another device is current."""
        if self.device_id != device_id:
            if self.how.is_named:
                handle_of(self.stream, self.function.name)  # raises: it is on the other device
            if self.how.shared:
                self.function.allow(self.how.shared, device_id)
            self.device_id = device_id
        return 0

    def capture(self, *args):
        """Launch while a stream is captured into a graph; return the graph's node of this launch.

        Its method `update` gives the node other arguments.

        Raises
        ------
        ValueError
            If the stream of the launch is not being captured.
        TypeError, ValueError, ContextError, pycuda.driver.Error
            As in calls.
        """
        cdef int device_id = cuda_device()
        cdef How how = self.how
        cdef Function function = self.function
        if not how.is_named:  # also where `bridge run` would launch on the default stream
            how.stream, how.is_named = current_stream(device_id), True
        if not is_capturing(how.stream):
            raise ValueError(
                f"{self.function.name}.capture: the stream of the launch is not being captured; "
                "call stream.begin_capture() before, under `with stream:`"
            )
        self.check(device_id)
        values = PySequence_Fast_ITEMS(args)
        table = function.declared()
        function.start(device_id, table, values, len(args), &how, False, ())
        return last_node(function, table, function.handle(device_id), &how, device_id)


cdef object call_bound(BoundFunction self, PyObject **args, size_t flags, PyObject *names):
    if names is not NULL and PyTuple_GET_SIZE(names):
        raise TypeError(
            f"{self.function.name}: {(<tuple> names)[0]}= is given, but the launch is bound: pass "
            "the kernel's arguments only, by position"
        )
    self.start(args, PyVectorcall_NARGS(flags))
    return None


cdef tuple checked(texrefs, name):
    """Return references; raise TypeError if one is not of a `SourceModule`."""
    from ..legacy.textures import Reference  # few programs have textures

    for one in texrefs if isinstance(texrefs, (list, tuple)) else [texrefs]:
        if not isinstance(one, Reference) or one is texrefs:
            raise TypeError(
                f"{name}: texrefs has {named(one)}; a list of references of a bridge.SourceModule "
                "is accepted: [module.get_texref('name')]"
            )
    return tuple(texrefs)


cdef Function one = Function(SimpleNamespace(_textures={}), "")
enable_vectorcall(Function, <char *> &one.vectorcall - <char *> <PyObject *> one)
cdef BoundFunction other = BoundFunction(one, None)
enable_vectorcall(BoundFunction, <char *> &other.vectorcall - <char *> <PyObject *> other)
one = other = None
