"""Put this folder's driver under CuPy, which links the CUDA runtime statically.

CuPy's modules bind the C functions of ``cupy_backends.cuda.api.runtime`` when they are imported,
by name and signature. So that module is imported first and its functions are replaced; the rest of
CuPy then binds the replacements. This leans on CuPy's insides: for tests only, and it refuses to
guess.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import inspect
import itertools
import operator
import re
import sys
from typing import Any

from . import _build, _nvrtc, _properties

WRITTEN_FOR = "CuPy 13.6 and 14"
LOADED = "is loaded already: set HOSTCUDA=1 before Python starts, or call install() earlier"
NEW_IN_14 = {  # nothing in CuPy 13 calls them
    "_launchHostFuncUnmanaged",
    "pointerGetMemoryType",
    "streamCreateWithPriority",
    "streamGetFlags",
    "streamGetPriority",
}

_C_TYPES = {
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "intptr_t": ctypes.c_ssize_t,
    "uintmax_t": ctypes.c_size_t,
    "float": ctypes.c_float,
}


class Unsupported(RuntimeError):  # noqa: N818 (it says what it is)
    """This CuPy, or the moment of the call, does not fit."""


class _Entry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("signature", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
    ]


def _capsule_api() -> tuple[Any, Any]:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return name, new


def _c_type(name: str) -> Any:
    if name.endswith("*"):  # PyObject, or the struct of an extension type
        return ctypes.py_object
    return _C_TYPES.get(name, ctypes.c_int)  # int and enums


def _python_function(original: Any, signature: str, address: int) -> Any:
    """Wrap a C function of this signature, to be called as the Python function `original` is."""
    result, parameters = re.fullmatch(r"(.*?) ?\((.*)\)", signature).groups()
    cythons = "__pyx_skip_dispatch", "__pyx_optional_args"
    kinds = [kind for kind in parameters.split(", ") if not kind.endswith(cythons)]
    c_types = [_c_type(kind) for kind in (result, *kinds)]
    call = ctypes.PYFUNCTYPE(*c_types, ctypes.c_int, ctypes.c_void_p)(address)
    outline = _outline(original)

    def function(*args: Any, **keywords: Any) -> Any:
        given = [
            value if c_type is ctypes.py_object else operator.index(value)
            for value, c_type in itertools.zip_longest(
                outline.bind(*args, **keywords).args, c_types[1:]
            )
        ]
        # At most one argument is optional: then there is a struct of the count and its value.
        options = (ctypes.c_int * 2)(1, given[-1]) if len(given) > len(kinds) else None
        return call(*given[: len(kinds)], 0, options)  # 0: Cython's skip_dispatch

    function.__name__, function.__doc__ = original.__name__, original.__doc__
    function.__code__ = function.__code__.replace(co_name=original.__name__)  # in tracebacks
    function.__signature__ = outline  # type: ignore[attr-defined]
    return function


def _outline(original: Any) -> inspect.Signature:
    """Read the parameters that Cython tells: "mallocArray(size_t width, unsigned int flags=0)"."""
    told = re.findall(r"(\w+)(=[^,)]+)?[,)]", original.__doc__.partition("\n")[0])
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(name, either, default=default[1:] or inspect.Parameter.empty)
            for name, default in told
        ]
    )


def replace_runtime(driver: ctypes.CDLL, compilers: bool) -> None:
    """Replace the runtime functions that CuPy's modules are about to bind."""
    names = "cupy", "cupy-cuda12x", "cupy-cuda13x"
    found = [one for name in names for one in importlib.metadata.distributions(name=name)]
    if not found:
        return  # PyCUDA alone
    if "cupy" in sys.modules:
        raise Unsupported(f"hostcuda: CuPy {LOADED}")
    name, version = found[0].name, found[0].version
    misfit = f"hostcuda: {name} {version} does not fit; this was written for {WRITTEN_FOR}"

    import cupy_backends.cuda.api.runtime as runtime

    get_name, new_capsule = _capsule_api()
    driver.hostcuda_runtime.restype = ctypes.POINTER(_Entry)
    driver.hostcuda_runtime.argtypes = [ctypes.py_object] * 3
    entries = driver.hostcuda_runtime(
        runtime.CUDARuntimeError, runtime.PointerAttributes, _properties.answering(runtime)
    )
    api = runtime.__pyx_capi__
    signatures = {key: get_name(capsule) for key, capsule in api.items()}
    replaced = {}
    for entry in itertools.takewhile(operator.attrgetter("name"), entries):
        key = entry.name.decode()
        if key in NEW_IN_14 and key not in signatures:
            continue
        if signatures.get(key) != entry.signature:
            raise Unsupported(f"{misfit} ({key}: {signatures.get(key)!r})")
        replaced[key] = (entry.signature, entry.function)
    # What has no replacement refuses, in place of asking a driver that is not there.
    for key, signature in signatures.items():
        if key in replaced or key == "check_status":
            continue
        for start, refusal in ((b"PyObject *(", "object"), (b"intptr_t (", "handle")):
            if signature.startswith(start):
                address = ctypes.cast(
                    getattr(driver, "hostcuda_refuse_" + refusal), ctypes.c_void_p
                )
                replaced[key] = (signature, address.value)
    if compilers:
        replace_nvrtc()
    for key, (signature, address) in replaced.items():
        # A capsule keeps its name by address: the bytes must live as long as the process.
        _KEEP.append(signature)
        api[key] = new_capsule(address, signature, None)
        if hasattr(runtime, key):
            function = _python_function(getattr(runtime, key), signature.decode(), address)
            setattr(runtime, key, function)
    refuse = ctypes.PYFUNCTYPE(ctypes.py_object)(("hostcuda_refuse_object", driver))
    for key in dir(runtime):
        if key.startswith("ipc"):  # Python functions alone, over the runtime that CuPy links
            call = lambda *args, **keywords: refuse()  # noqa: E731
            call.__code__ = call.__code__.replace(co_name=key)  # by which pytest's report names it
            setattr(runtime, key, call)
    disable = ctypes.cast(driver.hostcuda_disable_peer, ctypes.c_void_p).value or 0
    key = "deviceDisablePeerAccess"
    setattr(runtime, key, _python_function(getattr(runtime, key), "PyObject *(int)", disable))


_KEEP: list[bytes] = []


class _Program:
    """One NVRTC program, compiled for the host."""

    def __init__(self, source: str, name: str, headers: Any, names: Any) -> None:
        self.source, self.name = source, name or "default_program"  # NVRTC's own
        self.options: Any = ()
        names = [name.decode() if isinstance(name, bytes) else name for name in names]
        self.headers = dict(zip(names, headers, strict=True))
        self.expressions: list[str] = []
        self.compiled = _build.Compiled(b"", "", {})


def replace_nvrtc() -> None:
    """Compile what CuPy gives to NVRTC for the host: its functions, before CuPy uses them."""
    import cupy_backends.cuda.libs.nvrtc as nvrtc

    programs: dict[int, _Program] = {}
    numbers = itertools.count(1)

    def create_program(source: str, name: str, headers: Any, include_names: Any) -> int:
        key = next(numbers)
        programs[key] = _Program(source, name, headers, include_names)
        return key

    def compile_program(key: int, options: Any = ()) -> None:
        program = programs[key]
        if "curand" in program.source:  # nvcc finds its headers in the toolkit
            options = (*options, *(f"-I{folder}" for folder in _build.vendor_folders()))
        program.options = options
        try:
            program.compiled = _build.compile(
                program.source, options, program.expressions, program.headers
            )
        except _build.CompileError as error:
            program.compiled = _build.Compiled(b"", str(error), {})
            failure = nvrtc.NVRTCError.__new__(nvrtc.NVRTCError)
            failure.args, failure.status = ("NVRTC_ERROR_COMPILATION (6)",), 6
            raise failure from None  # the class asks the library for its message

    def get_ptx(key: int) -> bytes:
        # CuPy compiles an empty source to learn the compiler's version from the comments.
        program = programs[key]
        if not program.source:
            return f"// {_build.compiler_key()}\n".encode()
        made = _build.check(program.source, program.options, program.expressions, program.headers)
        return made.ptx.encode()

    def get_log(key: int) -> str:
        program = programs[key]
        return program.compiled.log.replace(_nvrtc.FILE, program.name)

    replacements = {
        "getVersion": _nvrtc.version,
        "createProgram": create_program,
        "destroyProgram": lambda key: programs.pop(key, None),
        "compileProgram": compile_program,
        "getPTX": get_ptx,
        "getCUBIN": lambda key: programs[key].compiled.image,
        "getProgramLog": get_log,
        "addNameExpression": lambda key, name: programs[key].expressions.append(name),
        "getLoweredName": lambda key, name: programs[key].compiled.lowered[name],
    }
    for name, function in replacements.items():
        if not hasattr(nvrtc, name):
            raise Unsupported(f"hostcuda: no nvrtc.{name}; this was written for {WRITTEN_FOR}")
        setattr(nvrtc, name, function)
