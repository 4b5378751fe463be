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
RIGHT = {
    "bridge.autoinit": "import bridge.autoinit",
    "pycuda.autoprimaryctx": "import pycuda.autoprimaryctx",
    "bridge.autoinit, then pycuda.autoinit": "import bridge.autoinit\nimport pycuda.autoinit",
    "bridge.autoinit, then autoprimaryctx": "import bridge.autoinit\nimport pycuda.autoprimaryctx",
    "autoprimaryctx, then bridge.autoinit": "import pycuda.autoprimaryctx\nimport bridge.autoinit",
}
ENDINGS = {"normal exit": ("", 0), "sys.exit": ("import sys; sys.exit(3)", 3)}


@pytest.mark.starts
@pytest.mark.parametrize("cupy_first", [True, False], ids=["CuPy first", "CuPy last"])
@pytest.mark.parametrize("setup", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize(("ending", "status"), ENDINGS.values(), ids=ENDINGS)
def test_the_primary_context_is_shared(python, setup, cupy_first, ending, status):
    order = [CUPY, setup] if cupy_first else [setup, CUPY]
    done = python("\n".join([*order, USE, "use()", ending]))
    assert (done.returncode, done.stderr) == (status, "")


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
    done = python(
        """
        import bridge.autoinit
        import pycuda.autoinit
        from pycuda.autoinit import context, device
        import pycuda
        assert pycuda.autoinit is bridge.autoinit
        assert context is bridge.autoinit.context
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("main", ["import bridge.autoinit", ""], ids=["autoinit", "no context"])
def test_worker_threads_work_under_primary_context(main, python):
    done = python(
        f"""{main}
{USE}
import concurrent.futures

def work(_):
    with bridge.primary_context():
        use()

with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_array_allocated_on_one_thread_is_freed_on_another(python):
    """PyCUDA frees only under the Context object it allocated under: there is one per device."""
    script = """
    import threading, bridge.autoinit
    box = [gpuarray.to_gpu(np.arange(4.0))]
    def drop():
        with bridge.primary_context():
            box.clear()
    thread = threading.Thread(target=drop); thread.start(); thread.join()
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
    done = python(
        """
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
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("entered", [0, 1])
def test_a_device_that_is_used_within_is_left(before, entered, python):
    """Also where the context that is entered was current already."""
    done = python(
        f"""
        import bridge, bridge.autoinit, cupy, pycuda.driver as drv

        def devices():
            return drv.Context.get_device() == drv.Device({before}), cupy.cuda.runtime.getDevice()

        with bridge.primary_context({before}):
            with bridge.primary_context({entered}):
                cupy.cuda.Device(1 - {entered}).use()
            print(*devices())
            try:
                with bridge.primary_context({entered}):
                    cupy.cuda.Device(1 - {entered}).use()
                    raise KeyError
            except KeyError:
                print(*devices())
        """,
        devices=2,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"True {before}\n" * 2, "")


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
    done = python(
        f"""
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
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "is not the one that was entered last on this thread" in done.stdout


@pytest.mark.parametrize(
    "allocator", ["drv.mem_alloc", "DeviceMemoryPool().allocate"], ids=["mem_alloc", "pool"]
)
@pytest.mark.parametrize("result", ["a", "a[1:]", "(a, 1)", "[a]", "{'a': a}"])
@pytest.mark.alone
def test_what_a_decorated_function_returns_may_be_dropped_anywhere(python, result, allocator):
    done = python(
        f"""
        import threading, numpy as np, bridge, pycuda.driver as drv
        from pycuda import gpuarray
        from pycuda.tools import DeviceMemoryPool

        @bridge.primary_context()
        def make():
            a = gpuarray.to_gpu(np.ones(1 << 20), allocator={allocator})
            return {result}

        @bridge.primary_context()
        def free():
            return drv.mem_get_info()[0]

        before, held = free(), []
        for _ in range(2):
            thread = threading.Thread(target=lambda: held.append(make()))
            thread.start()
            thread.join()
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
        print(before - free() < 1 << 20)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


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


@pytest.mark.parametrize("call", ["bridge.as_cupy(a)", "bridge.wrap_pycuda(lambda: a)()"])
def test_a_view_of_an_array_on_another_device_is_refused(python, call):
    out = two_devices(
        python,
        f"""
        with bridge.primary_context(1):
            a = bridge.as_pycuda(cupy.zeros(4))
        try:
            {call}
        except bridge.ContextError as error:
            print(error)
        with bridge.primary_context(1):
            del a
        """,
    )
    assert "is on device 1, but device 0 is current" in out


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("converted", [False, True], ids=["new", "converted before"])
@pytest.mark.parametrize("array", ["a", "x"])
@pytest.mark.parametrize("convert", ["as_cupy", "as_pycuda"])
def test_an_array_of_another_device_is_refused(python, convert, array, converted, device):
    out = two_devices(
        python,
        f"""
        with bridge.primary_context({device}):
            a = gpuarray.to_gpu(np.arange(4.0))
            x = cupy.arange(4)
            if {converted}:
                bridge.{convert}({array})
        with bridge.primary_context({1 - device}):
            try:
                bridge.{convert}({array})
            except bridge.ContextError as error:
                print(error)
        with bridge.primary_context({device}):
            del a
        """,
    )
    assert f"is on device {device}, but device {1 - device} is current" in out
    assert f"`with bridge.primary_context({device}):`" in out


@pytest.mark.parametrize(
    "array", ["gpuarray.zeros(4, np.float32)", "bridge.as_pycuda(cupy.zeros(4))"]
)
@pytest.mark.parametrize("converted", [False, True], ids=["new", "converted before"])
def test_an_array_that_is_refused_orders_nothing(python, array, converted):
    out = two_devices(
        python,
        f"""
        with bridge.primary_context(1):
            a = {array}
            if {converted}:
                bridge.as_cupy(a)
        here, there = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        there.begin_capture()
        try:
            with here:
                bridge.as_cupy(a, stream=there)
        except bridge.ContextError as error:
            print(error)
        print(here.is_capturing())
        there.end_capture()
        with bridge.primary_context(1):
            del a
        """,
    )
    assert out.startswith("as_cupy: the array is on device 1, but device 0 is current")
    assert out.endswith("\nFalse\n")


@pytest.mark.parametrize(
    ("gpudata", "move"),
    [("here", "a.gpudata = there"), ("Holder(here)", "a.gpudata.memory = there")],
)
def test_memory_that_has_moved_to_another_device_is_refused(python, gpudata, move):
    out = two_devices(
        python,
        f"""
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
        a = gpuarray.GPUArray(4, np.float32, gpudata={gpudata})
        bridge.as_cupy(a)
        {move}
        try:
            bridge.as_cupy(a)
        except bridge.ContextError as error:
            print(error)
        with bridge.primary_context(1):
            del a, there
        """,
    )
    assert "is on device 1, but device 0 is current" in out


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("convert", ["as_cupy", "as_pycuda"])
def test_a_dlpack_export_of_another_device_is_refused(python, convert, device):
    out = two_devices(
        python,
        f"""
        class Exporter:
            __dlpack_device__ = lambda self: (2, {device})
            __dlpack__ = lambda self, **_: None
        with bridge.primary_context({1 - device}):
            try:
                bridge.{convert}(Exporter())
            except bridge.ContextError as error:
                print(error)
        """,
    )
    assert f"is on device {device}, but device {1 - device} is current" in out


def test_cupy_on_another_device_than_pycuda_is_refused(python):
    out = two_devices(
        python,
        """
        a = gpuarray.to_gpu(np.arange(4.0))
        with cupy.cuda.Device(1):
            cupy.zeros(3)
            try:
                bridge.as_cupy(a)
            except bridge.ContextError as error:
                print(error)
        print(bridge.as_cupy(a).device.id)
        """,
    )
    assert "PyCUDA's current context is on device 0, CuPy's current one is on device 1" in out
    assert out.endswith("0\n")


FOUR = "cupy", "pycuda.autoinit", "pycuda.autoprimaryctx", "bridge.autoinit"


@pytest.mark.starts
@pytest.mark.parametrize("order", [*itertools.permutations(FOUR)], ids=", ".join)
def test_no_import_order_ends_in_an_abort_or_in_noise(python, order):
    lines = [f"import {name}" for name in order]
    script = "import bridge\ntry:\n    " + "\n    ".join(lines)
    script += "\nexcept bridge.ContextError as error:\n    print(error)\n"
    done = python(script)
    assert (done.returncode, done.stderr) == (0, "")
    wrong = order.index("pycuda.autoinit") < order.index("bridge.autoinit")
    assert ("ran before" in done.stdout) == wrong


def test_a_context_that_cupy_makes_current_again_is_noticed(python):
    """PyCUDA works in its own context then, and CuPy in the primary one."""
    done = python(
        """
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
        """
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_context_that_is_left_on_a_thread_is_popped_at_its_end(python):
    done = python(
        """
        from concurrent.futures import ThreadPoolExecutor
        import cupy, numpy as np, bridge, bridge.autoinit
        from pycuda import gpuarray
        enter = lambda: bridge.primary_context().__enter__()
        with ThreadPoolExecutor(2, initializer=enter) as pool:
            work = lambda i: float(bridge.as_cupy(gpuarray.to_gpu(np.full(4, i))).sum())
            print(*pool.map(work, range(4)))
        """
    )
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
