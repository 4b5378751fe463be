"""``python -m bridge``: print the configuration, then bridge real buffers and check them."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from .report import check, count_gpus, show_config

DESCRIPTION = (
    "Print the configuration, then share real buffers between PyCUDA and CuPy and check the "
    "results. The exit status is 1 if a check fails."
)
TESTS = Path(__file__).resolve().parents[1] / "tests"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bridge", description=DESCRIPTION)
    parser.add_argument("--config", action="store_true", help="print the configuration only")
    if parser.parse_args(arguments).config:
        show_config()
        return 0
    on_gpu = count_gpus() > 0
    if not on_gpu:
        if not (TESTS / "hostcuda").is_dir():
            print("No GPU found, so there is nothing to bridge; --config prints what is installed.")
            print("The source checkout has a CUDA driver on host memory, to look on without a GPU.")
            return 1
        print("No GPU found: what follows runs on a CUDA driver in host memory, with kernels")
        print("emulated. The times are of the host's part only and say nothing of a GPU.\n")
        sys.path.insert(0, str(TESTS))
        import hostcuda

        hostcuda.install()
    show_config()
    print()
    return check()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader, `head` for one, may end first
    sys.exit(main())
