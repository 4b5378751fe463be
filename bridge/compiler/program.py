"""One compilation, from a request to code: options, the cache, and NVRTC with fixes."""

from __future__ import annotations

import functools
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pycuda.driver as drv

from ..errors import warn
from . import cache, fixes, messages, signature
from .nvrtc import Compiled, Program, compile_on_thread, start
from .options import translate
from .signature import Member, Parameter, entries, expression, kernel_names, read_signature


class Request(NamedTuple):
    """What to compile: the arguments of ``pycuda.compiler.compile``, in their order."""

    source: str
    nvcc: str = "nvcc"
    options: Any = None  # nvcc's, a list
    keep: bool = False
    no_extern_c: bool = False
    arch: str | None = None
    code: str | None = None
    cache_dir: Any = None
    include_dirs: Any = None


recorders: list[Callable[[Request], None]] = []  # called with each request


def examine(request: Request, default_arch: str) -> dict[str, tuple[Parameter, ...] | None]:
    """Compile a request, and return the parameters of its kernels, None if they are not known.

    Raise as `compile` does.
    """
    source = request.source
    code, mangled, *_ = compile(request, default_arch, kernel_names(source))
    asked = {name: mangled.get(expression(name)) for name in entries(code)}
    return {name: read_signature(one, source, name) if one else None for name, one in asked.items()}


def compile(
    request: Request,
    default_arch: str,
    kernels: Sequence[str] | None = None,
    options: Sequence[str] = (),
) -> Compiled:
    """Compile a request with NVRTC; return the code, and the mangled names of its kernels.

    These are `kernels`, and those that a macro or a header makes, for which NVRTC compiles a second
    time; none if `kernels` is None.  `options` are passed to NVRTC as they are.
    """
    for record in recorders:
        record(request)
    if request.nvcc != "nvcc":
        warn(
            f"nvcc={request.nvcc!r} is ignored, since NVRTC compiles: leave it out, or compile "
            "with bridge.SourceModule(..., backend='nvcc')"
        )
    program = _program(request, default_arch, options)
    return cache.get(
        program._replace(expressions=_expressions(kernels or ())),
        False if request.keep else request.cache_dir,  # what is kept is new each time
        functools.partial(_compiled_for_use, request, kernels is not None),
    )


def _program(request: Request, default_arch: str, options: Sequence[str] = ()) -> Program:
    targets = ("-arch", request.arch), ("-code", request.code)
    given = [f"{name}={value}" for name, value in targets if value is not None]
    arch, folders, translated = translate([*request.options, *given])
    return Program(
        request.source.removeprefix("\ufeff"),  # a byte-order mark, as editors write it
        arch or default_arch,
        (*translated, *options, *["-G"] * drv.CUDA_DEBUGGING),
        (*folders, *request.include_dirs),
        not request.no_extern_c,
        is_relaxed=any("expt-relaxed-constexpr" in option for option in request.options),
    )


def _compiled(program: Program) -> tuple[Program, Compiled]:
    """Compile; return the code, and the program with the fixes that it needed."""
    start()
    program = fixes.before_first_attempt(program)
    while isinstance(compiled := compile_on_thread(program), str):
        fixed = fixes.after_failed_attempt(program, compiled)
        if fixed is None:
            raise messages.compile_error(program, compiled)
        program = fixed
    return program, compiled


def _compiled_for_use(request: Request, has_kernels: bool, program: Program) -> Compiled:
    program, compiled = _compiled(program)
    if has_kernels:
        compiled = _with_all_kernels(program, compiled)
    if request.keep or drv.CUDA_DEBUGGING:
        folder = Path(tempfile.mkdtemp())
        (folder / "kernel.cu").write_text(program.translation_unit(), encoding="utf-8")
        (folder / "kernel.cubin").write_bytes(compiled.code)
        print(f"*** compiler output in {folder}")
    if remarks := messages.remarks(program, compiled.log):
        warn(f"NVRTC compiled the source, but says:\n{remarks}")
    return compiled


def find_members(
    request: Request, default_arch: str, struct: str, names: Sequence[str]
) -> tuple[int, dict[str, Member]]:
    """Return the size of a struct in bytes, and those of the members that it has.

    `struct` is a type in C++.  The request has been compiled before, and its warnings have been
    shown.  If it does not compile with the questions, the size is 0.
    """
    templates, questions = signature.member_questions(struct, names)
    program = _program(request, default_arch)._replace(expressions=questions, templates=templates)
    with warnings.catch_warnings(), suppress(drv.CompileError):
        warnings.simplefilter("ignore")
        found = cache.get(program, request.cache_dir, lambda program: _compiled(program)[1])
        types, numbers = map(found.mangled.get, questions)
        return signature.read_members(types, numbers, names)
    return 0, {}


def _expressions(kernels: Sequence[str]) -> tuple[str, ...]:
    return (*kernels, *map(expression, kernels))


def _with_all_kernels(program: Program, compiled: Compiled) -> Compiled:
    """Compile again if the code has kernels whose types have not been asked for."""
    missed = [
        name
        for name in entries(compiled.code)
        if name not in program.expressions and re.fullmatch(r"\w+", name)  # no template's
    ]
    if not missed:
        return compiled
    again = compile_on_thread(
        program._replace(expressions=(*program.expressions, *_expressions(missed)))
    )
    return again if isinstance(again, Compiled) else compiled
