"""Questions are answered where work is refused: versions, files, what is available, messages."""

import importlib
import inspect
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import cupy
import cupyx
import numpy as np
import pytest
from cupy.cuda import curand, nvrtc

IS_14 = int(cupy.__version__.partition(".")[0]) >= 14  # which tells paths of libraries
LIBRARIES = {
    "cublas": "CUBLASError",
    "cusolver": "CUSOLVERError",
    "cusparse": "CuSparseError",
}


@pytest.mark.parametrize("full", [False, True])
def test_the_configuration_is_shown(full, capsys):
    cupy.show_config(_full=full)
    told = dict(line.split(" : ", 1) for line in capsys.readouterr().out.splitlines())
    told = {key.strip(): value for key, value in told.items()}
    assert told["Device 0 Name"] == "host memory (no GPU)"
    assert told["cuTENSOR Version"] == told["cuSPARSELt Build Version"] == "None"
    paths = {
        k: v for k, v in told.items() if k.split()[0].lower() in (*LIBRARIES, "curand", "cufft")
    }
    paths = [value for key, value in paths.items() if key.endswith("Path")]
    assert len(paths) == (5 if full and IS_14 else 0)
    assert all(Path(path).exists() for path in paths)


def test_what_the_runtime_is():
    info = cupyx.get_runtime_info()
    assert info.nvrtc_version == nvrtc.getVersion()
    assert info.cuda_driver_version >= info.cuda_runtime_version
    assert not IS_14 or info.cutensor_path is None


def test_what_cupy_offers_of_a_library_that_is_not_there_is_not_available():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy says how to install it
        assert not importlib.import_module("cupy.cuda.cutensor").available
    with pytest.raises(ImportError, match="cuSPARSELt is not supported"):
        importlib.import_module("cupy_backends.cuda.libs.cusparselt")


def test_accelerators_that_are_not_there_fall_back():
    program = "import cupy; a = cupy.ones((4, 4)); cupy._core.set_routine_accelerators(names)\n"
    program += "cupy._core.set_reduction_accelerators(names)\n"
    program += "print(a.sum(), cupy.einsum('ij,jk', a, a).sum(), (a @ a + a).sum())"
    program = f"import hostcuda; hostcuda.install(); names = ['cub', 'cutensor']\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("16.0 64.0 80.0\n", "")


def program(source, name="kern.cu", options=("-arch=sm_90",)):
    made = nvrtc.createProgram(source, name, (), ())
    nvrtc.compileProgram(made, options)
    return made


def test_ptx_is_text():
    made = program('extern "C" __global__ void f(int *x) { *x = 7; }')
    text = nvrtc.getPTX(made)
    assert text.startswith(b"//")
    assert b".visible .entry f(" in text
    module = cupy.cuda.function.Module()
    module.load(text)
    x = cupy.zeros(1, np.int32)
    module.get_function("f")((1,), (1,), (x,))
    assert x.tolist() == [7]


@pytest.mark.parametrize("name", ["kern.cu", "/some/where/a.cu", ""])
def test_messages_have_the_name_of_the_file(name):
    made = nvrtc.createProgram("__global__ void f(int *x) {\n*y = 1; }", name, (), ())
    with pytest.raises(nvrtc.NVRTCError, match="NVRTC_ERROR_COMPILATION") as found:
        nvrtc.compileProgram(made, ("-arch=sm_90",))
    assert found.value.status == 6
    said = nvrtc.getProgramLog(made)
    assert said.startswith(f"{name or 'default_program'}(2): error: ")
    assert "kernel.cu" not in said


@pytest.mark.parametrize("library", LIBRARIES)
def test_errors_of_libraries_can_be_pickled(library):
    module = importlib.import_module(f"cupy_backends.cuda.libs.{library}")
    kind = getattr(module, LIBRARIES[library])
    again = pickle.loads(pickle.dumps(kind(1)))
    assert type(again) is kind
    assert "_STATUS_" in str(again)
    assert again.status
    assert Path(inspect.getfile(module)).is_absolute()


@pytest.mark.parametrize("name", ["Normal", "NormalDouble", "LogNormal", "LogNormalDouble"])
def test_an_odd_number_of_normals_raises(name):
    generator = curand.createGenerator(curand.CURAND_RNG_PSEUDO_DEFAULT)
    generate, x = getattr(curand, f"generate{name}"), cupy.zeros(4)
    generate(generator, x.data.ptr, 4, 0.0, 1.0)
    with pytest.raises(ValueError, match="an even number of normal numbers; 3 were asked for"):
        generate(generator, x.data.ptr, 3, 0.0, 1.0)
    curand.generatePoisson(generator, x.data.ptr, 3, 1.0)
    assert len(cupy.random.normal(size=3)) == 3


def test_curands_header_is_found():
    source = """#include <curand_kernel.h>
    extern "C" __global__ void f(float *x) {
      curandState s; curand_init(7, 0, 0, &s); *x = curand_uniform(&s); }"""
    x = cupy.zeros(1, np.float32)
    cupy.RawKernel(source, "f")((1,), (1,), (x,))
    assert 0 < x[0] <= 1


@pytest.mark.parametrize(
    ("target", "is_newer"), [("sm_80", False), ("sm_90a", False), ("sm_120", True)]
)
def test_ptx_for_a_newer_device_is_refused(target, is_newer, tmp_path):
    path = tmp_path / "f.ptx"
    path.write_text(f".version 8.8\n.target {target}\n.address_size 64\n.entry f() {{ ret; }}\n")
    if is_newer:
        with pytest.raises(cupy.cuda.driver.CUDADriverError, match="INVALID_PTX"):
            cupy.RawModule(path=str(path)).get_function("f").compile()
    else:
        cupy.RawModule(path=str(path)).get_function("f")((1,), (1,), ())


def test_a_program_has_an_absolute_path(tmp_path):
    (tmp_path / "program.py").write_text("print(__file__)")
    command = [sys.executable, "-m", "hostcuda", "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"{tmp_path}/program.py\n"


NUMBERS = """
import cupy, numpy as np
f = cupy.RawKernel('extern "C" __global__ void f(double *o, float x, double y, int n, long long k)'
                   '{ o[0] = x; o[1] = y; o[2] = n; o[3] = k; }', "f")
o = cupy.zeros(4)
for _ in range(2):
    f((1,), (1,), (o, %s))
    print(o.tolist())
"""


@pytest.mark.skipif(cupy.__version__ < "14", reason="CuPy 13 does not tell")
@pytest.mark.parametrize(
    ("arguments", "argument", "kind"),
    [
        ("1.5, 2.5, 3, 4", 2, "float"),
        ("3, 2.5, 3, 4", 2, "float"),
        ("np.float64(1.5), 2.5, 3, 4", 2, "float"),
        ("np.float32(1.5), np.float32(2.5), 3, 4", 3, "double"),
        ("np.float32(1.5), 2.5, 3, 4", 0, ""),
        ("np.float32(1.5), np.float64(2.5), np.int32(3), np.int64(4)", 0, ""),
    ],
    ids=["float", "int", "float64", "float32", "right", "numpy"],
)
def test_a_number_that_is_not_the_parameters_is_named(run_program, arguments, argument, kind):
    done = run_program(NUMBERS % arguments)
    text = (
        f"hostcuda: kernel f: argument {argument} has other bytes than a {kind}, which the kernel "
    )
    text += f"reads: pass numpy.float{32 if kind == 'float' else 64}(...)\n"
    assert done.stderr == (text if argument else "")
    assert done.returncode == (70 if argument else 0)
    assert argument or done.stdout == "[1.5, 2.5, 3.0, 4.0]\n" * 2


def test_zero_has_the_same_bytes_in_each_type(run_program):
    done = run_program(NUMBERS % "0, 0, 3, 4")
    assert (done.stdout, done.stderr) == ("[0.0, 0.0, 3.0, 4.0]\n" * 2, "")


PACKED = '''
import numpy as np, pycuda.autoprimaryctx, pycuda.gpuarray as ga
from pycuda.compiler import SourceModule
m = SourceModule("""
__global__ void f(float *x, int n, float a) { if (threadIdx.x < n) x[threadIdx.x] = a; }
__global__ void g(float *x, int n) { x[threadIdx.x] = n; }""")
x = ga.zeros(4, np.float32)
f, g = m.get_function("f"), m.get_function("g")
for _ in range(2):
    %s
print(x.get().tolist())
'''


@pytest.mark.parametrize(
    ("call", "told", "value"),
    [
        ("f(x, np.int64(4), np.float32(3), block=(4, 1, 1))", "f: the arguments have 20", 0),
        (
            "f.prepare('Pid').prepared_call((1, 1), (4, 1, 1), x.gpudata, 4, 0.3)",
            "f: the arg",
            None,
        ),
        ("g(x, np.full(9, 4), block=(4, 1, 1))", "g: the arguments have 80 bytes", 4),
        ("f(x, np.int32(4), np.float32(3), block=(4, 1, 1))", "", 3),
        ("g(x, np.int64(4), block=(4, 1, 1))", "", 4),
    ],
    ids=["a wide number", "prepared", "host array", "right", "a last number has its value"],
)
def test_arguments_of_pycuda_with_too_many_bytes_are_reported(run_program, call, told, value):
    pytest.importorskip("pycuda")
    done = run_program(PACKED % call)
    assert done.stderr.startswith(f"hostcuda: kernel {told}" if told else "")
    assert done.stderr.count("\n") == bool(told)
    assert done.returncode == (70 if told else 0)
    assert value is None or done.stdout == f"{[float(value)] * 4}\n"
