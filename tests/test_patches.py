"""The table of what bridge replaces in other packages."""

import json

import pytest

ALL = """
import importlib, json, pkgutil, sys, types
import cupy, pycuda, pycuda.compiler, pycuda.cumath, pycuda.gpuarray, pycuda.reduction, pycuda.scan
import multiprocessing.spawn

def attributes():
    '''Return attributes of PyCUDA's modules and CuPy's streams, of classes, functions' defaults.'''
    found = {}
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == "pycuda"]
    for module in [*modules, cupy.cuda.stream, multiprocessing.spawn]:
        if not isinstance(module, types.ModuleType) or module.__name__.startswith("bridge"):
            continue
        for name, value in vars(module).items():
            found[f"{module.__name__}.{name}"] = value
            if getattr(value, "__module__", None) not in (module.__name__, "pycuda._driver") or (
                "<locals>" in getattr(value, "__qualname__", "<locals>")
            ):
                continue
            home = f"{value.__module__}.{value.__qualname__}".replace("._driver.", ".driver.")
            members = vars(value).items() if isinstance(value, type) else ()
            for key, member in members:
                found[f"{home}.{key}"] = member
            for function, where in ((value, home), *((m, f"{home}.{k}") for k, m in members)):
                if isinstance(function, types.FunctionType):
                    found[f"{where}.__defaults__"] = function.__defaults__
                    found[f"{where}.__kwdefaults__"] = repr(function.__kwdefaults__)
    for name in ("pycuda.autoinit", "pycuda.autoprimaryctx"):
        found[f"sys.modules.{name}"] = sys.modules.get(name)
    found["cupy.ndarray.__matmul__"] = cupy.ndarray.__matmul__
    return found

before = attributes()
from bridge.interop import patches
import bridge.autoinit
bridge.use_nvrtc(modules=True)
from bridge.legacy import run
run.replace(pool=True)
class Timed(pycuda.driver.Stream):
    def __del__(self):
        pass
stream = Timed()
after = attributes()

def changed(one, other):
    names = {name for name in {*one, *other} if "defaults__" not in name} | {*one} & {*other}
    return {name for name in names if one.get(name) is not other.get(name)
            and one.get(name) != other.get(name)}

def outermost(names):
    '''Return the names without those inside of one that is replaced as a whole.'''
    return {name for name in names if not any(name.startswith(f"{one}.") for one in names)}

pycuda.compiler.compile = theirs = lambda *args, **keywords: None  # after bridge
listed = {name for _, name, _ in patches.listed()} - {"__main__.Timed.__del__"}
undone = {group for group, _, _ in patches.listed()}
for group in undone:
    patches.undo(group)
kept, pycuda.compiler.compile = pycuda.compiler.compile is theirs, before["pycuda.compiler.compile"]
print(json.dumps({
    "changed": sorted(outermost(changed(before, after))), "listed": sorted(listed),
    "groups": sorted(undone), "left": sorted(changed(before, attributes())),
    "still": list(patches.listed()),
    "others' stay": kept, "of a subclass": "bridge" in str(Timed.__del__),
}))
"""


@pytest.mark.starts
def test_the_table_lists_all_that_is_replaced_and_undoes_it(python):
    done = python(ALL)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["changed"] == found["listed"]
    assert len(found["listed"]) > 20
    assert (found["left"], found["still"]) == ([], [])
    assert found["others' stay"]
