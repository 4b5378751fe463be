"""nvcc, as PyCUDA and CuPy call it: the "cubin" is a host shared object, by NVRTC and g++."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hostcuda import _build, _nvrtc


def main(arguments):
    if "--version" in arguments:
        # PyCUDA's disk cache is keyed by this text.
        major, minor = _nvrtc.version()
        print(f"nvcc of hostcuda, release {major}.{minor}, {_build.compiler_key()}")
        return 0
    path = next((Path(a) for a in arguments if a.endswith(".cu")), None)
    if path is None:
        print("nvcc of hostcuda: no .cu file among the arguments", file=sys.stderr)
        return 1
    source = path.read_text()
    forms = ("cubin", "ptx", "fatbin")
    form = next((f for f in forms if {f"-{f}", f"--{f}"} & {*arguments}), "cubin")
    target = path.with_suffix(f".{form}")
    if "-o" in arguments:
        target = Path(arguments[arguments.index("-o") + 1])
    try:
        if "--preprocess" in arguments or "-E" in arguments:
            print(_build.check(source, arguments, of_nvcc=True).ptx)
        elif form == "ptx" and not source:  # CuPy asks for the compiler's version
            target.write_text(f"// {_build.compiler_key()}\n")
        else:
            whole = target.with_name(f"{target.name}.new")
            whole.write_bytes(_build.compile(source, arguments, of_nvcc=True).image)
            whole.replace(target)
    except _build.CompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


sys.exit(main(sys.argv[1:]))
