"""``python -m bridge``: print the configuration, then bridge real buffers and check them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .config import count_gpus, show_config


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bridge",
        description="Print the configuration, then share real buffers between PyCUDA and CuPy "
        "and check the results. The exit status is 1 if a check fails.",
    )
    parser.add_argument("--config", action="store_true", help="print the configuration only")
    options = parser.parse_args(arguments)

    on_gpu = count_gpus() > 0
    if not options.config and not on_gpu and not _use_host_driver():
        return 1
    show_config()
    if options.config:
        return 0

    from . import selfcheck  # imports both libraries, so not before there is a driver

    print()
    failed = selfcheck.run(on_gpu)
    print(f"\n{f'{failed} checks failed' if failed else 'all checks passed'}")
    return 1 if failed else 0


def _use_host_driver() -> bool:
    folder = Path(__file__).resolve().parents[1] / "tests"
    if not (folder / "hostcuda").is_dir():
        print("No GPU found, so there is nothing to bridge; --config prints what is installed.")
        print("The source checkout has a CUDA driver on host memory, to look on without a GPU.")
        return False
    print("No GPU found: what follows runs on a CUDA driver in host memory, with kernels")
    print("emulated. The times are of the host's part only and say nothing of a GPU.\n")
    sys.path.insert(0, str(folder))
    import hostcuda

    hostcuda.install()
    return True


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
