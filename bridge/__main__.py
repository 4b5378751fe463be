"""``python -m bridge``: print the configuration, then bridge real buffers and check them."""

from __future__ import annotations

import argparse
import signal
import sys

from .report import check, show_config


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bridge",
        description="Print the configuration, then share real buffers between PyCUDA and CuPy and "
        "check the results. The exit status is 1 if a check fails.",
    )
    parser.add_argument("--config", action="store_true", help="print the configuration only")
    only_config = parser.parse_args(arguments).config
    show_config()
    if not only_config:
        print()
        try:
            from . import autoinit  # noqa: F401  (its error says what is missing)

            check()
        except Exception as error:
            print(f"FAILED: {type(error).__name__}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader, `head` for one, may end first
    sys.exit(main())
