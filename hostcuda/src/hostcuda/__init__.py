"""A CUDA driver on host memory, so that the real PyCUDA and the real CuPy run without a GPU.

See README.md for what this can show and what it cannot.  PYTEST_DONT_REWRITE: it may be imported
before pytest is.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import glob
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from multiprocessing import set_forkserver_preload, spawn
from typing import Any, NamedTuple

from . import _build, _cupy, _libraries, _nvrtc
from ._build import CompileError
from ._cupy import Unsupported

__all__ = [
    "ORDERS",
    "CompileError",
    "Conflict",
    "Damage",
    "Launch",
    "Unsupported",
    "calls",
    "clear",
    "compile",
    "conflicts",
    "damaged",
    "failures",
    "finish",
    "host_waits",
    "install",
    "install_by_variable",
    "installed",
    "launches",
    "live_blocks",
    "pending",
    "recording",
    "revive",
    "settings",
]

MEMORY = "1GiB"  # of each device, unless told
_UNITS = {"": 1 << 20, "MiB": 1 << 20, "GiB": 1 << 30}  # of the option --memory
ORDERS = "latest", "earliest", "random"

_driver: Any = None
_settings = ""


class Launch(NamedTuple):
    """One kernel launch, as it reached the driver."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    arguments: bytes


class Block(NamedTuple):
    """One block of device memory."""

    ptr: int
    size: int
    device: int


class Damage(NamedTuple):
    """A block that was written after it had been freed."""

    ptr: int  # of the block
    size: int  # in bytes
    device: int
    by: str  # "a copy of 8 bytes"; "" if it is not known

    def __str__(self) -> str:
        """Say who wrote into what."""
        return (
            f"{self.by or 'something'} wrote into a block of {self.size} bytes after it was freed"
        )


class Conflict(NamedTuple):
    """Two pieces of work on the same bytes, which one of them writes, that nothing orders."""

    first: str  # "kernel scale of program.py:21 (on stream 2)"
    second: str  # was queued later
    memory: str  # "bytes 0 to 16 of a block of 512"

    def __str__(self) -> str:
        """Say what is not ordered, and what both use."""
        return f"{self.first} and {self.second} are not ordered, and both use {self.memory}"


def install(
    devices: int | None = None,
    compilers: bool = True,
    order: str | None = None,
    seed: int = 0,
    pool: bool | None = None,
    check: bool = False,
    memory: str | None = None,
) -> None:
    """Make this driver the process's CUDA driver; call it before PyCUDA and CuPy are imported.

    Processes that ``multiprocessing`` starts from this one get it, too.

    Parameters
    ----------
    devices
        How many devices there are; by default ``$HOSTCUDA_DEVICES``, or one. The first call counts.
    compilers
        Let kernels run here.  Without, the real NVRTC and nvcc compile them, if they are there, and
        their launches are recorded only.
    order, seed
        When queued work runs, where CUDA allows several moments: "latest", "earliest", or "random"
        with a seed.  By default ``$HOSTCUDA_ORDER``, such as "random:7", or the latest.  With
        "random", or with a seed, kernels run their threads and blocks in a random order, too.
    pool
        Let CuPy's arrays share blocks, as on a GPU.  Without, each array is a block: a write
        outside of an array, or into one that was dropped, is found.  By default without, if
        `check`.
    check
        Find work and threads that race, and kernels that read what nothing has written.  By default
        ``$HOSTCUDA_CHECK``.
    memory
        Of each device: "4GiB", "512MiB", or a number of MiB.  By default ``$HOSTCUDA_MEMORY``, or
        1 GiB.

    Raises
    ------
    Unsupported
        If a library is loaded already, or CuPy's insides are not those this was written for.
    """
    global _driver, _settings
    if _driver is not None:
        return
    for finder in [f for f in sys.meta_path if type(f).__module__ == "hostcuda_start"]:
        sys.meta_path.remove(finder)
    order, seed = _order(order, seed)
    if "pycuda._driver" in sys.modules:
        raise Unsupported(f"hostcuda: PyCUDA {_cupy.LOADED}")
    if check:
        os.environ["HOSTCUDA_CHECK"] = "1"
    if pool is None:
        pool = not _build.is_checking()
    size = _memory(memory)
    _own_caches()
    driver = _load(compilers)
    devices = _devices() if devices is None else devices
    driver.hostcuda_configure(devices, size)
    driver.hostcuda_begin(not compilers, _build.is_checking(), ORDERS.index(order), seed)
    if _build.is_checking():
        _tell_callers(driver)
    if path := os.environ.get("HOSTCUDA_FINDINGS"):
        driver.hostcuda_find_into(path.encode())
    atexit.register(driver.hostcuda_end_python)
    give_blocks = None if pool else functools.partial(_give_blocks, driver)
    _libraries.replace(driver, compilers, give_blocks)
    _cupy.replace_runtime(driver, compilers)
    if compilers:
        _translate_ptx(driver)
    _driver = driver
    drawn = f", seed {seed}" if order == "random" or seed else ""
    _settings = f"order {order}{drawn}, {devices} device{'s' * (devices != 1)}, "
    _settings += ("no pool" if not pool else "CuPy's pool") + ", checks" * _build.is_checking()
    prepare = spawn.get_preparation_data

    def prepare_with_driver(name: str) -> dict[str, Any]:
        installing = _InstallInSpawned(devices, compilers, order, seed, pool)
        return {**prepare(name), "hostcuda": installing}

    spawn.get_preparation_data = prepare_with_driver
    set_forkserver_preload([])  # a fork server would import the program before its children


def _order(order: str | None, seed: int) -> tuple[str, int]:
    """Answer the order of queued work, and its seed."""
    given = os.environ.get("HOSTCUDA_ORDER", "latest") if order is None else order
    number = ""
    if order is None:
        order, _, number = given.partition(":")
        seed = int(number) if number.isdecimal() else seed
    if order not in ORDERS or not (number or "0").isdecimal():
        raise Unsupported(
            f"hostcuda: the order is {given!r}; {', '.join(ORDERS)} are known, in HOSTCUDA_ORDER "
            "also random:7"
        )
    return order, seed


def _memory(given: str | None) -> int:
    """Answer the bytes of each device."""
    if given is not None:
        os.environ["HOSTCUDA_MEMORY"] = given
    memory = os.environ.get("HOSTCUDA_MEMORY", MEMORY)
    size = re.fullmatch(r"([1-9]\d*) ?(|MiB|GiB)", memory)
    if not size:
        raise Unsupported(
            f"hostcuda: the memory is {memory!r}; give it as 4GiB, 512MiB, or a number of MiB"
        )
    return int(size[1]) * _UNITS[size[2]]


def _devices() -> int:
    """Answer how many devices the environment asks for."""
    count = os.environ.get("HOSTCUDA_DEVICES", "1")
    if not count.isdecimal() or not int(count):
        raise Unsupported(f"hostcuda: HOSTCUDA_DEVICES is {count!r}; give a number, from 1 on")
    return int(count)


def _own_caches() -> None:
    """Keep kernels of the libraries' caches apart from those of a GPU or another translator."""
    key = _build.compiler_key()[:16]
    for library in ("cupy", "pycuda"):
        cache = _build.cache_folder() / f"{library}-{key}"
        cache.mkdir(exist_ok=True)
        for file in cache.glob("*.cubin"):  # PyCUDA would load what a process that died left empty
            if not file.stat().st_size:
                file.unlink(missing_ok=True)
        os.environ[f"{library.upper()}_CACHE_DIR"] = str(cache)


_PARAMETERS = {  # of the driver's functions: results and parameters
    "calls": (ctypes.c_long,),
    "host_waits": (ctypes.c_long,),
    "pending": (ctypes.c_long, ctypes.c_ssize_t),
    "failures": (ctypes.c_size_t, ctypes.c_bool, ctypes.c_void_p, ctypes.c_size_t),
    "configure": (None, ctypes.c_int, ctypes.c_size_t),
    "begin": (None, ctypes.c_bool, ctypes.c_bool, ctypes.c_int, ctypes.c_ulonglong),
    "gather": (None, ctypes.c_bool),
    "ask": (None, ctypes.c_void_p),
    "find_into": (None, ctypes.c_char_p),
    "loud": (ctypes.c_bool, ctypes.c_bool),
}
_ROWS = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t
_PARAMETERS |= dict.fromkeys(("live_blocks", "damaged", "launches", "conflicts"), _ROWS)


def _load(compilers: bool) -> Any:
    """Load the driver, built first if need be, and say where compilers are."""
    try:
        built = _build.driver()
        if compilers:
            _nvrtc.library()
            _build.vendor_folders()
    except FileNotFoundError as error:
        raise Unsupported(str(error)) from None
    if compilers:
        os.environ["HOSTCUDA_PYTHON"] = sys.executable
        if importlib.util.find_spec("pycuda"):  # it needs an nvcc
            os.environ["NVCC"] = f"{_build.FOLDER}/bin/nvcc"  # CuPy's
            os.environ["PATH"] = f"{_build.FOLDER}/bin{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["CUPY_ACCELERATORS"] = ""  # CUB's reductions are not tried
    driver = ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL)
    for name, (result, *parameters) in _PARAMETERS.items():
        function = getattr(driver, f"hostcuda_{name}")
        function.restype, function.argtypes = result, parameters
    return driver


def install_by_variable(*arguments: Any, **keywords: Any) -> bool:
    """Install the driver if ``$HOSTCUDA`` is 1, or, beside a GPU, "force"; say whether it is.

    Each process does so when it imports PyCUDA or CuPy, if hostcuda is installed in its Python.
    The arguments are those of `install`.
    """
    value = os.environ.get("HOSTCUDA", "")
    if installed() or value in ("", "0"):
        return installed()
    if value not in ("1", "force"):
        raise Unsupported(
            f"hostcuda: HOSTCUDA is {value!r}; give 1 or 0, or force beside a GPU (the "
            "number of devices is HOSTCUDA_DEVICES)"
        )
    if value == "1" and glob.glob("/dev/nvidia[0-9]*"):
        text = "hostcuda: this machine has a GPU, which is used; HOSTCUDA=force uses host memory"
        print(text, file=sys.stderr)
        return False
    install(*arguments, **keywords)
    return True


def load_ipython_extension(shell: Any) -> None:
    """Install the driver in a notebook: ``%load_ext hostcuda``."""
    install()
    print_damage()


def _give_blocks(driver: Any, cupy: Any) -> None:
    """Give each array of CuPy's a block, whose free is work on the stream where it was made."""
    from . import _work

    direct = ctypes.PyDLL(None, handle=driver._handle)  # raises Python's exceptions
    allocate, free = direct.hostcuda_allocate, direct.cuMemFree_v2
    allocate.restype, allocate.argtypes = ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_void_p]
    free.argtypes = [ctypes.c_size_t]

    class Owner:
        def __init__(self, pointer: int) -> None:
            self.pointer = pointer

        def __del__(self, free: Any = free) -> None:
            free(self.pointer)

    def give(size: int) -> Any:
        pointer = allocate(size, _work.current_stream()) if size else 0
        device = cupy.cuda.runtime.getDevice()
        memory = cupy.cuda.UnownedMemory(pointer, size, Owner(pointer), device)
        return cupy.cuda.MemoryPointer(memory, 0)

    cupy.cuda.set_allocator(give)


def _translate_ptx(driver: Any) -> None:
    """Let the driver load PTX."""

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    def translate(text: bytes) -> None:
        image, problem = b"", "hostcuda: the translation of PTX was interrupted"
        try:
            image = _build.compile_ptx(text.decode(errors="replace")).read_bytes()
            problem = ""
        except Exception as error:  # C++ cannot pass it on
            problem = str(error)
        finally:
            driver.hostcuda_translated(image, ctypes.c_size_t(len(image)), problem.encode())

    driver.hostcuda_translator(translate)
    atexit.register(lambda translate=translate: driver.hostcuda_translator(None))


_MAIN = os.path.join(os.path.dirname(__file__), "__main__.py")
_LIBRARIES = {"bridge", "cuda", "cupy", "cupyx", "hostcuda", "numba", "pycuda", "pytools"}
_LIBRARIES |= {"numba_cuda_mlir"}


def _tell_callers(driver: Any) -> None:
    """Let the driver know which lines of the program call it."""

    @ctypes.CFUNCTYPE(None)
    def ask() -> None:
        frame: Any = sys._getframe()
        while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
            frame = frame.f_back
        if frame:
            name = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            is_ours = frame.f_code.co_filename == _MAIN  # the program's frames are gone
            driver.hostcuda_caller(b"the end of the program" if is_ours else name.encode())

    driver.hostcuda_ask(ask)
    # It also keeps `ask`.
    atexit.register(lambda ask=ask: driver.hostcuda_ask(None))


class _InstallInSpawned:
    """Calls `install` in the process that unpickles it, before that imports the program."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return _install_in_spawned, (_driver.hostcuda_loud(False), *self.arguments)


def _install_in_spawned(loud: bool, *arguments: Any) -> None:
    install(*arguments)
    if loud:
        print_damage()


def installed() -> bool:
    """Say whether this driver is the process's CUDA driver."""
    return _driver is not None


def settings() -> str:
    """Say how the driver was installed: "order latest, 1 device, CuPy's pool"."""
    return _settings


class _Row(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("device", ctypes.c_int),
        ("by", ctypes.c_char_p),
    ]


class _LaunchRow(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_size_t),
        ("arguments", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    ]


def _rows(query: Any, kind: Any) -> list[Any]:
    room = query(None, 0)
    rows = (kind * room)()
    return list(rows[: query(rows, room)])


def live_blocks() -> list[Block]:
    """Answer the blocks of device memory that are allocated now."""
    return [Block(r.start, r.size, r.device) for r in _rows(_driver.hostcuda_live_blocks, _Row)]


def damaged() -> list[Damage]:
    """Answer which blocks were written after they had been freed, other than by kernels."""
    return [
        Damage(r.start, r.size, r.device, (r.by or b"").decode())
        for r in _rows(_driver.hostcuda_damaged, _Row)
    ]


def failures(untold: bool = True) -> list[str]:
    """Answer why kernels failed, and what checks found.

    If `untold`, leave out failures for which a call has raised an error.
    """
    rows = (ctypes.c_char_p * 16)()
    count = _driver.hostcuda_failures(untold, rows, len(rows))
    return [(rows[i] or b"").decode() for i in range(min(count, len(rows)))]


def print_damage() -> None:
    """From now on, print damage and failures of kernels when the work runs that they are of."""
    _driver.hostcuda_loud(True)


def finish() -> None:
    """Run all queued work."""
    _driver.hostcuda_finish()


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Let `launches` answer what is launched in a ``with`` block."""
    clear()
    _driver.hostcuda_record(True)
    try:
        yield
    finally:
        _driver.hostcuda_record(False)


def launches() -> list[Launch]:
    """Answer the launches of kernels in the last `recording`, also by graphs, in their order."""
    return [
        Launch(
            r.name.decode(),
            tuple(r.grid),
            tuple(r.block),
            r.shared,
            r.stream,
            ctypes.string_at(r.arguments, r.bytes),
        )
        for r in _rows(_driver.hostcuda_launches, _LaunchRow)
    ]


@contextlib.contextmanager
def conflicts() -> Iterator[list[Conflict]]:
    """Find work in a ``with`` block that nothing orders; the list is filled at the block's end.

    This depends on the calls alone, not on when work happens to run.  All queued work runs before
    the block, and at its end.  Blocks cannot be nested.

    Raises
    ------
    RuntimeError
        If the driver was installed without `check`: it does not know what kernels use.
    """
    if not _build.is_checking():
        raise RuntimeError(
            "hostcuda: conflicts() must know what kernels use: call install(check=True), or run "
            "with --check (of pytest: --hostcuda-check), or HOSTCUDA_CHECK=1"
        )
    found: list[Conflict] = []
    _driver.hostcuda_finish()
    _driver.hostcuda_gather(True)
    try:
        yield found
    finally:
        _driver.hostcuda_finish()
        texts = [row.decode() for row in _rows(_driver.hostcuda_conflicts, ctypes.c_char_p)]
        found += map(Conflict._make, zip(*[iter(texts)] * 3, strict=True))
        _driver.hostcuda_gather(False)


def clear() -> None:
    """Forget the launches and waits so far, and the damage to blocks that have been freed."""
    _driver.hostcuda_clear()


def compile(source: str, options: Iterable[str] = ()) -> bytes:
    """Compile CUDA C; answer an image for ``cuModuleLoadData``.  Raises CompileError."""
    return _build.compile(source, (_nvrtc.ARCHITECTURE, *options)).image


def calls() -> int:
    """Answer how often an entry point of the driver was called, also by another one."""
    return int(_driver.hostcuda_calls())


def host_waits() -> int:
    """Answer how often the host had to wait for queued work."""
    return int(_driver.hostcuda_host_waits())


def revive() -> None:
    """Let contexts whose kernel failed be used again, so that the next test can run."""
    _driver.hostcuda_revive()


def pending(stream: int | None = None) -> int:
    """Answer how many operations are queued and have not run, on one stream handle or on all."""
    return int(_driver.hostcuda_pending(-1 if stream is None else stream))
