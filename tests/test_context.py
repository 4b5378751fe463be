"""Contexts, each case in an interpreter of its own: exit status, and nothing on stderr."""

from __future__ import annotations

import functools
import itertools
import textwrap

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from conftest import ROOT
from pycuda import gpuarray

import bridge

USE = """
import bridge, cupy, numpy as np, pycuda.driver as drv
from pycuda import gpuarray
def use():
    a = gpuarray.to_gpu(np.arange(4.0))
    x = bridge.as_cupy(a)
    b = bridge.as_pycuda(cupy.asarray(np.arange(4.0)))
    assert (x.get() == b.get()).all()
"""

CUPY = "import cupy; cupy.zeros(3)"
FOUR = "cupy", "pycuda.autoinit", "pycuda.autoprimaryctx", "bridge.autoinit"
# Of each three of them, every order is in one of these.
FEW = [(0, 1, 2, 3), (0, 3, 2, 1), (1, 3, 0, 2), (2, 1, 0, 3), (2, 3, 0, 1), (3, 1, 2, 0)]


@pytest.mark.starts
@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, marks=() if order in FEW or len(order) < 3 else pytest.mark.nightly)
        for order in [*itertools.permutations(range(4)), (2,), (3,), (0, 2), (0, 3)]
    ],
    ids=lambda order: ", ".join(FOUR[index] for index in order),
)
def test_no_import_order_ends_in_an_abort_or_in_noise(python, order):
    lines = [*(f"import {FOUR[index]}" for index in order), *USE.splitlines(), "use()"]
    status = 3 * (order[-1] == 0)  # or the normal exit
    done = python(
        "import bridge, sys\ntry:\n    "
        + "\n    ".join(lines)
        + "\nexcept bridge.ContextError as error:\n    print(error)\n"
        + f"if {status}: sys.exit({status})"
    )
    assert (done.returncode, done.stderr) == (status, "")
    autoinit = [index for index in order if index in (1, 3)]
    assert ("ran before" in done.stdout) == (autoinit == [1, 3])


@pytest.mark.starts
@pytest.mark.parametrize("cupy_first", [True, False], ids=["CuPy first", "CuPy last"])
@pytest.mark.parametrize("switch", ["", "with cupy.cuda.Device(0): pass"], ids=["", "switched"])
def test_the_second_context_of_pycuda_autoinit_is_refused(python, cupy_first, switch):
    setup = "import pycuda.autoinit"
    order = [CUPY, setup] if cupy_first else [setup, CUPY]
    done = python(
        "\n".join([*order, USE, switch, "try: use()", "except bridge.ContextError as e: print(e)"])
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "`import bridge.autoinit` in place of pycuda.autoinit" in done.stdout


def test_a_device_that_is_not_there_is_said(python):
    done = python("import bridge.autoinit", devices=1, CUDA_DEVICE="99")
    assert "ContextError: PyCUDA cannot use a device" in done.stderr
    assert "CUDA_DEVICE is '99', and this process sees" in done.stderr


@pytest.mark.starts
def test_modules_that_import_pycuda_autoinit_later_get_the_shared_context(python):
    done = python("""
        import bridge.autoinit
        import pycuda.autoinit
        from pycuda.autoinit import context, device
        import pycuda
        assert pycuda.autoinit is bridge.autoinit
        assert context is bridge.autoinit.context
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_array_allocated_on_one_thread_is_freed_on_another(python):
    """PyCUDA frees only under the Context object it allocated under: there is one per device."""
    script = """
    import bridge.autoinit
    from sampling import on_a_thread
    box = [gpuarray.to_gpu(np.arange(4.0))]
    def drop():
        with bridge.primary_context():
            box.clear()
    on_a_thread(drop)
    """
    done = python(USE + textwrap.dedent(script))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_decorator_of_a_module_starts_no_cuda_before_a_fork(python):
    script = """
    import os
    @bridge.primary_context(0)
    def work():
        use()
    pid = os.fork()
    if pid == 0:
        work()
        work()  # a second time: CUDA was started by this process itself
        print("fine", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    """
    done = python(USE + textwrap.dedent(script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


@pytest.mark.parametrize("module", ["bridge.autoinit", "pycuda.autoprimaryctx"])
def test_a_context_of_autoinit_that_is_detached_is_made_anew(module, python):
    script = f"""
    import cupy, {module}
    x = cupy.ones(4)  # CuPy keeps the primary context
    use()
    {module}.context.detach()
    for _ in range(2):
        with bridge.primary_context() as context:
            assert context is not {module}.context
            use()
            bridge.as_pycuda(x).fill(3)
    assert x.sum() == 12
    """
    done = python(USE + textwrap.dedent(script))
    assert done.returncode == 0
    # PyCUDA's module, at exit, says that it cannot pop its own.
    assert done.stderr == "" or module != "bridge.autoinit"
    assert f"{ROOT}/bridge/" not in done.stderr  # its modules; the checkout may lie in any folder


def test_another_current_context_of_cuda_is_refused_where_streams_matter():
    a = gpuarray.GPUArray(3, np.float32)
    second = drv.Device(0).make_context()
    handle = second.handle
    second.pop()
    before = cupy.cuda.driver.ctxGetCurrent()
    stream = cupy.cuda.Stream(non_blocking=True)
    try:
        cupy.cuda.driver.ctxSetCurrent(handle)
        with stream, pytest.raises(bridge.ContextError, match="is not the primary"):
            bridge.as_cupy(a)
    finally:
        cupy.cuda.driver.ctxSetCurrent(before)
        second.detach()


def test_a_context_that_is_current_already_is_not_pushed_again(python):
    """It is where only PyCUDA has it current."""
    done = python("""
        import bridge, bridge.autoinit, cupy, pycuda.driver as drv
        before = drv.Context.get_current()
        with bridge.primary_context(), bridge.primary_context(0) as inner:
            assert inner is before
            drv.Context.pop()
            assert drv.Context.get_current() is None
            before.push()
        assert drv.Context.get_current() is before
        second = drv.Device(0).make_context()
        second.pop()
        cupy.cuda.driver.ctxSetCurrent(second.handle)
        with bridge.primary_context(0):
            assert cupy.cuda.driver.ctxGetCurrent() == before.handle
            drv.Context.pop()
            assert drv.Context.get_current() is before
            before.push()
        assert cupy.cuda.driver.ctxGetCurrent() == second.handle
        cupy.cuda.driver.ctxSetCurrent(before.handle)
        second.detach()
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_device_that_is_used_within_is_left(python):
    """Also where the context that is entered was current already."""
    done = python(
        """
        import bridge, bridge.autoinit, cupy, itertools, pycuda.driver as drv

        for before, entered in itertools.product((0, 1), (0, 1)):
            here = drv.Device(before), before
            with bridge.primary_context(before):
                with bridge.primary_context(entered):
                    cupy.cuda.Device(1 - entered).use()
                assert (drv.Context.get_device(), cupy.cuda.runtime.getDevice()) == here
                try:
                    with bridge.primary_context(entered):
                        cupy.cuda.Device(1 - entered).use()
                        raise KeyError
                except KeyError:
                    assert (drv.Context.get_device(), cupy.cuda.runtime.getDevice()) == here
        """,
        devices=2,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.alone
def test_what_a_decorated_function_returns_may_be_dropped_anywhere(python):
    done = python(
        """
        import numpy as np, bridge, pycuda.driver as drv
        from pycuda import gpuarray
        from pycuda.tools import DeviceMemoryPool
        from sampling import on_a_thread

        @bridge.primary_context()
        def make():
            pool = DeviceMemoryPool() if pooled else None
            allocator = pool.allocate if pooled else drv.mem_alloc
            return result(gpuarray.to_gpu(np.ones(1 << 20), allocator=allocator))

        @bridge.primary_context()
        def free():
            return drv.mem_get_info()[0]

        before, held = free(), []
        for pooled in (False, True):
            for result in (lambda a: a, lambda a: a[1:], lambda a: (a, 1), lambda a: [a],
                           lambda a: {"a": a}):
                on_a_thread(lambda: held.append(make()))
                on_a_thread(held.clear)
                assert before - free() < 1 << 20
    """
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("start", "within", "after"),
    [
        ("import bridge.autoinit", "drv.Context.pop()", "before.push()"),
        ("", "drv.Context.pop()", ""),
        (
            "import bridge.autoinit",
            "other = drv.Device(0).make_context()",
            "other.pop(); other.detach()",
        ),
        (
            "",
            "other = drv.Device(0).make_context()",
            "other.pop(); other.detach(); drv.Context.pop()",
        ),
    ],
    ids=["popped, current before", "popped", "pushed, current before", "pushed"],
)
def test_leaving_another_context_than_was_entered_is_refused(start, within, after, python):
    done = python(f"""
        import bridge, pycuda.driver as drv
        {start}
        drv.init()
        before = drv.Context.get_current()
        try:
            with bridge.primary_context():
                {within}
                there = drv.Context.get_current()
        except bridge.ContextError as error:
            print(error)
        assert drv.Context.get_current() == there
        {after}
        assert drv.Context.get_current() == before
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is not the one that was entered last on this thread" in done.stdout


@pytest.mark.parametrize("kind", [int, cupy.cuda.Device, drv.Device])
def test_primary_context_takes_any_kind_of_device(kind):
    with bridge.primary_context(kind(0)) as context:
        assert context is drv.Context.get_current()


TWO = """
import bridge, bridge.autoinit, cupy, numpy as np
from pycuda import gpuarray
"""


def two_devices(python, script):
    done = python(TWO + textwrap.dedent(script), devices=2)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_device_is_taken_from_the_pointer(python):
    out = two_devices(
        python,
        """
        with bridge.primary_context(1):
            a = gpuarray.to_gpu(np.arange(4.0))
            x = bridge.as_cupy(a)
            print(x.device.id, cupy.cuda.runtime.pointerGetAttributes(x.data.ptr).device)
            del a, x
        """,
    )
    assert out == "1 1\n"


def test_an_array_of_another_device_is_refused(python):
    """New or converted before, from either device; also by its DLPack device."""
    out = two_devices(
        python,
        """
        import itertools

        class Exporter:
            def __init__(self, device):
                self.device = device
            __dlpack_device__ = lambda self: (2, self.device)
            __dlpack__ = lambda self, **_: None

        for device, again in itertools.product((0, 1), (False, True)):
            for convert in (bridge.as_cupy, bridge.as_pycuda):
                with bridge.primary_context(device):
                    arrays = [gpuarray.to_gpu(np.arange(4.0)), cupy.arange(4), Exporter(device)]
                    arrays.append(bridge.as_pycuda(cupy.zeros(4)))
                    if again:
                        [convert(array) for array in arrays if not isinstance(array, Exporter)]
                with bridge.primary_context(1 - device):
                    for array in arrays:
                        for call in convert, bridge.wrap_pycuda(lambda _: array):
                            if call is convert or not isinstance(array, Exporter):
                                try:
                                    call(array)
                                except bridge.ContextError as error:
                                    print(device, error)
                with bridge.primary_context(device):
                    del arrays, array
        """,
    )
    lines = [line for line in out.splitlines() if " is on device " in line]
    assert len(lines) == 8 * 7
    for line in lines:
        device = int(line[0])
        assert f"is on device {device}, but device {1 - device} is current" in line
        assert f"`with bridge.primary_context({device}):`" in line


def test_an_array_that_is_refused_orders_nothing(python):
    out = two_devices(
        python,
        """
        here, there = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        with bridge.primary_context(1):
            arrays = [make() for make in 2 * [lambda: gpuarray.zeros(4, np.float32),
                                              lambda: bridge.as_pycuda(cupy.zeros(4))]]
            [bridge.as_cupy(array) for array in arrays[2:]]
        there.begin_capture()
        for array in arrays:
            try:
                with here:
                    bridge.as_cupy(array, stream=there)
            except bridge.ContextError as error:
                print("as_cupy: the array is on device 1, but device 0 is current" in str(error))
            assert not here.is_capturing()
        there.end_capture()
        with bridge.primary_context(1):
            del arrays, array
        """,
    )
    assert out == "True\n" * 4


def test_memory_that_has_moved_to_another_device_is_refused(python):
    out = two_devices(
        python,
        """
        import pycuda.driver as drv

        class Holder(drv.PointerHolderBase):
            def __init__(self, memory):
                super().__init__()
                self.memory = memory

            def get_pointer(self):
                return int(self.memory)

        here = drv.mem_alloc(16)
        with bridge.primary_context(1):
            there = drv.mem_alloc(16)
        for gpudata in here, Holder(here):
            a = gpuarray.GPUArray(4, np.float32, gpudata=gpudata)
            bridge.as_cupy(a)
            if gpudata is here:
                a.gpudata = there
            else:
                gpudata.memory = there
            try:
                bridge.as_cupy(a)
            except bridge.ContextError as error:
                print("is on device 1, but device 0 is current" in str(error))
        with bridge.primary_context(1):
            del a, there
        """,
    )
    assert out == "True\nTrue\n"


def test_a_context_that_cupy_makes_current_again_is_noticed(python):
    """PyCUDA works in its own context then, and CuPy in the primary one."""
    done = python("""
        import cupy, pycuda.driver as drv, bridge, bridge.autoinit
        x = cupy.zeros(3)
        own = drv.Device(0).make_context()
        own.pop()
        bridge.as_pycuda(x)
        own.push()
        cupy.cuda.Device(0).use()
        try:
            bridge.as_pycuda(x)
        except bridge.ContextError as error:
            print("is not the primary context" in str(error))
        drv.Context.pop()
        bridge.as_pycuda(x)
        own.detach()
    """)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_context_that_is_left_on_a_thread_is_popped_at_its_end(python):
    done = python("""
        from concurrent.futures import ThreadPoolExecutor
        import cupy, numpy as np, bridge, bridge.autoinit
        from pycuda import gpuarray
        enter = lambda: bridge.primary_context().__enter__()
        with ThreadPoolExecutor(2, initializer=enter) as pool:
            work = lambda i: float(bridge.as_cupy(gpuarray.to_gpu(np.full(4, i))).sum())
            print(*pool.map(work, range(4)))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.0 4.0 8.0 12.0\n", "")


LATE = """
def generator(): yield 1
async def coroutine(): pass
async def asynchronous_generator(): yield 1
class Callable:
    def __call__(self): yield 1
"""


@pytest.mark.parametrize("decorate", [bridge.primary_context(), bridge.wrap_pycuda])
@pytest.mark.parametrize(
    "name",
    ["generator", "coroutine", "asynchronous_generator", "Callable()", "partial(generator)"],
)
def test_a_function_whose_body_runs_after_the_call_is_refused(name, decorate):
    names = {"partial": functools.partial}
    exec(LATE, names)
    with pytest.raises(TypeError, match="with a yield or an await, whose body runs after the call"):
        decorate(eval(name, names))
