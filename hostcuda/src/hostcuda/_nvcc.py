"""nvcc, as pycuda.compiler calls it, with g++ behind it: the "cubin" is a host shared object."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hostcuda import _build


def main(arguments):
    if "--version" in arguments:
        # PyCUDA's disk cache is keyed by this text.
        print(f"nvcc of hostcuda, {_build.compiler_key()}")
        return 0
    path = next((Path(a) for a in arguments if a.endswith(".cu")), None)
    if path is None:
        print("nvcc of hostcuda: no .cu file among the arguments", file=sys.stderr)
        return 1
    try:
        if "--preprocess" in arguments or "-E" in arguments:
            print(_build.preprocess(path.read_text(), arguments))
        else:
            kind = next((k for k in ("cubin", "ptx", "fatbin") if f"--{k}" in arguments), "cubin")
            path.with_suffix(f".{kind}").write_bytes(
                _build.compile(path.read_text(), arguments, of_nvcc=True).image
            )
    except _build.CompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


sys.exit(main(sys.argv[1:]))
