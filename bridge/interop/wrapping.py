"""wrap_pycuda: call functions written for GPUArrays with CuPy arrays."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import pycuda.driver as drv
from pycuda.elementwise import ElementwiseKernel, VectorArg
from pycuda.gpuarray import GPUArray
from pycuda.reduction import ReductionKernel
from pycuda.scan import _ScanKernelBase
from pycuda.tools import parse_c_arg
from pytools.prefork import ExecError

from ..errors import check_function, kind, named
from . import patches
from .array_functions import adapt_arrays, has_cupys, keep_from_numpy
from .conversions import call_with_gpuarrays
from .copies import CALLS
from .dtypes import dtype_mismatch
from .exporting import export_in_order
from .layouts import contiguity, share_layout
from .primary import primary_context


def wrap_pycuda(func: Callable[..., Any], /) -> Callable[..., Any]:
    """Make a function of GPUArrays accept and return CuPy arrays; also a decorator.

    Parameters
    ----------
    func : callable
        Any function of GPUArrays, e.g. ``pycuda.cumath.exp`` or an ``ElementwiseKernel``.

    Returns
    -------
    callable
        A function that accepts and returns a `cupy.ndarray` for each `GPUArray` of `func`.  Arrays
        directly in a tuple, namedtuple, list or dict are converted as well.  Other values, such as
        an OrderedDict, are passed unchanged.  If `func` returns an argument, the result is that
        same array.

    Raises
    ------
    TypeError
        If `func` is not callable, is a class or a compiled ``pycuda.driver.Function``, or is a
        generator function or a coroutine function, whose body runs after the call.  On a call, if
        an array has another dtype than an ``ElementwiseKernel``, a ``ReductionKernel`` or a scan
        was made for.  A ``ReductionKernel`` that was made before ``import bridge.autoinit`` is not
        checked.
    ContextError, TypeError, ValueError
        On a call, as in `as_pycuda` and `as_cupy`.  Also ValueError while CuPy's current stream is
        being captured into a graph, and if such a kernel would read behind the end of an array.

    Examples
    --------
    >>> import cupy, bridge, bridge.autoinit
    >>> first_half = bridge.wrap_pycuda(lambda a: a[: a.size // 2])
    >>> first_half(cupy.arange(6))
    array([0, 1, 2])

    Notes
    -----
    On a thread without a PyCUDA context, the primary context is current during the call.
    *Ownership:* as in `as_cupy`, a result keeps its `GPUArray` alive.
    *Ordering:* work of `func` on PyCUDA's streams runs after the work queued on CuPy's streams, and
    before later work there (rule: `bridge.interop.ordering`).  If a PyCUDA stream is passed as
    ``stream=``, only this one and the default stream are ordered with CuPy's current stream.
    *Cost:* one conversion per array.
    *Layout:* after ``import bridge.autoinit``, PyCUDA's functions compute with any.  Without it,
    they read the memory as it lies: pass arrays of one layout.
    """
    if issubclass(type(func), drv.Function):  # not a SourceModule's, which says that it is one
        raise TypeError(
            "wrap_pycuda: func is a pycuda.driver.Function, whose arguments would not be checked; "
            "compile with bridge.SourceModule, whose functions take CuPy arrays and check them; "
            "bridge.launch(func, ...) orders the launch, but cannot check dtypes"
        )
    check_function(
        func, "wrap_pycuda: func", "convert inside, with bridge.as_pycuda and bridge.as_cupy"
    )
    parameters = _parameters(func)

    @functools.wraps(func)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        if parameters:
            _check(parameters, args, keywords, "wrap_pycuda")
        try:
            if drv.Context.get_current() is None:
                with primary_context():
                    return call_with_gpuarrays(func, args, keywords)
            return call_with_gpuarrays(func, args, keywords)
        except ExecError as error:
            raise ExecError(
                f"wrap_pycuda: PyCUDA cannot compile: {error}; call bridge.use_nvrtc() first: "
                "NVRTC needs no nvcc"
            ) from error

    return wrapper


class _Parameter(NamedTuple):
    """A parameter of a PyCUDA kernel object."""

    text: str  # how messages name its argument
    dtype: Any  # None for numbers
    has_all: bool = False  # the kernel reads as many elements as it runs over


def _parameters(func: Any) -> dict[int | str, _Parameter]:
    """Return the parameters of a PyCUDA kernel object by position, and by name."""
    if hasattr(func, "_bridge_parameters"):  # PyCUDA adds to a list of arguments in its first call
        return func._bridge_parameters  # type: ignore[no-any-return]
    if isinstance(func, ElementwiseKernel):
        name, arguments, code = map(func.gen_kwargs.get, ("name", "arguments", "operation"))
    elif hasattr(func, "_bridge_arguments"):
        name, arguments, code = func._bridge_arguments
    elif isinstance(func, _ScanKernelBase):
        places = 0, 1, "input_ary", "output_ary"
        name = type(func).__name__
        return {where: _Parameter(f"{name}: argument {where}", func.dtype) for where in places}
    else:
        return {}
    if isinstance(arguments, str):
        arguments = [parse_c_arg(argument) for argument in arguments.split(",")]
    found: dict[int | str, _Parameter] = {}
    may_skip = re.search(r"\?|&&|\|\||\b(if|for|while|switch)\b", code or "")
    for index, one in enumerate(arguments):
        dtype = one.dtype if isinstance(one, VectorArg) else None
        indices = re.findall(rf"\b{one.name}\b(\s*\[\s*i\s*\])?", code or "")
        has_all = any(indices) and all(indices) and not may_skip
        found[index] = _Parameter(
            f"{name}: argument {index} (`{one.declarator()}`)", dtype, has_all
        )
    return found


def _check(
    parameters: dict[Any, _Parameter], args: Any, keywords: dict[str, Any], function: str
) -> None:
    """Raise if a PyCUDA kernel object would misread an argument."""
    declared = [where for where in parameters if type(where) is int]
    if len(args) != len(declared) and len(declared) == len(parameters):  # a scan's have names
        names = [one.text.partition(": ") for one in parameters.values()]
        raise TypeError(
            f"{function}: {names[0][0]}: {len(args)} arguments for {len(declared)} parameters: "
            + ", ".join(name[2] for name in names)
        )
    layouts: dict[str, str] = {}
    runs_over: int | None = 0 if "range" in keywords or "slice" in keywords else None  # elements
    for where, value in (*enumerate(args), *keywords.items()):
        is_array = isinstance(value, GPUArray | cupy.ndarray)
        if where not in parameters or (not is_array and len(declared) < len(parameters)):
            continue  # the output of a scan may be None or "new"
        text, wanted, has_all = parameters[where]
        caller = text if text.startswith(f"{function}: ") else f"{function}: {text}"
        if wanted is None:
            if is_array:
                raise TypeError(f"{caller} is a {kind(value)}; the kernel takes a number: a.item()")
            continue
        if not is_array:
            raise TypeError(f"{caller} is {named(value)}; the kernel takes an array of {wanted}")
        if problem := dtype_mismatch(value.dtype, wanted, caller):
            raise problem
        if value.dtype.itemsize != wanted.itemsize:  # complex numbers for floats
            raise TypeError(
                f"{caller} is an array of {value.dtype}, but the kernel takes {wanted}, one for "
                f"each item; pass a.view({wanted})"
            )
        runs_over = value.size if runs_over is None else runs_over
        if has_all and value.size < runs_over:
            raise ValueError(
                f"{caller} has {value.size} elements, but the kernel runs over {runs_over}, those "
                "of its first array, and would read behind the others; pass arrays of one size"
            )
        if (orders := contiguity(value)) != "CF":
            layouts[orders] = caller
    if "" in layouts or len(layouts) == 2:
        mixed = "is in Fortran order, and others are in C order"
        what = "is not contiguous" if "" in layouts else mixed
        raise ValueError(
            f"{layouts.get('') or layouts['F']} {what}; the kernel would pair their elements as "
            "they lie in memory: pass a copy, e.g. cupy.ascontiguousarray(a)"
        )


def _keep_arguments(self: Any, *args: Any, **keywords: Any) -> None:
    """Make a ReductionKernel that keeps its name and arguments, which PyCUDA does not."""
    init = patches.original(ReductionKernel, "__init__")
    init(self, *args, **keywords)
    given = inspect.signature(init).bind(self, *args, **keywords)
    given.apply_defaults()
    self._bridge_arguments = tuple(
        given.arguments[one] for one in ("name", "arguments", "map_expr")
    )


Mismatch = Callable[[Exception], None] | None


def _checked(kernels: Any, mismatch: Mismatch) -> Callable[..., Any]:
    """Return the call of a class of kernels that checks arguments and accepts CuPy arrays."""
    theirs = patches.original(kernels, "__call__")

    @functools.wraps(theirs)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        if not keywords and share_layout(args, keywords, False):
            dtypes = [value.dtype if isinstance(value, GPUArray) else None for value in args]
            if dtypes == vars(self).get("_bridge_dtypes"):  # of an earlier call
                return theirs(self, *args)
        with_cupys = has_cupys((*args, *keywords.values()))
        parameters = self._bridge_parameters = _parameters(self)
        try:
            if parameters:
                _check(parameters, args, keywords, type(self).__name__)
        except (TypeError, ValueError) as problem:
            if with_cupys or mismatch is None:
                raise
            mismatch(problem)
        if all(type(where) is int for where in parameters):
            self._bridge_dtypes = [one.dtype for one in parameters.values()]
        if with_cupys:
            return call_with_gpuarrays(functools.partial(theirs, self), args, keywords)
        return theirs(self, *args, **keywords)

    return call


def adapt_pycuda(mismatch: Mismatch = None) -> None:
    """Let PyCUDA's arrays, kernel objects and copies know CuPy's objects.

    Arrays are exported in order, kernel objects accept CuPy arrays and check what they are called
    with, and the errors of copies say what to do.  `mismatch` receives the error for PyCUDA's own
    arrays that a kernel would misread.  Without it, the error is raised, and NumPy's functions
    raise for a GPUArray.
    """
    export_in_order()
    adapt_arrays()
    for target, calls in CALLS.items():
        patches.apply("copies", "errors say what to do with CuPy's objects", target, calls)
    is_new = patches.original(ElementwiseKernel, "__call__") is ElementwiseKernel.__call__
    if is_new:
        for kernels in ElementwiseKernel, ReductionKernel, _ScanKernelBase:
            why = "kernel objects accept CuPy arrays, and check their arguments"
            patches.apply("kernels", why, kernels, {"__call__": _checked(kernels, mismatch)})
        if mismatch is None:
            keep_from_numpy()


patches.apply(
    "reductions",
    "wrap_pycuda checks the dtypes of arguments",
    ReductionKernel,
    {"__init__": _keep_arguments},
)
