"""``python -m hostcuda SCRIPT`` or ``-m MODULE``: run it without a GPU."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

import hostcuda

DAMAGED = 70  # the exit status of a program that damaged memory and says nothing itself


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hostcuda", description=__doc__)
    parser.add_argument("--devices", type=int, help="how many there are; one if omitted")
    parser.add_argument(
        "--order",
        choices=hostcuda.ORDERS,
        help="when queued work runs, where CUDA allows several moments; the latest if omitted",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random order")
    parser.add_argument(
        "--orders",
        type=int,
        metavar="N",
        help="run the program in N orders, compare what it prints, and print what --check finds",
    )
    parser.add_argument(
        "--pool",
        action=argparse.BooleanOptionalAction,
        help="let CuPy's arrays share blocks, as on a GPU; without, more wrong accesses are found "
        "(the default with --check and --orders)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="find reads of memory that nothing has written, and races of work and of threads",
    )
    parser.add_argument(
        "--cover",
        metavar="FILE",
        help="append to FILE, in lcov's form, which lines of CUDA C can run and which did",
    )
    parser.add_argument("--memory", help="of each device: 4GiB, 512MiB; 1GiB if omitted")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a path; with -m, a module's name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the program")
    options = parser.parse_args(arguments)
    if not options.module and not Path(options.program).exists():
        parser.error(f"there is no file {options.program!r}; give a program, or -m and a module")
    if options.devices is not None and options.devices < 1:
        parser.error("--devices takes 1 or more")
    if options.orders is not None and (options.orders < 2 or options.order or options.cover):
        parser.error("--orders takes 2 or more, and no --order and no --cover")
    return options


def main() -> int:
    options = parse()
    program = [*["-m"] * options.module, options.program, *options.arguments]
    if options.orders:
        from hostcuda import orders  # not earlier: the program's folder may have a queue.py

        devices = [] if options.devices is None else ["--devices", str(options.devices)]
        memory = [] if options.memory is None else ["--memory", options.memory]
        program = [*devices, *memory, "--pool" if options.pool else "--no-pool", *program]
        return orders.compare(program, options.orders, options.seed)
    if options.cover:  # the program may go elsewhere
        os.environ["HOSTCUDA_COVER"] = os.path.abspath(options.cover)
    try:
        hostcuda.install(
            options.devices,
            order=options.order,
            seed=options.seed,
            pool=options.pool,
            check=options.check,
            memory=options.memory,
        )
    except hostcuda.Unsupported as error:
        print(error, file=sys.stderr)
        return 2
    if options.order:  # for the processes that the program starts, too
        os.environ["HOSTCUDA_ORDER"] = f"{options.order}:{options.seed}"
    hostcuda.print_damage()
    sys.argv[:] = [options.program, *options.arguments]
    sys.path[0] = "" if options.module else str(Path(options.program).resolve().parent)
    status = 0
    try:  # `_kept`: what the program's variables have is freed when all work has run
        if options.module:
            _kept = runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        else:
            _kept = runpy.run_path(os.path.abspath(options.program), run_name="__main__")
    except SystemExit as end:
        status = end.code
    except SyntaxError as error:
        if "Missing parentheses in call to" in str(error) and not options.module:
            error.msg += " (this is Python 2: python -m bridge migrate converts it)"
        raise
    finally:
        hostcuda.finish()
        damage, failures = hostcuda.damaged(), hostcuda.failures()
    for one in damage:
        if not one.by:  # others have been printed
            print(f"hostcuda: {one}", file=sys.stderr)
    if not (damage or failures) or status:
        return status
    sys.stdout.flush()
    return DAMAGED


if __name__ == "__main__":
    sys.exit(main())
