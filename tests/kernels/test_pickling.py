"""What goes to another process: modules and their functions, wrapped functions, contexts."""

import copy
import pickle
import sys
import threading

import cupy
import numpy as np
import pycuda.compiler
import pytest
from captures import captured
from gpus import ON_GPU
from other_threads import on_threads
from processes import run_python

import bridge

SOURCE = """
__device__ int calls;
__global__ void add(float *x, float a, int n) { if (threadIdx.x < n) x[threadIdx.x] += a; }
__global__ void scale(float *x, float a, int n) { if (threadIdx.x < n) x[threadIdx.x] *= a; }
__global__ void count(int *x) { *x = ++calls; }
"""


@pytest.fixture(scope="module")
def module():
    return bridge.SourceModule(SOURCE)


def there_and_back(value):
    return pickle.loads(pickle.dumps(value))


every_duplicate = pytest.mark.parametrize("duplicate", [there_and_back, copy.copy, copy.deepcopy])


def added(function, *args, **keywords):
    """Return what `add`, or a call of it, makes of zeros."""
    x = cupy.zeros(4, "f")
    function(x, *args, **keywords)
    return x.get().tolist()


@every_duplicate
def test_a_module_is_its_source_and_comes_with_its_functions(module, duplicate):
    assert added(duplicate(module).get_function("add"), 2, 4, block=32) == [2] * 4
    add, scale = duplicate([module.get_function("add"), module.get_function("scale")])
    x = cupy.ones(4, "f")
    add(x, 2, 4, block=32)
    scale(x, 2, 4, block=32)
    assert x.get().tolist() == [6] * 4


def prepared_call(add):
    return added(lambda x: add.prepared_call(1, 32, x, 2.0, 4))


@every_duplicate
def test_a_function_stays_prepared(module, duplicate):
    add = module.get_function("add").prepare("Pfi")
    with pytest.raises(TypeError, match="1 types prepared for 3"):
        add.prepare("P")  # which leaves no trace
    assert prepared_call(duplicate(add)) == [2] * 4
    duplicate(add).prepare("Qfi")  # to which an array is none
    assert prepared_call(add) == [2] * 4
    again = duplicate(duplicate(add))  # unused, as from client to scheduler to worker
    assert pickle.dumps(again) == pickle.dumps(add)
    assert prepared_call(again) == [2] * 4
    none = bridge.SourceModule("__global__ void none() { }").get_function("none").prepare("")
    duplicate(none).prepared_call(1, 1)


def test_its_attributes_are_there(module):
    add = module.get_function("add")
    other = there_and_back(add)
    assert "add(...)" in repr(other)  # which does not compile
    for name in ("__dask_graph__", "_no_such", "no_such"):
        assert not hasattr(other, name)
    assert (other.name, other.num_regs) == ("add", add.num_regs)
    added(other, 2, 4, block=32)
    assert repr(other) == repr(add)


@every_duplicate
def test_variables_are_as_new(duplicate):
    module = bridge.SourceModule(SOURCE)
    count, x = module.get_function("count"), cupy.zeros(3, "i")
    count(x, block=1)
    one, two = (duplicate(module).get_function("count") for _ in range(2))
    for function, where in (count, x), (one, x[1:]), (two, x[2:]):
        function(where, block=1)
    assert x.get().tolist() == [2, 1, 1]


class Named(bridge.SourceModule):
    def __init__(self, names):
        super().__init__(SOURCE)
        self.names = names


@every_duplicate
def test_a_subclass_stays_one_with_its_attributes(duplicate):
    module = Named(["mine"])
    other = duplicate(module)
    assert (type(other), other.names) == (Named, ["mine"])
    other.note = "new"
    assert not hasattr(module, "note")
    assert duplicate(other).note == "new"
    assert added(other.get_function("add"), 2, 4, block=32) == [2] * 4


def test_what_arrived_may_be_used_first_in_a_capture(module):
    arrived = there_and_back(module.get_function("add"))
    x, stream = cupy.zeros(4, "f"), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with captured(stream):
        arrived(x, 2, 4, block=32)
    assert x.get().tolist() == [2] * 4


def test_an_address_of_a_variable_stays_here(module):
    for duplicate in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot pickle 'bridge.kernels.loaded.LoadedModule'"):
            duplicate(module.get_global("calls"))


@pytest.mark.parametrize("options", [["-DVALUE=4"], None], ids=["its own", "the default ones"])
def test_options_are_those_of_its_making(monkeypatch, options):
    monkeypatch.setattr("pycuda.compiler.DEFAULT_NVCC_FLAGS", ["-DVALUE=4"])
    module = bridge.SourceModule("__global__ void f(int *x) { x[0] = VALUE; }", options=options)
    pycuda.compiler.DEFAULT_NVCC_FLAGS[:] = ["-DVALUE=5"]
    x = cupy.zeros(1, np.int32)
    there_and_back(module).get_function("f")(x, block=1)
    assert int(x[0]) == 4


def test_threads_may_use_it_first_at_once(module):
    data = pickle.dumps(module.get_function("add").prepare("Pfi"))
    found = []

    @bridge.primary_context()
    def use(given):
        add, start = given
        start.wait()
        found.append(added(add, 2, 4, block=32))
        found.append(prepared_call(add))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            add, start = pickle.loads(data), threading.Barrier(4)
            on_threads(use, *[(add, start)] * 4)
    finally:
        sys.setswitchinterval(interval)
    assert found == [[2] * 4] * 400


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
    assert "ContextError: CUDA finds no GPU" in done.stderr


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
