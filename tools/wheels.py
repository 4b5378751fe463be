#!/usr/bin/env python3
"""Build wheels of the package and of PyCUDA for each Python on PATH, and try each: `make wheels`.

``dist/`` gets the sdist, the package's wheels and that of `hostcuda`: what a release publishes.
``dist/cuda12`` and ``dist/cuda13`` get PyCUDA, of which PyPI has no wheels: built by
`tools/build_pycuda.py`, with CUDA's version in its own, and with the CUDA libraries that it loads
as requirements.  The wheels get the manylinux tag that the C library of this machine allows.  Then
an empty environment gets them, no other source is compiled, and the demo runs there, if there is a
GPU or the machine is x86-64.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import build_pycuda

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; if it fails, show its output and end."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nwheels: {' '.join(map(str, command))} failed")


def repair(wheel: Path, destination: Path) -> None:
    """Put a wheel with a manylinux tag into `destination`; CUDA's libraries stay outside of it."""
    left_out = ("--exclude", "libcuda.so.1", "--exclude", "libcurand.so.10")
    run(sys.executable, "-m", "auditwheel", "repair", *left_out, "-w", destination, wheel)


def build(python: str, sdist: Path, folder: Path) -> None:
    """Build a wheel of the package from the sdist."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    run(*pip, "-w", folder, sdist)
    repair(*folder.glob("*.whl"), DIST)


def build_of_pycuda(python: str, version: str, cuda: str, folder: Path) -> None:
    """Build a wheel of PyCUDA that says its CUDA version and requires that version's libraries."""
    run(python, "-m", "venv", folder / "env")
    run(folder / "env/bin/python", ROOT / "tools/build_pycuda.py", "--cuda", cuda, "--wheel")
    release = build_pycuda.CUDA[cuda][0]
    tag = f"cp{version.replace('.', '')}"
    built = max((build_pycuda.CACHE / f"cuda{release}").glob(f"pycuda-*-{tag}-*.whl"))
    wheel = [sys.executable, "-m", "wheel"]
    run(*wheel, "unpack", "-d", folder, built)
    (metadata,) = folder.glob("pycuda-*/pycuda-*.dist-info/METADATA")
    name = metadata.parent.name.removesuffix(".dist-info")
    number = name.removeprefix("pycuda-")
    text = metadata.read_text().replace(
        f"\nVersion: {number}\n",
        f"\nVersion: {number}+cuda{release}\n"
        f"Requires-Dist: {build_pycuda.LIBRARIES.format(release)}\n",
        1,
    )
    metadata.write_text(text)
    metadata.parent.rename(metadata.parent.with_name(f"{name}+cuda{release}.dist-info"))
    run(*wheel, "pack", "-d", folder, folder / name)
    repair(*folder.glob("*.whl"), DIST / f"cuda{cuda}")


def check(python: str, cuda: str, gpu: bool, folder: Path) -> None:
    """Install the wheels in an empty environment, compile nothing, and run the demo with them."""
    run(python, "-m", "venv", folder / "env")
    there = folder / "env/bin/python"
    pip = [there, "-m", "pip", "--disable-pip-version-check"]
    wheels = ["--find-links", DIST, "--find-links", DIST / f"cuda{cuda}"]
    run(*pip, "install", "--only-binary=:all:", *wheels, f"pycuda-cupy-bridge[cuda{cuda}]")
    run(*pip, "check")
    run(there, "-c", "import bridge; assert 'site-packages' in bridge.__file__", cwd=folder)
    if not gpu and platform.machine() != "x86_64":
        return  # hostcuda loads code for x86-64 only
    if not gpu:
        run(*pip, "install", *wheels, "hostcuda")
    run(there, *([] if gpu else ["-m", "hostcuda"]), ROOT / "tools/demo.py", cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="try the wheels on the GPU")
    parser.add_argument("--pythons", nargs="+", default=["3.10", "3.11", "3.12", "3.13", "3.14"])
    parser.add_argument("--cuda", nargs="+", choices=build_pycuda.CUDA, default=build_pycuda.CUDA)
    options = parser.parse_args()
    for old in DIST, ROOT / "hostcuda/build":
        shutil.rmtree(old, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", DIST, ROOT / "hostcuda")
    for version in options.pythons:
        python = shutil.which(f"python{version}") or sys.exit(f"wheels: no python{version} on PATH")
        with tempfile.TemporaryDirectory() as folder:
            build(python, sdist, Path(folder))
        for cuda in options.cuda:
            print(f"Python {version}, CUDA {cuda}: ", end="", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                build_of_pycuda(python, version, cuda, Path(folder))
            print("built", end="", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                check(python, cuda, options.gpu, Path(folder))
            print(", installed and tried", flush=True)
    released = [path for path in DIST.iterdir() if path.is_file()]
    run(sys.executable, "-m", "twine", "check", "--strict", *released)
    for path in sorted(DIST.rglob("*.*")):
        print(f"{path.stat().st_size >> 10:6} KB  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
