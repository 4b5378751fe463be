"""The package as such: what importing it does, its layout, its report and its self-check."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ON_GPU, ROOT

import bridge

SOURCES = sorted((ROOT / "bridge").glob("*.py"))

# Arrows go one way: what each module may import of the package.
MAY_IMPORT = {
    # For type checkers only.
    "__init__": {
        "arrays",
        "compiler",
        "config",
        "context",
        "kernels",
        "memory",
        "streams",
        "wrapping",
    },
    "__main__": {"config", "selfcheck"},
    "arguments": {"arrays", "context", "interface", "memory", "signature", "words"},
    "arrays": {"context", "interface", "streams"},
    "autoinit": {"context", "libraries"},
    "compiler": {"context", "function", "launching", "nvrtc", "signature", "streams", "words"},
    "config": {"__init__", "context"},
    "context": {"words"},
    "dask": {"arrays", "autoinit", "context", "interface"},
    "function": {
        "arguments",
        "context",
        "interface",
        "launching",
        "parameters",
        "signature",
        "streams",
        "words",
    },
    "interface": {"context", "words"},
    "libraries": set(),
    "kernels": {"arguments", "context", "function", "launching", "streams", "words"},
    "launching": {"context", "streams", "words"},
    "memory": {"arrays", "context", "interface", "streams", "words"},
    "nvrtc": set(),
    "parameters": {"arguments", "context", "interface", "signature"},
    "selfcheck": {"__init__", "autoinit"},
    "signature": set(),
    "streams": {"context", "words"},
    "words": set(),
    "wrapping": {"arrays", "context", "streams", "words"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from [node.module] if node.module else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "bridge":
                    yield alias.name.partition(".")[2] or "__init__"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_imports_go_one_way(path):
    found = {
        name if (ROOT / "bridge" / f"{name}.py").exists() else "__init__" for name in imported(path)
    }
    assert found <= MAY_IMPORT[path.stem]


def test_importing_the_package_imports_neither_library():
    script = "import sys, bridge; print({'cupy', 'pycuda', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_every_public_name_exists_and_says_who_owns_what_is_ordered_and_what_it_costs():
    for name in bridge.__all__:
        value = getattr(bridge, name)
        assert value.__doc__
        if name != "ContextError":
            for word in ("*Ownership:*", "*Ordering:*", "*Cost:*"):
                assert word in value.__doc__, (name, word)


def test_tab_completion_shows_public_names_only():
    assert set(dir(bridge)) == {*bridge.__all__, "__version__"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'as_numpy'"):
        bridge.as_numpy  # noqa: B018


@pytest.mark.parametrize("name", sorted(MAY_IMPORT["__init__"]))  # where public names live
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(f"bridge.{name}")
    result = doctest.testmod(module)
    assert result.failed == 0
    assert name not in ("arrays", "context") or result.attempted > 0


README = (ROOT / "README.md").read_text()
# Pages whose blocks in ```python are run; those in ```py are shown only.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


BLOCKS = [(page, number, block) for page in PAGES for number, block in enumerate(blocks_of(page))]


def outputs(block):
    """Return what a block says that it prints: behind a print, or in the lines that follow."""
    return re.findall(r"^ *print\(.*\)  # (.*)$|^# (.*)$", block, re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, block) for page, _, block in BLOCKS],
    ids=[f"{page.stem}-{number}" for page, number, _ in BLOCKS],
)
def test_blocks_of_the_pages_run(page, block, python):
    done = python(block, devices=2 if page.stem == "scale" else 1)
    assert (done.returncode, done.stderr) == (0, "")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    same = doctest.OutputChecker().check_output
    for said, printed in zip(outputs(block), done.stdout.splitlines(), strict=True):
        assert same("".join(said), printed, flags), printed


@pytest.mark.parametrize(
    ("page", "most_of"),
    [
        ("README", 4),
        ("guide", 8),
        ("recipes", 9),
        ("migration", 9),
        ("troubleshooting", 7),
        ("scale", 2),
    ],
)
def test_the_pages_say_what_their_blocks_print(page, most_of):
    assert sum(len(outputs(block)) for path, _, block in BLOCKS if path.stem == page) >= most_of


def test_the_readme_shows_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    headline = importlib.import_module("benchmarks.headline")
    found = json.loads(headline.RESULTS.read_text())
    assert headline.headline(found) in README
    assert found["machine"]["GPU"] in README


def test_show_config_names_versions_and_devices(capsys):
    import cupy
    import numpy

    bridge.show_config()
    out = capsys.readouterr().out
    assert cupy.__version__ in out
    assert numpy.__version__ in out
    assert "device 0" in out
    assert "PyCUDA and CuPy share the primary context of device 0" in out


MISSING = {
    "cupy": ("", "bridge: CuPy is not installed: `pip install cupy-cuda12x`"),
    "pycuda": ("", "bridge: PyCUDA is not installed: `pip install pycuda` builds it"),
    "pycuda._driver": (
        "libcuda.so.1: cannot open shared object file: No such file or directory",
        "bridge: libcuda.so.1 is missing, so there is no NVIDIA driver here",
    ),
}


@pytest.mark.parametrize("use", ["import bridge.autoinit", "import bridge; bridge.as_cupy"])
@pytest.mark.parametrize("missing", MISSING)
def test_a_missing_library_is_named_with_what_to_do(missing, use):
    found, said = MISSING[missing]
    script = f"""if True:
    import sys
    class Missing:
        def find_spec(name, path, target=None):
            if name == {missing!r}:
                raise ImportError({found!r}) if {found!r} else ModuleNotFoundError(name=name)
    sys.meta_path.insert(0, Missing)
    try:
        {use}
    except ImportError as error:
        print(type(error).__name__, error.name, error)
    import bridge
    bridge.show_config
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    name = "ImportError None" if found else f"ModuleNotFoundError {missing}"
    assert done.stdout.startswith(f"{name} {said}"), done.stdout
    assert found in done.stdout


@pytest.mark.parametrize(
    "use",
    [
        "import bridge.autoinit",
        "with bridge.primary_context(): pass",
        "bridge.as_cupy(3)",
        "bridge.SourceModule('')",
    ],
)
def test_where_there_is_no_gpu_that_is_said(use, python):
    script = f"""
    {"" if ON_GPU else "import hostcuda; hostcuda.install(devices=0)"}
    import bridge
    try:
        {use}
    except bridge.ContextError as error:
        print(error)
    """
    done = python(script, devices=0, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CUDA finds no GPU (cuInit failed: no CUDA-capable device is")
    assert "CUDA_VISIBLE_DEVICES hides some ('' here)" in done.stdout


def test_show_config_says_why_there_is_no_gpu():
    script = "import bridge; bridge.show_config()"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("it sees no GPU" if ON_GPU else "there is no libcuda.so.1") in done.stdout


def test_show_config_in_a_forked_child_says_so(python):
    done = python(
        """
        import os, bridge, bridge.autoinit
        child = os.fork()
        if not child:
            bridge.show_config()
        else:
            os.waitpid(child, 0)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "CUDA driver         CUDA does not survive fork()" in done.stdout


def test_the_cache_can_do_without_a_home(monkeypatch, python):
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # the host driver's
    done = python(
        """
        import os, pathlib, warnings, bridge, bridge.autoinit
        os.environ.pop("CUPY_CACHE_DIR", None)
        warnings.simplefilter("always")

        def nowhere(cls):
            raise RuntimeError("Could not determine home directory.")

        pathlib.Path.home = classmethod(nowhere)
        bridge.SourceModule("__global__ void f() { }").get_function("f")
        """
    )
    assert done.returncode == 0
    warned = r"<string>:\d+: UserWarning: SourceModule: compiled code is not kept"
    assert re.search(warned, done.stderr)
    assert "name a folder in CUPY_CACHE_DIR or cache_dir" in done.stderr


def test_conflicts_are_named(monkeypatch, tmp_path):
    from bridge import config

    monkeypatch.setattr(config, "_version", lambda name: "14.2" if "cupy" in name else None)
    monkeypatch.setattr("cupy.cuda.nvrtc.getVersion", lambda: (99, 0))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").write_text("#define CUDA_VERSION 98010\n")
    monkeypatch.setattr("cupy.cuda.get_cuda_path", lambda: str(tmp_path))
    found = config.conflicts()
    assert any("CuPy takes the headers of CUDA 98 from" in text for text in found)
    assert any("overwrite each other" in text for text in found)
    assert any("loads NVRTC of CUDA 99" in text for text in found)


def run_main(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "bridge", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
    )


def test_python_m_bridge_does_the_main_job():
    done = run_main()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("bridge" if ON_GPU else "No GPU found")
    assert done.stdout.endswith("all checks passed\n")
    assert done.stdout.count("\nok ") >= 4


def test_python_m_bridge_fails_when_a_check_fails(python):
    done = python(
        """
        import sys, cupy, bridge.__main__, bridge.selfcheck as selfcheck
        def fails():
            selfcheck.check(False, "values differ")
        selfcheck.strided_view = fails
        bridge.__main__.count_gpus = lambda: 1  # whatever there is, it is installed already
        selfcheck._torch_has_gpu = selfcheck._jax_has_gpu = lambda: False
        sys.exit(bridge.__main__.main([]))
        """
    )
    assert done.returncode == 1
    assert "FAILED  a strided, reversed, transposed view" in done.stdout
    assert "CheckError: values differ" in done.stdout
    assert done.stdout.endswith("1 checks failed\n")


def test_python_m_bridge_has_help():
    done = run_main("--help")
    assert done.returncode == 0
    assert "--config" in done.stdout


def test_without_a_gpu_and_a_checkout_the_self_check_says_so(tmp_path):
    script = (
        "import bridge.__main__ as m; from pathlib import Path\n"
        "m.count_gpus = lambda: 0\n"
        "m.__file__ = '/nowhere/bridge/__main__.py'\n"
        "raise SystemExit(m.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert done.stdout.startswith("No GPU found, so there is nothing to bridge")


def test_what_the_page_on_trust_names_is_there():
    page = (ROOT / "docs" / "trust.md").read_text()
    named = re.findall(r"`(?:tests/)?(?:hostcuda/)?(\w+\.py)(?:::(\w+))?", page)
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}(" in files[file] if test else file in files


def test_the_page_on_the_api_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^\.\. auto\w+:: bridge\.(\w+)$", page, re.MULTILINE)
    assert {*shown} == {*bridge.__all__, "autoinit", "dask", "streams"}
    assert len(shown) == len({*shown})


USERS_SCRIPT = """
from typing import Any
import bridge
import bridge.autoinit

def scale(array: Any, stream: Any = None) -> Any:
    module = bridge.SourceModule("__global__ void f(float *x) {}", options=["-O3"])
    function = module.get_function("f")
    seconds: float | None = function(array, block=(32, 1, 1), grid=4, time_kernel=True)
    with bridge.primary_context(), bridge.use_stream(stream):
        return bridge.as_cupy(array, stream=stream)

total = bridge.wrap_pycuda(lambda a: a)(scale(0))
pool = bridge.pycuda_allocator()
bridge.as_cupy()  # line 15
bridge.launch(total, grid=1, blocks=1)  # line 16
bridge.as_numpy(total)  # line 17
"""


def test_type_checkers_see_the_types(tmp_path, package):
    package("mypy")
    script = tmp_path / "script.py"
    script.write_text(USERS_SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": "", "PYTHONPATH": str(ROOT)},
    )
    found = re.findall(r"script.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    assert found == [("15", "call-arg"), ("16", "call-arg"), ("17", "attr-defined")], done.stdout
