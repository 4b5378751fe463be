"""Contexts, each case in an interpreter of its own: exit status, and nothing on stderr."""

import itertools
import textwrap

import cupy
import pycuda.driver as drv
import pytest
from processes import ROOT, USUAL
from pycuda import gpuarray

import bridge

USE = f"""{USUAL}
def use():
    a = gpuarray.to_gpu(np.arange(4.0))
    x = bridge.as_cupy(a)
    b = bridge.as_pycuda(cupy.asarray(np.arange(4.0)))
    assert (x.get() == b.get()).all()
"""
AUTOINIT = "import bridge.autoinit\n"


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
    lines = ["import bridge, sys", "try:", *(f"    {line}" for line in lines)]
    lines += [
        "except bridge.ContextError as error: print(error)",
        f"if {status}: sys.exit({status})",
    ]
    done = python("\n".join(lines))
    assert (done.returncode, done.stderr) == (status, "")
    autoinit = [index for index in order if index in (1, 3)]
    assert ("ran before" in done.stdout) == (autoinit == [1, 3])


@pytest.mark.starts
@pytest.mark.parametrize("cupy_first", [True, False], ids=["CuPy first", "CuPy last"])
@pytest.mark.parametrize("switch", ["", "with cupy.cuda.Device(0): pass"], ids=["", "switched"])
def test_the_second_context_of_pycuda_autoinit_is_refused(python, cupy_first, switch):
    setup = "import pycuda.autoinit"
    lines = [CUPY, setup] if cupy_first else [setup, CUPY]
    lines += [USE, switch, "try: use()", "except bridge.ContextError as error: print(error)"]
    done = python("\n".join(lines))
    assert (done.returncode, done.stderr) == (0, "")
    assert "`import bridge.autoinit` in place of pycuda.autoinit" in done.stdout


def test_a_device_that_is_not_there_is_said(python):
    done = python("import bridge.autoinit", devices=1, CUDA_DEVICE="99")
    assert "ContextError: PyCUDA cannot use a device" in done.stderr
    assert "CUDA_DEVICE is '99', and this process sees" in done.stderr


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["array", "memory"])
@pytest.mark.parametrize("where", ["under its context", "after it", "on another thread"])
def test_memory_of_a_retained_context_is_freed(kind, where, python):
    """PyCUDA has another Context object than bridge for it, and frees under this one only."""
    done = python(f"""
        import cupy, pycuda.driver as drv
        from pycuda import gpuarray
        import bridge
        from other_threads import on_a_thread
        drv.init()
        context = drv.Device(0).retain_primary_context()
        held = []
        def make():
            if {kind == "array"}:
                return [a := gpuarray.empty(1 << 20, "u1"), bridge.as_cupy(a)]
            memory = drv.mem_alloc(1 << 20)
            return [bridge.as_cupy(memory, shape=1 << 20, dtype="u1")]
        def work():
            context.push()
            free, _ = drv.mem_get_info()
            held.extend(make())
            if "under" in {where!r}:
                held.clear()
            context.pop()
            if "after" in {where!r}:
                held.clear()
            return free
        with bridge.primary_context():  # makes bridge's object on the main thread
            cupy.cuda.Device().synchronize()
        free = on_a_thread(work)
        on_a_thread(held.clear)
        context.push()
        print(free - drv.mem_get_info()[0])
        context.pop()
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)


def test_an_array_allocated_on_one_thread_is_freed_on_another(run):
    """PyCUDA frees only under the Context object it allocated under: there is one per device."""
    run("""
        from other_threads import on_a_thread
        box = [gpuarray.to_gpu(np.arange(4.0))]
        on_a_thread(bridge.primary_context()(box.clear))
    """)


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
    a = gpuarray.GPUArray(3, "f4")
    second = drv.Device(0).make_context()
    second.pop()
    before = cupy.cuda.driver.ctxGetCurrent()
    stream = cupy.cuda.Stream(non_blocking=True)
    try:
        cupy.cuda.driver.ctxSetCurrent(second.handle)
        with stream, pytest.raises(bridge.ContextError, match="is not the primary"):
            bridge.as_cupy(a)
    finally:
        cupy.cuda.driver.ctxSetCurrent(before)
        second.detach()


def test_a_context_that_is_current_already_is_not_pushed_again(run):
    """It is where only PyCUDA has it current."""
    run("""
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


def test_a_device_that_is_used_within_is_left(run):
    """Also where the context that is entered was current already."""
    script = """
        import itertools

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
    """
    run(script, devices=2)


@pytest.mark.alone
def test_what_a_decorated_function_returns_may_be_dropped_anywhere(run):
    script = """
        from pycuda.tools import DeviceMemoryPool
        from other_threads import on_a_thread

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
    run(script, start="")


MAKE, UNMAKE = "other = drv.Device(0).make_context()", "other.pop(); other.detach(); "
LEFT = {
    "popped, current before": (AUTOINIT, "drv.Context.pop()", "before.push()"),
    "pushed": ("", MAKE, f"{UNMAKE}drv.Context.pop()"),
}


@pytest.mark.parametrize(("start", "within", "after"), LEFT.values(), ids=LEFT)
def test_leaving_another_context_than_was_entered_is_refused(start, within, after, run):
    script = f"""
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
    assert "is not the one that was entered last on this thread" in run(script, start)


@pytest.mark.parametrize("kind", [int, cupy.cuda.Device, drv.Device])
def test_primary_context_takes_any_kind_of_device(kind):
    with bridge.primary_context(kind(0)) as context:
        assert context is drv.Context.get_current()


def test_a_context_that_cupy_makes_current_again_is_noticed(run):
    """PyCUDA works in its own context then, and CuPy in the primary one."""
    out = run("""
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
    assert out == "True\n"


def test_a_context_that_is_left_on_a_thread_is_popped_at_its_end(run):
    out = run("""
        from concurrent.futures import ThreadPoolExecutor
        enter = lambda: bridge.primary_context().__enter__()
        with ThreadPoolExecutor(2, initializer=enter) as pool:
            work = lambda i: float(bridge.as_cupy(gpuarray.to_gpu(np.full(4, i))).sum())
            print(*pool.map(work, range(4)))
    """)
    assert out == "0.0 4.0 8.0 12.0\n"


LATE = """
def generator(): yield 1
async def coroutine(): pass
async def asynchronous_generator(): yield 1
class Callable:
    def __call__(self): yield 1
"""


@pytest.mark.parametrize(
    "decorate", [bridge.primary_context(), bridge.wrap_pycuda, lambda f: bridge.ordered()(f)]
)
@pytest.mark.parametrize("name", ["generator", "coroutine", "asynchronous_generator", "Callable()"])
def test_a_function_whose_body_runs_after_the_call_is_refused(name, decorate):
    exec(LATE, names := {})
    with pytest.raises(TypeError, match="with a yield or an await, whose body runs after the call"):
        decorate(eval(name, names))
