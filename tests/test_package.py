"""The package as such: what importing it does, its layout, its report and its check."""

import codeop
import doctest
import gc
import importlib
import json
import os
import re
import subprocess
import sys
from pkgutil import resolve_name

import pytest
from gpus import ON_GPU
from processes import ROOT, install

import bridge
from bridge import report


def run(*arguments, cwd=ROOT, **environment):
    """Run Python, without the host driver unless an argument puts it there."""
    around = {"cwd": cwd, "env": {**os.environ, **environment}, "timeout": 300}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **around)


def test_importing_the_package_imports_neither_library():
    done = run("-c", "import sys, bridge; print({'cupy', 'pycuda', 'numpy'} & set(sys.modules))")
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_every_public_name_is_listed_and_says_who_owns_what_is_ordered_and_what_it_costs():
    assert {*dir(bridge)} == {*bridge.__all__, "__version__"}
    for name in bridge.__all__:
        value = getattr(bridge, name)
        assert value.__doc__
        words = [] if name == "ContextError" else ["*Cost:*"]
        if name not in ("ContextError", "show_config", "show_memory", "use_nvrtc"):
            words += ["*Ownership:*", "*Ordering:*"]  # of arrays
        for word in words:
            assert word in value.__doc__, (name, word)


@pytest.mark.parametrize("name", sorted({*bridge._HOME.values()}))  # the public names' modules
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(f"bridge.{name}")
    gc.collect()  # an example counts the bytes of a pool
    result = doctest.testmod(module)
    bridge.use_nvrtc(False)  # an example uses it
    assert result.failed == 0
    assert name != "interop.conversions" or result.attempted > 0


README = (ROOT / "README.md").read_text()
# Pages whose blocks in ```python are run; those in ```py are shown only.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page):
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return ["".join(found)] if page.stem == "README" else found  # README's are one program


BLOCKS = [(page, number, block) for page in PAGES for number, block in enumerate(blocks_of(page))]


def outputs(block):
    """Return what a block says that it prints: behind a print, or in the lines that follow."""
    return re.findall(r"^ *print\(.*\)  # (.*)$|^# (.*)$", block, re.MULTILINE)


def case_of(page, number, block):
    marks = () if page.stem in ("README", "guide", "kernels") else pytest.mark.nightly
    return pytest.param(page, block, id=f"{page.stem}-{number}", marks=marks)


@pytest.mark.parametrize(("page", "block"), [case_of(*one) for one in BLOCKS])
def test_blocks_of_the_pages_run(page, block, python):
    done = python(block, devices=2 if page.stem == "scale" else 1)
    assert (done.returncode, done.stderr) == (0, "")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    same = doctest.OutputChecker().check_output
    for said, printed in zip(outputs(block), done.stdout.splitlines(), strict=True):
        assert same("".join(said), printed, flags), printed


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_of_the_pages_can_be_pasted_into_pythons_prompt(page):
    """There, a block ends with an empty line, and has none within."""
    for block in re.findall(r"^```py(?:thon)?\n(.*?)^```", page.read_text(), re.DOTALL | re.M):
        compiler, lines = codeop.CommandCompiler(), []
        for line in [*block.splitlines(), ""]:
            lines.append(line)
            if compiler("\n".join(lines), symbol="single") is not None:
                lines = []
        assert "".join(lines) == "", block


PACKAGE = [path for folder in ("bridge", "tools") for path in (ROOT / folder).rglob("*.p*")]
PACKAGE = [path for path in PACKAGE if path.parent.name != "__pycache__"]


@pytest.mark.nightly
def test_pages_quote_lines_and_files_that_there_are():
    code = {line.strip() for path in PACKAGE for line in path.read_text().splitlines()}
    of_top = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    files = {path.name for one in of_top for path in (one, *one.rglob("*.py*"))}
    for page in *PAGES, ROOT / "CONTRIBUTING.md":
        text = page.read_text()
        for block in re.findall(r"^```cython\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            assert {*block.splitlines()} <= code, page
        if page.stem in ("CONTRIBUTING", "design"):  # elsewhere they may be the reader's
            assert {*re.findall(r"`[\w/]*?(\w+\.pyx?)`", text)} <= files, page


@pytest.mark.nightly
def test_the_readme_shows_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    headline = importlib.import_module("benchmarks.headline")
    found = json.loads(headline.RESULTS.read_text())
    assert headline.headline(found) in README
    assert found["machine"]["GPU"] in README


def test_show_config_names_versions_and_devices(capsys):
    import cupy
    import numpy
    import pycuda

    bridge.show_config()
    out = capsys.readouterr().out
    for text in (cupy.__version__, numpy.__version__, f"{pycuda.VERSION_TEXT}\n", "device 0"):
        assert text in out
    assert "PyCUDA and CuPy share the primary context of device 0" in out


LIBCUDA = "libcuda.so.1: cannot open shared object file: No such file or directory"
MISSING = {
    "cupy": ("No module named 'cupy'", "CuPy is not installed: `pip install cupy-cuda12x`"),
    "pycuda": ("No module named 'pycuda'", "PyCUDA is not installed: `pip install pycuda` builds"),
    "pycuda._driver": (LIBCUDA, "libcuda.so.1 is missing, so there is no NVIDIA driver here"),
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
                raise ImportError({found!r}, name=name)
    sys.meta_path.insert(0, Missing)
    try:
        {use}
    except ImportError as error:
        print(type(error).__name__, error.name, error)
    import bridge
    bridge.show_config
    """
    done = run("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"ImportError {missing} bridge: {said}"), done.stdout
    assert found in done.stdout


def test_where_there_is_no_gpu_that_is_said(python):
    uses = "import bridge.autoinit", "with bridge.primary_context(): pass", "bridge.as_cupy(3)"
    script = f"""
    {install(devices=0)}
    import bridge
    for use in {[*uses, "bridge.SourceModule('')"]}:
        try:
            exec(use)
        except bridge.ContextError as error:
            print(str(error).replace("\\n", " "))
    """
    done = python(script, devices=0, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith("CUDA finds no GPU (cuInit failed: no CUDA-capable device is")
        assert "CUDA_VISIBLE_DEVICES hides some ('' here)" in line


def test_python_m_bridge_says_that_there_is_no_gpu():
    done = run("-m", "bridge", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (1, "")
    why = "ContextError: CUDA finds no GPU" if ON_GPU else "ImportError: bridge: libcuda.so.1 is"
    assert f"\nFAILED: {why}" in done.stdout
    why = "ContextError: CUDA finds no GPU" if ON_GPU else "ImportError: libcuda.so.1"
    assert f"error               {why}" in done.stdout  # of show_config


def test_check_needs_no_driver():
    done = run("-m", "bridge", "check", "tests/legacy/programs")
    assert (done.returncode, done.stderr) == (0, "")
    assert " can be compiled for sm_90, 0 cannot" in done.stdout
    if not ON_GPU:  # and says what it needs
        hidden = "import sys; sys.modules['hostcuda'] = None; from bridge.__main__ import main"
        done = run("-c", f"{hidden}; main(['check', 'tests/legacy/sources'])")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("FAILED: bridge: libcuda.so.1 is missing"), done.stderr
        assert "`python -m hostcuda` in place of `python` needs no GPU" in done.stderr


@pytest.mark.starts
def test_the_cache_can_do_without_a_home(monkeypatch, python):
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # the host driver's
    done = python("""
        import os, pathlib, warnings, bridge, bridge.autoinit
        os.environ.pop("CUPY_CACHE_DIR", None)
        warnings.simplefilter("always")

        def nowhere(path):
            raise RuntimeError("Could not determine home directory.")

        pathlib.Path.expanduser = nowhere
        bridge.SourceModule("__global__ void f() { }").get_function("f")
    """)
    assert done.returncode == 0
    warned = r"<string>:\d+: UserWarning: SourceModule: compiled code is not kept"
    assert re.search(warned, done.stderr)
    assert "name a folder in CUPY_CACHE_DIR or cache_dir" in done.stderr


FITTING = {"PyCUDA": (12, 9), "CuPy": (12, 9), "NVRTC": (12, 6), "driver": (13, 0)}


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, []),
        ({"NVRTC": (13, 0)}, ["CuPy is built for CUDA 12 but finds NVRTC of CUDA 13"]),
        ({"PyCUDA": (14, 0)}, ["PyCUDA is built for CUDA 14, the driver offers CUDA 13"]),
    ],
)
def test_conflicts_are_named(versions, said):
    found = report.conflicts(FITTING | versions)
    assert [text.partition(";")[0] for text in found] == said


def test_python_m_bridge_does_the_main_job():
    done = run(*[] if ON_GPU else ["-m", "hostcuda"], "-m", "bridge")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("bridge")
    assert done.stdout.endswith("all checks passed\n")
    assert done.stdout.count("\nok ") == 3
    assert "\nreplaced " not in done.stdout
    assert "\nthis thread         PyCUDA and CuPy share the primary context" in done.stdout
    assert run("-m", "bridge", "--version").stdout == f"bridge {bridge.__version__}\n"


SPOILT = {
    "a copy": ("bridge.as_cupy = lambda a: cupy.asarray(a).copy()", "ValueError: a GPUArray seen"),
    "a write that is lost": ("cupy.ndarray.__setitem__ = lambda *_: None", "6 were written"),
    "an error": ("bridge.as_pycuda = None", "TypeError: 'NoneType' object is not callable"),
}


@pytest.mark.parametrize(("change", "said"), SPOILT.values(), ids=SPOILT)
def test_python_m_bridge_fails_when_a_check_fails(change, said, python):
    done = python(f"""
        import sys, cupy, bridge, bridge.autoinit, bridge.__main__
        {change}
        sys.exit(bridge.__main__.main([]))
    """)
    assert (done.returncode, done.stderr) == (1, "")
    assert said in done.stdout.partition("\nFAILED: ")[2]
    assert "all checks passed" not in done.stdout


def test_the_page_on_the_api_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^\.\. auto\w+:: bridge\.([\w.]+)$", page, re.MULTILINE)
    listed = re.findall(r"^\| `(?:import )?bridge\.(\w+)", page, re.MULTILINE)  # in the table
    assert sorted(shown) == sorted([*bridge.__all__, "autoinit", "interop.ordering"])
    assert sorted(listed) == sorted([*bridge.__all__, "autoinit"])


USERS_SCRIPT = """
from typing import Any
import bridge
import bridge.autoinit

def scale(array: Any, stream: Any = None) -> Any:
    module = bridge.SourceModule("__global__ void f(float *x) {}", options=["-O3"])
    function = module.get_function("f")
    seconds: float | None = function(array, block=(32, 1, 1), grid=4, time_kernel=True)
    with bridge.primary_context(), bridge.as_cupy_stream(stream):
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
    options = "--strict", "--ignore-missing-imports", str(script)
    done = run("-m", "mypy", *options, cwd=tmp_path, MYPYPATH="", PYTHONPATH=str(ROOT))
    found = re.findall(r"script.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    assert found == [("15", "call-arg"), ("16", "call-arg"), ("17", "attr-defined")], done.stdout


# The private members of CuPy and PyCUDA that the package uses.
PRIVATE = (ROOT / "docs" / "design.md").read_text().partition("## Private members")[2]
MEMBERS = [
    name
    for row in re.findall(r"^\| (`[^|]*) \|", PRIVATE, re.MULTILINE)
    for name in re.findall(r"`([\w.]+)`", row)
]


@pytest.mark.parametrize("name", MEMBERS)
def test_a_private_member_is_there(name):
    resolve_name(name)


def test_one_that_is_gone_is_noticed():
    assert len(MEMBERS) > 10
    for name in "cupy.ndarray._initialize", "pycuda.nothing.at_all", "nowhere.nothing":
        with pytest.raises((ImportError, AttributeError)):
            resolve_name(name)


def test_the_workflow_pins_its_actions_and_calls_targets_of_make():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    used = re.findall(r"uses: (.*)", workflow)
    assert len(used) > 10
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one)] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = {*re.findall(r"run: make ([\w-]+)", workflow)}
    assert called == {"test-all", "wheels", "docs"} <= {*targets}


ENGINES = {"dask_blocks", "mpi_halo", "ray_actor"}  # see test_engines.py
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if p.stem not in ENGINES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_a_script(path, python):
    use = f"runpy.run_path({str(path)!r}, run_name='__main__')"
    done = python(f"import sys, runpy; sys.argv[1:] = ['5000']; {use}")
    assert (done.returncode, done.stderr) == (0, "")


DEMO = "import runpy; runpy.run_path('tools/demo.py', run_name='__main__')"


def test_the_demo_does_what_it_says_and_fails_where_a_step_does_not(python):
    done = python(DEMO)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\nall steps did what they say\n" in done.stdout
    spoil = "plain = bridge.as_cupy; bridge.as_cupy = lambda a: plain(a, stream=-1)"
    done = python(f"import cupy, bridge; {spoil}\n{DEMO}")
    assert (done.returncode, done.stderr) == (1, "FAILED: not (stale == 0 and right == 1)\n")
