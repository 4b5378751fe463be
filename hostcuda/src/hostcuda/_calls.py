"""The functions of a library of CUDA's: its handles, its errors, its parameters, and their work.

The parameters of a function are a text, such as "opa m k *alpha A(m,k,opa) x(k) *beta y(m)~":

    m            an integer
    *alpha       a pointer to a scalar; *alpha:r, to one of the real type
    >r           a pointer to where a scalar is answered, in host or device memory
    x(n)         a vector, in small letters: a pointer, and the step from element to element
    A(m,n)       a column-major matrix: a pointer, and the leading dimension
    A(m,n,op)    one that the function uses transposed, or as it is, as ``op`` says
    p[n]:i       an array without a step, here of integers
    <info[]:i    one for all of a batch
    !info        a pointer to an integer of the host, which becomes 0

What is written has a mark: "=", "+" if it is read, too, "~" if it is read unless beta is zero.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from . import _work
from ._libraries import refusing

Array = Any  # a NumPy array: of its dtype, mypy knows too little
_OF_DATA_TYPE = {0: "f", 1: "d", 2: "e", 4: "F", 5: "D"}  # cudaDataType


class Library:
    """One of CuPy's modules of a library: what its functions share."""

    def __init__(
        self, module: dict[str, Any], prefix: str, title: str, error: str, statuses: Sequence[int]
    ) -> None:
        self.module, self.prefix, self.title = module, prefix, title
        self.uninitialized, self.invalid, self.failed = statuses[:3]
        words = {
            "NOT_INITIALIZED": "initialization error",
            "INVALID_VALUE": "invalid value",
            "EXECUTION_FAILED": "kernel launch failure",
            "INSUFFICIENT_RESOURCES": "insufficient resources",  # only of cuSPARSE
        }
        names = dict(zip(statuses, words, strict=False))

        class Error(RuntimeError):
            def __init__(self, status: int) -> None:
                text = f"{title.upper()}_STATUS_{names[status]}"
                super().__init__(text + f": {words[names[status]]}" * (prefix == "cusparse"))
                self.status = status

            def __reduce__(self) -> Any:
                return type(self), (self.status,)

        Error.__name__ = Error.__qualname__ = error
        Error.__module__ = module["__name__"].replace("hostcuda._", "cupy_backends.cuda.libs.")
        self.Error = module[error] = Error
        self.pointer_modes: dict[int, int] = {}  # of each handle
        self.numbers = itertools.count(1)
        # CuPy sets its current stream before each call, so that another one has no effect.
        module.update(
            create=self.create, destroy=self.destroy, setStream=lambda handle, stream: None
        )
        module.update(getPointerMode=self.mode, setPointerMode=self.set_mode)

    def create(self) -> int:
        number = next(self.numbers)
        self.pointer_modes[number] = 0
        return number

    def mode(self, handle: int) -> int:
        if handle not in self.pointer_modes:
            raise self.Error(self.uninitialized)
        return self.pointer_modes[handle]

    def set_mode(self, handle: int, mode: int) -> None:
        self.mode(handle)
        self.pointer_modes[handle] = mode

    def destroy(self, handle: int) -> None:
        self.mode(handle)
        del self.pointer_modes[handle]

    def check(self, *conditions: bool) -> None:
        if not all(conditions):
            raise self.Error(self.invalid)

    def dtype(self, number: int) -> str:
        """Answer NumPy's letter of a cudaDataType."""
        if number not in _OF_DATA_TYPE:
            refusing(f"{self.title} (cudaDataType {number})")()
        return _OF_DATA_TYPE[number]

    def begin(self, handle: int) -> bool:
        """Begin a call, as CuPy does: are scalars in device memory?"""
        import cupy

        if cupy.cuda.runtime.streamIsCapturing(_work.current_stream()):
            raise NotImplementedError(
                f"calling {self.title} API during stream capture is currently unsupported"
            )
        return bool(self.mode(handle))

    def queue(self, name: str, run: Any, reads: Any, writes: Any, waits: bool = False) -> None:
        """Queue work.  If the function answers on the host, the host waits."""
        if _work.queue(self.prefix + name, run, reads, writes) or (waits and _work.wait()):
            raise self.Error(self.failed)

    def each(
        self, names: str, parameters: str, form: str = "", dtypes: Any = "fdFD", size: Any = None
    ) -> Any:
        """Make the library's functions of one function, which gets the parameters.

        A pattern such as "{}gemm" names those of four types.  `form` is what the names end with:
        "Batched": matrices are pointers to pointers, and "batch" is their number.
        "StridedBatched": a matrix has a stride.  "Ex": a matrix has a type, and `dtypes` is a
        function that answers the type of the computation.  `size` is that of a workspace.
        """
        parts = _parts(parameters)
        names = " ".join(map(names.format, "sdcz")) if "{" in names else names
        kinds = dtypes if isinstance(dtypes, str) else [dtypes]

        def define(function: Any) -> Any:
            for name, dtype in zip(names.split(), kinds, strict=False):

                def call(handle: int, *args: Any, _of: Any = (name, dtype)) -> int:
                    name, dtype = _of
                    made = _Call(self, parts, form, dtype, handle, args)
                    made.queue(f"{name[0].upper()}{name[1:]}", function)
                    return 0

                call.__name__ = name
                self.module[name] = call
                if size:
                    self.module[f"{name}_bufferSize"] = lambda *args: size
            return function

        return define


class _Part(NamedTuple):
    """A parameter."""

    mark: str
    name: str
    bracket: str
    shape: Any  # code
    use: str
    kind: str

    @property
    def is_matrix(self) -> bool:
        return self.bracket == "(" and self.name[0].isupper()

    def count(self, form: str) -> int:
        """Answer how many arguments it takes."""
        if self.is_matrix:
            return 2 + ("Ex" in form) + ("Strided" in form)
        return 2 if self.bracket == "(" else 1


def _parts(parameters: str) -> list[_Part]:
    pattern = r"([*>!<]?)(\w+)(?:([(\[])(\S*)[)\]])?([=+~]?)(?::(\w))?"
    parts = []
    for text in parameters.split():
        found = re.fullmatch(pattern, text)
        assert found, text
        mark, name, bracket, shape, *rest = found.groups("")
        code = compile(f"({shape},)" if shape else "()", name, "eval")
        parts.append(_Part(mark, name, bracket, code, *rest))
    return parts


class _Call:
    """One call: its arguments as numbers, scalars and views."""

    def __init__(
        self, library: Library, parts: list[_Part], form: str, dtype: Any, handle: int, args: Any
    ) -> None:
        self.library, self.form = library, form
        self.on_device = library.begin(handle)
        given = iter(args)
        own = [(part, [*itertools.islice(given, part.count(form))]) for part in parts]
        numbers = {part.name: v[0] for part, v in own if not part.mark and not part.bracket}
        self.dtype = dtype if isinstance(dtype, str) else dtype(SimpleNamespace(**numbers), args)
        self.values = {**numbers, "dtype": self.dtype}
        self.batch = numbers.get("batch", 1)
        library.check(self.batch >= 0)
        self.is_loop = form == "Batched"
        self.views: list[tuple[_Part, list[Array]]] = []  # one for each matrix of a batch
        self.late: list[tuple[_Part, Array, Callable[[int], Array]]] = []  # pointers in memory
        self.conjugated: set[str] = set()
        self.scalars: list[Array] = []
        self.answers: list[Array] = []
        for part, arguments in own:
            if part.name not in numbers:
                self._take(part, *arguments)

    def _take(self, part: _Part, pointer: int, *more: int) -> None:
        check, shape = self.library.check, eval(part.shape, {}, self.values)  # of our own texts
        kinds = {"": self.dtype, "r": self.dtype.lower(), "c": self.dtype.upper()}
        kind = kinds.get(part.kind, part.kind)
        check(all(n >= 0 for n in shape[:2]))
        if part.mark == "!":
            _work.view(pointer, "i", ())[...] = 0
        elif part.mark in ("*", ">"):
            check(pointer != 0)
            scalar = _work.view(pointer, kind, ())
            scalar = scalar if self.on_device or part.mark == ">" else scalar.copy()
            (self.answers if part.mark == ">" else self.scalars).append(scalar)
            self.values[part.name] = scalar
        elif part.is_matrix:
            self._take_matrix(part, kind, pointer, more, *shape)
        elif part.bracket == "(":
            check(more[0] != 0 or "side" in self.values)  # only dgmm's may be 0
            self.views.append((part, [_work.vector(pointer, kind, shape[0], more[0])]))
        else:
            check(pointer != 0 or 0 in shape)
            rows = 1 if part.mark == "<" else self.batch
            whole = _work.view(pointer, kind, (rows, *shape))
            self.views.append((part, [whole[i % rows, ...] for i in range(self.batch)]))

    def _take_matrix(
        self, part: _Part, kind: str, pointer: int, more: Any, m: int, n: int, how: int = 0
    ) -> None:
        if "Ex" in self.form:
            kind, *more = self.library.dtype(more[0]), *more[1:]
        leading, *stride = more
        rows, columns = (n, m) if how else (m, n)
        self.library.check(0 <= how <= 2, leading >= max(1, rows))
        shape = (*[self.batch] * len(stride), rows, columns)
        if how == 2:
            self.conjugated.add(part.name)

        def make(at: int) -> Array:
            a = _work.view(at, kind, shape, (*stride, 1, leading))
            return a.swapaxes(-1, -2) if how else a

        if self.is_loop:
            self.late.append((part, _work.view(pointer, np.uintp, (self.batch,)), make))
        else:
            self.views.append((part, [make(pointer)]))

    def _used(self, views: list[tuple[_Part, list[Array]]]) -> tuple[list[Array], list[Array]]:
        """Answer what the work reads, and what it writes."""
        is_fresh = not self.on_device and self.values.get("beta") == 0
        unread = "=~" if is_fresh else "="
        reads = [a for part, some in views if not part.use or part.use not in unread for a in some]
        return reads, [a for part, some in views if part.use for a in some]

    def queue(self, name: str, function: Callable[[Any], Any]) -> None:
        """Queue `function`: it gets the parameters as attributes of one object."""
        reads, writes = self._used(self.views)
        reads += [pointers for _, pointers, _ in self.late]
        if self.on_device:
            reads += self.scalars
            writes += self.answers

        def run() -> None:
            views = [(part, [make(int(at)) for at in found]) for part, found, make in self.late]
            if views:
                _work.use(*self._used(views))
            views += self.views
            for i in range(self.batch if self.is_loop else 1):
                one = {part.name: some[i] for part, some in views}
                one.update({key: one[key].conj() for key in self.conjugated})
                function(SimpleNamespace(**self.values, **one))

        self.library.queue(name, run, reads, writes, bool(self.answers) and not self.on_device)
