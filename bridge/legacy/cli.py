"""The commands ``run``, ``check`` and ``migrate`` of ``python -m bridge``."""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import import_libraries

_RUN = """Run a PyCUDA program as it is, in one context with CuPy and without nvcc:
pycuda.autoinit and make_context give the primary context, NVRTC compiles, and the functions of
SourceModule take CuPy arrays."""

_CHECK = """Say of each program and notebook whether bridge run will run it: compile the sources
that it gives to SourceModule, and name what does not compile and why, and what bridge run does not
serve. The programs are not run, and any doubt is "not known". For sources that are made when a
program runs, use bridge run --record FILE PROGRAM, then bridge check FILE. The exit status is 0 if
at least one will run, and none will not; of a record, if all of its sources compile."""

_MIGRATE = """Write an edited copy of a PyCUDA program, NAME_bridge.py, beside it. Only edits that
are certain are made; a comment, "# bridge: ...", stands where a person should decide. Python 2 is
converted first. The program is not run, unless --compare is given: then the exit status is 1 if
the copy prints something else, or one of the two fails. A copy that exists is compared as it is."""


def add_commands(commands: Any) -> None:
    """Add the commands to a parser.  Of the parsed options, `call(parser, options)` runs one.

    `commands` is what ``ArgumentParser.add_subparsers`` returns.
    """
    run = commands.add_parser(
        "run", description=_RUN, help="run a PyCUDA program with CuPy's context, and without nvcc"
    )
    run.add_argument("--pool", action="store_true", help="allocate GPUArrays in CuPy's pool")
    run.add_argument(
        "--strict",
        action="store_true",
        help="raise where a kernel would misread one of PyCUDA's arrays, instead of a warning",
    )
    run.add_argument(
        "--record", metavar="FILE", type=Path, help="write what is compiled, for `check FILE`"
    )
    run.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    _add_program(run, "a path; with -m, a module's name", "for the program")
    check = commands.add_parser(
        "check",
        description=_CHECK,
        help="list which sources of PyCUDA programs compile, and what `run` does not serve",
    )
    check.add_argument("path", metavar="PATH", help="a folder of programs, a program, or a record")
    check.add_argument("--arch", default="sm_90", help="compile for it (default: sm_90)")
    check.add_argument("--verbose", action="store_true", help="list kernels and lines, too")
    migrate = commands.add_parser(
        "migrate", description=_MIGRATE, help="write an edited copy of a PyCUDA program"
    )
    migrate.add_argument("--force", action="store_true", help="overwrite the copy of before")
    migrate.add_argument(
        "--compare", action="store_true", help="run the program and its copy, compare the output"
    )
    _add_program(migrate, "a path", "for the program, with --compare")
    for parser, call in ((run, _run), (check, _check), (migrate, _migrate)):
        parser.set_defaults(parser=parser, call=call)


def _add_program(parser: argparse.ArgumentParser, program: str, arguments: str) -> None:
    parser.add_argument("program", metavar="PROGRAM", help=program)
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help=arguments)
    rest.required = False  # in the message, too


def _refuse_notebook(parser: argparse.ArgumentParser, program: str) -> None:
    if program.endswith(".ipynb"):
        parser.error(
            f"{program} is a notebook; write %load_ext bridge in its first cell, or make a "
            "program of it: jupyter nbconvert --to script"
        )


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    _refuse_notebook(parser, options.program)
    path = Path(options.program)
    if not (options.module or path.exists()):
        parser.error(f"there is no file '{path}'; give a program, or -m and a module")
    if path.is_dir() and not (options.module or (path / "__main__.py").exists()):
        parser.error(f"'{path}' has no __main__.py; give a program")
    if record := options.record and options.record.absolute():
        try:
            record.write_text("")
        except OSError as error:
            parser.error(f"--record: {error}; give a file, which is overwritten")
    own = parser._option_string_actions.keys() - {"-h", "--help", "-m"}  # programs have these, too
    if own := own.intersection(options.arguments):
        print(
            f"bridge run: {min(own)} stands behind the program, so it is the program's; options of "
            "bridge run stand before it",
            file=sys.stderr,
        )
    from .run import replace, run

    replace(options.pool, options.strict, record)
    run([options.program, *options.arguments], options.module)
    return 0


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    path = Path(options.path)
    if not path.exists():
        parser.error(
            f"there is no {options.path!r}; give a folder of programs, a program or a record"
        )
    if not re.fullmatch(r"(sm|compute)_\d+[af]?", options.arch):
        parser.error(f"--arch: {options.arch!r} is no architecture; give one such as sm_90")
    try:
        _let_driver_be_missing()
        import_libraries()
        import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
    except (ImportError, RuntimeError) as error:  # RuntimeError: there is no NVRTC
        sys.exit(f"FAILED: {error}")
    from .check import check_programs, check_record

    is_record = path.is_file() and path.suffix not in (".py", ".ipynb")
    try:
        found = (check_record if is_record else check_programs)(path, options.arch, options.verbose)
    except (ImportError, SyntaxError, ValueError, RecursionError, OSError) as error:
        parser.error(f"{path}: {error}")
    return 0 if found else 1


def _let_driver_be_missing() -> None:
    """Install the host driver where there is none, and it is installed; the real NVRTC compiles."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with suppress(ImportError):
            import_module("hostcuda").install(compilers=False)


def _migrate(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    _refuse_notebook(parser, options.program)
    path = Path(options.program)
    if not path.is_file():
        parser.error(f"there is no file {options.program!r}; give a program")
    if options.arguments and not options.compare:
        parser.error(
            f"{options.arguments[0]!r} is for the program, which only --compare runs; options of "
            "bridge migrate stand before the program"
        )
    copy = path.with_name(f"{path.stem}_bridge{path.suffix}")
    keep = copy.exists() and not options.force
    if keep and not options.compare:
        parser.error(
            f"{copy} exists, perhaps with your edits; --force overwrites it, --compare runs it"
        )
    try:
        from .migrate.command import write_copy

        equal = write_copy(path, copy, options.arguments if options.compare else None, keep)
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    return 0 if equal else 1
