"""What goes to another process: modules and their functions, wrapped functions, contexts."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref

import cupy
import numpy as np
import pycuda.compiler
import pycuda.driver as drv
import pytest
from conftest import ON_GPU, run_python

import bridge

SOURCE = """
__global__ void add(float *x, float a, int n) { if (threadIdx.x < n) x[threadIdx.x] += a; }
__global__ void scale(float *x, float a, int n) { if (threadIdx.x < n) x[threadIdx.x] *= a; }
"""


@pytest.fixture(scope="module")
def module():
    return bridge.SourceModule(SOURCE)


def there_and_back(value):
    return pickle.loads(pickle.dumps(value))


def test_a_module_is_its_source(module):
    add = there_and_back(module).get_function("add")
    x = cupy.zeros(4, "f")
    add(x, 2, 4, block=32)
    assert x.get().tolist() == [2] * 4


def test_a_function_comes_with_its_module(module):
    add, scale = there_and_back([module.get_function("add"), module.get_function("scale")])
    x = cupy.ones(4, "f")
    add(x, 2, 4, block=32)
    scale(x, 2, 4, block=32)
    assert x.get().tolist() == [6] * 4
    assert add._module is scale._module


def test_a_function_stays_prepared(module):
    add = there_and_back(module.get_function("add").prepare("Pfi"))
    x = cupy.zeros(4, "f")
    add.prepared_call(1, 32, x.data.ptr, 2.0, 4)
    assert x.get().tolist() == [2] * 4


def test_arguments_are_checked_as_before(module):
    add = there_and_back(module.get_function("add"))
    with pytest.raises(TypeError, match=r"add: argument 0 \(`float \*x`\) is an array of float64"):
        add(cupy.zeros(4), 2, 4, block=32)


def test_its_attributes_are_there(module):
    add = module.get_function("add")
    assert there_and_back(add).num_regs == add.num_regs
    assert there_and_back(add).name == "add"


def test_to_look_at_one_does_not_load_it(module):
    add = there_and_back(module.get_function("add"))
    assert "add(...)" in repr(add)
    assert not hasattr(add, "no_such")
    inspect.signature(add)
    assert "_load" not in vars(add)
    assert add.num_regs > 0
    assert repr(add) == repr(module.get_function("add"))


def test_its_state_is_what_is_restored(module):
    assert {*vars(module.get_function("add"))} == {*bridge.function._STATE, "name"}


def test_a_refused_preparation_leaves_no_trace(module):
    add = module.get_function("add").prepare("Pfi")
    with pytest.raises(TypeError, match="1 types prepared for 3"):
        add.prepare("P")
    x = cupy.zeros(4, "f")
    there_and_back(add).prepared_call(1, 32, x.data.ptr, 2.0, 4)
    assert x.get().tolist() == [2] * 4


def test_a_kernel_without_parameters_stays_prepared():
    none = bridge.SourceModule("__global__ void none() { }").get_function("none").prepare("")
    there_and_back(none).prepared_call(1, 1)


def test_what_arrives_often_is_loaded_once(module):
    data = pickle.dumps(module.get_function("add"))
    one, two = (pickle.loads(data)._module for _ in range(2))
    loaded = one._module(0)
    assert two._module(0) is loaded


WITH_VARIABLES = """
__constant__ float w[3];
__device__ int count;
__global__ void read(float *y) { y[threadIdx.x] = w[threadIdx.x] + count; }
__global__ void add_to_count(int n) { count += n; }
"""


def with_weights(*weights):
    module = bridge.SourceModule(WITH_VARIABLES)
    bridge.as_cupy(module.get_global("w")).view("f")[:] = cupy.asarray(weights, "f")
    return module


def read(module):
    y = cupy.zeros(3, "f")
    module.get_function("read")(y, block=3)
    return y.get().tolist()


@pytest.mark.parametrize("duplicate", [there_and_back, copy.copy, copy.deepcopy])
def test_what_a_variable_holds_goes_along(duplicate):
    module = with_weights(1, 2, 3)
    other = duplicate(module)
    bridge.as_cupy(module.get_global("w")).view("f")[:] = 0
    assert read(other) == [1, 2, 3]
    assert read(there_and_back(other)) == [1, 2, 3]
    assert read(module) == [0, 0, 0]


def test_it_is_read_behind_the_stream_that_wrote_it():
    module = with_weights(1, 2, 3)
    weights = bridge.as_cupy(module.get_global("w")).view("f")
    stream = cupy.cuda.Stream(non_blocking=True)
    bridge.wait_stream(stream, None)
    slow = bridge.SourceModule(
        "__global__ void slow(float *x, int turns)"
        "{ for (int i = 0; i < turns; i++) __nanosleep(1000); x[threadIdx.x] = 7; }"
    ).get_function("slow")
    with stream:
        slow(weights, 20_000 if ON_GPU else 1, block=3)
    assert read(there_and_back(module)) == [7, 7, 7]


def test_other_values_make_another_module():
    module = with_weights(1, 2, 3)
    first = there_and_back(module)
    bridge.as_cupy(module.get_global("w")).view("f")[:] = 5
    assert (read(there_and_back(module)), read(first)) == ([5, 5, 5], [1, 2, 3])


def test_variables_that_nobody_asked_for_are_as_new():
    module = with_weights(1, 2, 3)
    module.get_function("add_to_count")(4, block=1)
    assert (read(module), read(there_and_back(module))) == ([5, 6, 7], [1, 2, 3])


def test_two_modules_of_one_source_stay_two():
    one, two = there_and_back([with_weights(1, 2, 3), with_weights(1, 2, 3)])
    one.get_function("add_to_count")(4, block=1)
    assert (read(one), read(two)) == ([5, 6, 7], [1, 2, 3])


def test_a_module_that_nobody_holds_is_there_for_the_next_task(module):
    data = pickle.dumps(module)
    loaded = weakref.ref(pickle.loads(data)._module(0))
    gc.collect()
    assert pickle.loads(data)._module(0) is loaded()


@pytest.mark.parametrize("duplicate", [there_and_back, copy.copy, copy.deepcopy])
def test_what_a_task_sets_on_a_module_no_other_finds(module, duplicate):
    one, two = duplicate(module), duplicate(module)
    one.calls = 1
    assert one is not two
    assert not hasattr(two, "calls")
    assert not hasattr(duplicate(module), "calls")
    assert duplicate(one).calls == 1


def test_the_most_recent_are_kept(module, monkeypatch):
    monkeypatch.setattr("bridge.compiler._recent", {})
    monkeypatch.setattr("bridge.compiler._MOST", 2)
    one, two, three = (pickle.dumps(bridge.SourceModule(SOURCE)) for _ in range(3))
    kept, dropped = (weakref.ref(pickle.loads(data)._module(0)) for data in (one, two))
    pickle.loads(one)
    pickle.loads(three)
    gc.collect()
    assert (kept() is None, dropped() is None) == (False, True)


def test_what_has_a_state_is_loaded_each_time_but_compiled_once(monkeypatch):
    compiled, compile = [], bridge.compiler.compile
    data = pickle.dumps(with_weights(1, 2, 3))
    monkeypatch.setattr(
        "bridge.compiler.compile", lambda *args: compiled.append(args) or compile(*args)
    )
    one, two = pickle.loads(data), pickle.loads(data)
    bridge.as_cupy(one.get_global("w")).view("f")[:] = 5
    one.get_function("add_to_count")(4, block=1)
    assert (read(one), read(two), read(pickle.loads(data))) == ([9, 9, 9], [1, 2, 3], [1, 2, 3])
    assert len(compiled) == 1


def test_threads_compile_what_arrives_once(monkeypatch):
    compiled, compile = [], bridge.compiler.compile
    data = pickle.dumps(with_weights(1, 2, 3))
    modules, start = [pickle.loads(data) for _ in range(4)], threading.Barrier(4)
    monkeypatch.setattr(
        "bridge.compiler.compile", lambda *args: compiled.append(args) or compile(*args)
    )

    def use(module):
        with bridge.primary_context():
            start.wait()
            module.get_function("read")

    threads = [threading.Thread(target=use, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [read(module) for module in modules] == [[1, 2, 3]] * 4
    assert len(compiled) == 1


def test_what_a_kernel_wrote_is_not_what_arrives_next():
    """One after another, as a worker of one thread does."""
    data = pickle.dumps(with_weights(0, 0, 0))
    for _ in range(3):
        there = pickle.loads(data)
        there.get_function("add_to_count")(4, block=1)
        assert read(there) == [4, 4, 4]
        del there


def test_values_go_on_from_where_they_were_never_used():
    """From client to scheduler to worker."""
    module = with_weights(1, 2, 3)
    assert read(there_and_back(there_and_back(module))) == [1, 2, 3]
    assert read(copy.copy(there_and_back(module))) == [1, 2, 3]


def test_values_go_on_while_another_thread_uses_it_first(monkeypatch):
    there = there_and_back(with_weights(1, 2, 3))
    writing, pickled, frombuffer = threading.Event(), threading.Event(), np.frombuffer

    def slow(*args):
        writing.set()
        assert pickled.wait(60)
        return frombuffer(*args)

    def use():
        with bridge.primary_context():
            there.get_function("read")

    monkeypatch.setattr("numpy.frombuffer", slow)
    thread = threading.Thread(target=use)
    thread.start()
    assert writing.wait(60)
    data = pickle.dumps(there)
    pickled.set()
    thread.join()
    assert read(pickle.loads(data)) == [1, 2, 3]


def test_what_was_written_where_it_arrived_is_not_what_arrives():
    module = with_weights(1, 2, 3)
    data = pickle.dumps(module)
    there = pickle.loads(data)
    bridge.as_cupy(there.get_global("w")).view("f")[:] = 5
    assert (read(there), read(pickle.loads(data)), read(there_and_back(there))) == (
        [5, 5, 5], [1, 2, 3], [5, 5, 5],
    )  # fmt: skip


def test_what_a_kernel_wrote_where_it_arrived_goes_on():
    module = with_weights(0, 0, 0)
    module.get_global("count")
    there = there_and_back(module)
    there.get_function("add_to_count")(4, block=1)
    assert read(there_and_back(there)) == [4, 4, 4]


def test_a_copy_is_a_module_of_its_own():
    module = with_weights(1, 2, 3)
    one, two = copy.copy(module), copy.deepcopy(module)
    one.get_function("add_to_count")(4, block=1)
    bridge.as_cupy(two.get_global("w")).view("f")[:] = 0
    assert (read(module), read(one), read(two)) == ([1, 2, 3], [5, 6, 7], [0, 0, 0])
    three, four = copy.deepcopy(two), copy.deepcopy(two)
    three.get_function("add_to_count")(4, block=1)
    assert (read(three), read(four)) == ([4, 4, 4], [0, 0, 0])


class Named(bridge.SourceModule):
    __slots__ = ("number",)

    def __init__(self, names, source=SOURCE):
        super().__init__(source)
        self.names = names
        self.number = 7


class Guarded(Named):
    def __init__(self, names, source=SOURCE):
        super().__init__(names, source)
        self.lock = threading.Lock()

    def __getstate__(self):
        state = self.__dict__.copy()
        del state["lock"]
        return state

    def __setstate__(self, state):
        self.__dict__.update(state, lock=threading.Lock())
        self.number = 8


@pytest.mark.parametrize("source", [SOURCE, WITH_VARIABLES])
@pytest.mark.parametrize(("kind", "number"), [(Named, 7), (Guarded, 8)])
@pytest.mark.parametrize("duplicate", [there_and_back, copy.copy, copy.deepcopy])
def test_a_subclass_stays_one(duplicate, kind, number, source):
    module = kind(["mine"], source)
    other = duplicate(module)
    assert (type(other), other.names, other.number) == (kind, ["mine"], number)
    assert (other.names is module.names) == (duplicate is copy.copy)
    assert duplicate(module) is not other
    other.get_function("add" if source is SOURCE else "read")


class Numbered(bridge.SourceModule):
    """It says itself what it is made of."""

    def __new__(cls, number):
        return super().__new__(cls)

    def __init__(self, number):
        super().__init__(f"__global__ void f(int *x) {{ x[0] = {number}; }}")
        self.number = number

    def __reduce__(self):
        return Numbered, (self.number,)


class New(bridge.SourceModule):
    """Its `__new__` wants an argument, which its state has."""

    def __new__(cls, number):
        made = super().__new__(cls)
        made.number = number
        return made

    def __init__(self, number):
        super().__init__("__global__ void f(int *x) { }")

    def __getnewargs__(self):
        return (self.number,)


class Plain(bridge.SourceModule):
    def __reduce__(self):
        return super().__reduce__()


def test_variables_that_only_the_code_here_has_are_not_shared(module, monkeypatch):
    data = pickle.dumps(module)
    monkeypatch.setattr("bridge.compiler._recent", {})
    monkeypatch.setattr("bridge.nvrtc.may_have_variables", lambda image: True)
    one, two = pickle.loads(data), pickle.loads(data)
    assert one._module(0) is not two._module(0)


def test_what_is_loaded_is_shared_on_each_device_by_itself(python):
    done = python(
        """
        import bridge, cupy, pickle
        from bridge import nvrtc

        module = bridge.SourceModule("__global__ void f() { }")
        data = pickle.dumps(module)
        answers = [False, True]  # of device 0, and of device 1
        nvrtc.may_have_variables = lambda image: answers.pop(0)
        one, two = pickle.loads(data), pickle.loads(data)
        for device, module in (0, one), (1, one), (1, two), (0, two):
            with bridge.primary_context(device):
                module._module(device)
        print(one._module(0) is two._module(0), one._module(1) is two._module(1))
        """,
        devices=2,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True False\n", "")


@pytest.mark.parametrize("duplicate", [there_and_back, copy.copy, copy.deepcopy])
def test_a_subclass_may_have_pickling_of_its_own(duplicate):
    plain = Plain(WITH_VARIABLES)
    assert duplicate(plain)._module(0) is not plain._module(0)
    guarded = Guarded([])
    assert duplicate(guarded).lock is not guarded.lock
    assert duplicate(Numbered(3)).number == 3
    assert duplicate(New(4)).number == 4


def test_an_attribute_goes_along_with_the_module_that_has_it():
    module = bridge.SourceModule(SOURCE)
    earlier = there_and_back(module)
    module.note = "new"
    assert there_and_back(module).note == "new"
    assert not hasattr(earlier, "note")


def test_a_modules_own_attributes_are_told_from_others(module):
    assert {*vars(module)} == bridge.compiler._OURS


@pytest.mark.parametrize("non_blocking", [True, False])
def test_what_arrived_may_be_used_first_in_a_capture(non_blocking):
    arrived = there_and_back(with_weights(1, 2, 3).get_function("read"))
    y, stream = cupy.zeros(3, "f"), cupy.cuda.Stream(non_blocking=non_blocking)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        arrived(y, block=3)
        stream.end_capture().launch()
    stream.synchronize()
    assert y.get().tolist() == [1, 2, 3]


def test_in_a_capture_no_variable_is_read():
    module, stream = with_weights(1, 2, 3), cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(3, "f")
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.raises(ValueError, match="'w' cannot be read while CuPy's current stream is"):
            pickle.dumps(module)
        x += 1
        stream.end_capture().launch()
    stream.synchronize()
    assert x.get().tolist() == [1, 1, 1]


def test_a_capture_on_another_stream_is_said():
    """CUDA has ended it then."""
    module, stream = with_weights(1, 2, 3), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
    with pytest.raises(ValueError, match="'w' cannot be read while a stream is being captured"):
        pickle.dumps(module)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="CaptureInvalidated"):
        stream.end_capture()
    assert read(there_and_back(module)) == [1, 2, 3]


def test_a_variable_of_another_size_is_refused(tmp_path):
    header = tmp_path / "size.h"
    header.write_text("#define N 4")
    source = '#include "size.h"\n__device__ float w[N]; __global__ void f() { }'
    module = bridge.SourceModule(source, include_dirs=[str(tmp_path)])
    module.get_global("w")
    there = there_and_back(module)
    header.write_text("#define N 1000000")
    text = "the variable 'w' has 4000000 bytes here, and 16 where the module was pickled"
    for _ in range(2):
        with pytest.raises(ValueError, match=text):
            there_and_back(there).get_function("f")
        with pytest.raises(ValueError, match=text):
            there.get_function("f")


def test_a_variable_that_the_code_here_has_not_is_refused(tmp_path, monkeypatch):
    """Also where a module without its value has been loaded."""
    header = tmp_path / "w.h"
    header.write_text("__device__ float w[4];")
    source = '#include "w.h"\n__global__ void f() { }'
    module = bridge.SourceModule(source, include_dirs=[str(tmp_path)])
    without = pickle.dumps(module)
    module.get_global("w")
    data = pickle.dumps(module)
    header.write_text("")
    monkeypatch.setattr("bridge.compiler._recent", {})
    pickle.loads(without)._module(0)
    with pytest.raises(drv.LogicError, match="there is no variable 'w' in the module"):
        pickle.loads(data)._module(0)


def test_threads_share_what_is_loaded(module, monkeypatch):
    data = pickle.dumps(module)
    found, interval = [], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            monkeypatch.setattr("bridge.compiler._recent", {})
            start = threading.Barrier(4)

            def load(start=start):
                start.wait()
                with bridge.primary_context(0):
                    found.append(pickle.loads(data)._module(0))

            threads = [threading.Thread(target=load) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(set(found)) == 1
            found.clear()
    finally:
        sys.setswitchinterval(interval)


def test_a_variable_that_differs_between_devices_does_not_go(python):
    done = python(
        f"""
        import bridge, bridge.autoinit, cupy, pickle
        module = bridge.SourceModule({WITH_VARIABLES!r})
        for device in (0, 1):
            with bridge.primary_context(device):
                bridge.as_cupy(module.get_global("w")).view("f")[:] = device
        try:
            pickle.dumps(module)
        except ValueError as error:
            print(error)
        with bridge.primary_context(1):
            bridge.as_cupy(module.get_global("w")).view("f")[:] = 0
        pickle.dumps(module)

        other = bridge.SourceModule({WITH_VARIABLES!r})
        bridge.as_cupy(other.get_global("count")).view("i")[:] = 5
        with bridge.primary_context(1):
            other.get_function("read")(cupy.zeros(3, "f"), block=3)
        try:
            pickle.dumps(other)
        except ValueError as error:
            print(error)
        """,
        devices=2,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name, line in zip(("w", "count"), done.stdout.splitlines(), strict=True):
        assert line.startswith(
            f"SourceModule: the variable {name!r} differs between devices 0, 1, and the module "
            "cannot be pickled or copied; write the same to all"
        )


def test_an_address_of_a_variable_stays_here():
    module = bridge.SourceModule("__constant__ float c[4]; __global__ void f(float *x) { *x = 1; }")
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="an address in this process"):
            duplicate(module.get_global("c"))
    module.get_function("f")  # it is loaded still


def test_what_was_never_used_goes_on(module):
    """From client to scheduler to worker."""
    add = there_and_back(there_and_back(module.get_function("add").prepare("Pfi")))
    x = cupy.zeros(4, "f")
    add.prepared_call(1, 32, x.data.ptr, 2.0, 4)
    assert x.get().tolist() == [2] * 4
    assert pickle.dumps(add) == pickle.dumps(module.get_function("add").prepare("Pfi"))


def test_options_go_along():
    source = "__global__ void f(int *x) { x[0] = VALUE; }"
    f = there_and_back(bridge.SourceModule(source, options=["-DVALUE=5"]).get_function("f"))
    x = cupy.zeros(1, np.int32)
    f(x, block=1)
    assert int(x[0]) == 5


def test_default_options_are_those_of_its_making(monkeypatch):
    monkeypatch.setattr("pycuda.compiler.DEFAULT_NVCC_FLAGS", ["-DVALUE=4"])
    module = bridge.SourceModule("__global__ void f(int *x) { x[0] = VALUE; }")
    pycuda.compiler.DEFAULT_NVCC_FLAGS[:] = ["-DVALUE=5"]
    x = cupy.zeros(1, np.int32)
    there_and_back(module).get_function("f")(x, block=1)
    assert int(x[0]) == 4


def test_a_missing_attribute_is_missing(module):
    add = there_and_back(module.get_function("add"))
    for name in ("__dask_graph__", "_no_such", "no_such"):
        assert not hasattr(add, name)


def test_a_copy_is_another(module):
    add = module.get_function("add").prepare("Pfi")
    other = copy.copy(add).prepare("Qfi")
    assert (add._codes, other._codes) == (["P", "f", "i"], ["Q", "f", "i"])


def test_threads_may_use_it_first_at_once(module):
    data = pickle.dumps(module.get_function("add").prepare("Pfi"))
    failed = []

    def use(add, start):
        try:
            with bridge.primary_context():
                x = cupy.zeros(4, "f")
                start.wait()
                add(x, 2, 4, block=32)
                add.prepared_call(1, 32, x.data.ptr, 2.0, 4)
                assert x.get().tolist() == [4] * 4
        except BaseException as error:
            failed.append(error)
            raise

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            add, start = pickle.loads(data), threading.Barrier(4)
            threads = [threading.Thread(target=use, args=(add, start)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []


FIRST_USE = """
import gc, os, pickle, threading
import bridge, bridge.autoinit, bridge.compiler, cupy

module = bridge.SourceModule(
    "__global__ void f(int *x) { x[0] += 1; } __global__ void g(int *x) { x[0] += 1; }"
)
f, g = pickle.loads(pickle.dumps([module.get_function("f"), module.get_function("g")]))
x = cupy.zeros(1, "i")
compile, compiling, go_on = bridge.compiler.compile, threading.Event(), threading.Event()

def slow(*args):
    compiling.set()
    assert go_on.wait(60)
    gc.collect()
    return compile(*args)

def on_a_thread(function):
    thread = threading.Thread(target=bridge.primary_context()(lambda: function(x, block=1)))
    thread.start()
    return thread

bridge.compiler.compile = slow
"""


def test_a_finalizer_may_use_a_function_that_another_thread_uses_first(python):
    done = python(
        FIRST_USE
        + """
class Flush:
    def __init__(self):
        self.itself = self
    def __del__(self):
        f(x, block=1)

gc.disable()
Flush()
one = on_a_thread(g)
compiling.wait()
two = on_a_thread(f)
two.join(1)  # it waits for the code, which the first one compiles
go_on.set()
one.join(60)
two.join(60)
print(x, flush=True)
os._exit(0)  # also if they wait for each other
"""
    )
    assert (done.stdout, done.stderr) == ("[3]\n", "")


def test_a_child_that_is_forked_during_a_first_use_gets_an_error(python):
    done = python(
        FIRST_USE
        + """
import signal, warnings
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
thread = on_a_thread(f)
compiling.wait()
pid = os.fork()
if not pid:
    signal.alarm(60)
    try:
        f(x, block=1)
    except bridge.ContextError as error:
        print(error, flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
go_on.set()
thread.join()
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CUDA does not survive fork()")
    assert done.stdout.endswith("\n0\n")


def test_where_there_is_no_gpu_it_can_be_unpickled_and_passed_on(module, tmp_path):
    """As Dask's scheduler does."""
    path = tmp_path / "function"
    path.write_bytes(pickle.dumps((module, module.get_function("add"))))
    done = run_python(
        f"""
        import pathlib, pickle
        {"" if ON_GPU else "import hostcuda; hostcuda.install(devices=0)"}
        data = pathlib.Path({str(path)!r}).read_bytes()
        module, add = pickle.loads(data)
        print(add.name, hasattr(add, "__dask_graph__"), pickle.dumps((module, add)) == data)
        add.num_regs
        """,
        devices=0,
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.stdout == "add False True\n"
    assert "bridge.context.ContextError: CUDA finds no GPU" in done.stderr


def test_cloudpickle_takes_wrapped_functions(package):
    cloudpickle = package("cloudpickle")
    add = bridge.SourceModule(SOURCE).get_function("add")

    def shifted(a):
        b = a.copy()
        add(b, 3, b.size, block=32)
        return b

    wrapped = pickle.loads(cloudpickle.dumps(bridge.wrap_pycuda(shifted)))
    assert wrapped(cupy.ones(4, "f")).get().tolist() == [4] * 4
    decorated = pickle.loads(cloudpickle.dumps(bridge.primary_context()(lambda: 7)))
    assert decorated() == 7
