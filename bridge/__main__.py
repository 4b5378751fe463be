"""``python -m bridge``: check the installation; ``run``, ``check`` or ``migrate`` programs."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):  # Python 3.11
    del sys.path[0]  # the current folder: a random.py there is not Python's

import argparse
import signal

from . import __version__
from .legacy.cli import add_commands


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bridge",
        description="Without a command, check the installation: print the configuration, then "
        "share real buffers between PyCUDA and CuPy and check the results. The exit status is 1 if "
        "a check fails. Without a GPU, write `python -m hostcuda` for `python`. The documentation "
        "is in the folder docs of bridge's source.",
    )
    parser.add_argument("--version", action="version", version=f"bridge {__version__}")
    parser.add_argument("--config", action="store_true", help="print the configuration only")
    add_commands(parser.add_subparsers(dest="command", title="command"))
    parser.set_defaults(parser=parser)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command:
        status: int = options.call(options.parser, options)
        return status
    from .report import print_rows, self_test, show_config

    if options.config:
        show_config()
        return 0
    try:
        try:
            from . import autoinit  # noqa: F401  (its error says what is missing)
        finally:
            print_rows(omitted="replaced")  # by the import
            print()
        self_test()
    except Exception as error:
        print(f"FAILED: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] != ["run"]:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader, `head` for one, may end first
    sys.exit(main())
