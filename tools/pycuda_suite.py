#!/usr/bin/env python3
"""Run PyCUDA's own tests and examples, from its sdist, under ``python -m bridge run``.

Beside each stands how it ends with PyCUDA alone, which needs nvcc on PATH; `bridge run` gets a
PATH without it.  Many examples lost their ``import pycuda.autoinit``, and end with an error as they
are: for those, it is imported first.  `make pycuda-suite` calls this.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WAYS = {
    "PyCUDA alone": [],
    "run": ["-m", "bridge", "run"],
    "run --pool": ["-m", "bridge", "run", "--pool"],
}
STARTER = """
import runpy, sys
import pycuda.autoinit
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MAKES_A_CONTEXT = re.compile("autoinit|autoprimaryctx|make_context|make_default_context")
# What asks for a display or for input, or takes minutes.
LEFT_OUT = {
    *("gl_interop", "light_field_3d_viewer", "mandelbrot_interactive", "game_of_life"),
    *("convolution", "measure_gpuarray_speed_random"),
}
FILL_THE_GPU = {"fill_gpu_with_nans"}


def download(version: str, folder: Path) -> Path:
    """Return the unpacked sdist."""
    source = folder / f"pycuda-{version}"
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as home:
            Path(home, ".aksetup-defaults.py").touch()  # without it setup.py waits for 30 seconds
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run(
                [*pip, "--no-binary", "pycuda", f"pycuda=={version}", "-d", str(folder)],
                check=True,
                env={**os.environ, "HOME": home},
            )
        with tarfile.open(folder / f"pycuda-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return source


def environment(way: str, caches: Path) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "agg"}
    found["CUPY_CACHE_DIR"] = found["XDG_CACHE_HOME"] = str(caches / way)  # nothing is compiled yet
    if WAYS[way]:
        folders = found["PATH"].split(os.pathsep)
        found["PATH"] = os.pathsep.join(f for f in folders if not Path(f, "nvcc").exists())
    return found


def run(
    way: str, arguments: list[str], folder: Path, limit: int, caches: Path
) -> tuple[int, list[str]]:
    """Return the exit status, and the lines that were printed."""
    try:
        done = subprocess.run(
            [sys.executable, *WAYS[way], *arguments],
            cwd=folder,
            env=environment(way, caches),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return 124, [f"no end after {limit} s"]
    return done.returncode, done.stdout.decode(errors="replace").strip().splitlines() or [""]


def main() -> int:
    """Print a line for each example, and the closing lines of the tests; 1 if one is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="2026.1", help="of PyCUDA")
    parser.add_argument("--source", type=Path, help="the sdist, unpacked; else pip loads it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    options = parser.parse_args()
    source = options.source or download(options.version, ROOT / "build" / "pycuda")
    ways = list(WAYS) if shutil.which("nvcc") else list(WAYS)[1:]
    pytest = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-W", "ignore", "."]
    # In one process: the workers of pytest-xdist would not be under `bridge run`.
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        caches = Path(folder)
        starter = caches / "start.py"
        starter.write_text(STARTER)
        tests = [pool.submit(run, way, pytest, source / "test", 3600, caches) for way in ways]
        programs = {}
        for path in sorted((source / "examples").rglob("*.py")):
            if path.stem not in LEFT_OUT:
                lost = not MAKES_A_CONTEXT.search(path.read_text(errors="replace"))
                programs[path] = [*([str(starter)] if lost else []), path.name]
        futures = {
            path: [pool.submit(run, way, program, path.parent, 120, caches) for way in ways]
            for path, program in programs.items()
            if path.stem not in FILL_THE_GPU
        }
        worse = []
        print(f"{'exit status':40}" + "".join(f"{way:>14}" for way in ways))

        def show(path: Path, ends: list[tuple[int, list[str]]]) -> None:
            print(f"{path.stem:40}" + "".join(f"{status:14}" for status, _ in ends), flush=True)
            for way, (status, lines) in zip(ways, ends, strict=True):
                if status:
                    print(f"    {way}: {lines[-1][:150]}")
            if ends[0][0] == 0 and any(status for status, _ in ends[1:]):
                worse.append(path.stem)

        for path, row in futures.items():
            show(path, [future.result() for future in row])
        failed = []
        for way, future in zip(ways, tests, strict=True):
            status, lines = future.result()
            end = f"tests, {way}: {lines[-1]}"
            failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
            failed.append({line.split(" - ")[0] for line in failures})
            if status > 1:  # pytest itself did not come to its end
                failed[-1].add(end)
            print(end)
            print("\n".join(f"    {line[:150]}" for line in failures))
        for path, program in programs.items():
            if path.stem in FILL_THE_GPU:  # now that nothing else uses it
                show(path, [run(way, program, path.parent, 120, caches) for way in ways])
    worse += sorted(set().union(*failed[1:]) - failed[0])
    print(f"worse than {ways[0]}:", ", ".join(worse) or "none")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
