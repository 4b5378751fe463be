"""Source written by string.Template: a polynomial unrolled by Horner's rule."""

from string import Template

import numpy as np
import pycuda.gpuarray as gpuarray

COEFFICIENTS = [3, -1, 0, 2, 5]  # 3 - x + 2 x^3 + 5 x^4

TEMPLATE = Template("""
__global__ void ${name}(${ctype} *x, const int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        const ${ctype} t = x[i];
        x[i] = ${expression};
    }
}
""")


def horner(coefficients):
    if len(coefficients) == 1:
        return str(coefficients[0])
    return f"{coefficients[0]} + t * ({horner(coefficients[1:])})"


def run(SourceModule):
    expression = horner(COEFFICIENTS)
    source = "\n".join(
        TEMPLATE.substitute(name=f"poly_{ctype}", ctype=ctype, expression=expression)
        for ctype in ("int", "float", "double")
    )
    mod = SourceModule(source)
    results = {}
    for ctype, dtype in (("int", np.int32), ("float", np.float32), ("double", np.float64)):
        x = gpuarray.to_gpu(np.arange(-20, 20).astype(dtype))
        mod.get_function("poly_" + ctype)(x, np.int32(x.size), block=(32, 1, 1), grid=(2, 1))
        results[ctype] = x.get()
    return results


def expected():
    y = np.polyval(COEFFICIENTS[::-1], np.arange(-20, 20))
    return {
        "int": y.astype(np.int32),
        "float": y.astype(np.float32),
        "double": y.astype(np.float64),
    }
