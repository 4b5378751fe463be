// Functions that CuPy's modules look up by name: of cuFFT, for which an empty library is there
// (_build.py), and C++ functions inside of `cupy.cuda.thrust` and `cupy.random._generator_api`. The
// dynamic linker takes these, as this library was loaded before. Each asks a Python function of
// _linked.py with numbers.
#include "api.h"
#include "python.h"

namespace {

template <class... T>
int ask(const char *name, T... numbers) {
  if (python_ends) return 0;
  return with_python([=] {
    std::string format(sizeof...(T), 'L');
    PyObject *module = PyImport_ImportModule("hostcuda._linked"), *answer = nullptr;
    if (module) answer = PyObject_CallMethod(module, name, format.c_str(), (long long)numbers...);
    if (module) Py_DecRef(module);
    if (!answer) return PyErr_Print(), 5;  // CUFFT_INTERNAL_ERROR
    int status = int(PyLong_AsLong(answer));
    Py_DecRef(answer);
    return status;
  });
}

}  // namespace

// ---- cuFFT --------------------------------------------------------------------------------------

#define CUFFT EXPORT int

CUFFT cufftGetVersion(int *version) { return *version = 11000, 0; }
CUFFT cufftCreate(int *plan) { return *plan = ask("create"), 0; }
CUFFT cufftDestroy(int plan) { return ask("destroy", plan); }
CUFFT cufftSetStream(int plan, CUstream stream) { return ask("set_stream", plan, stream); }
CUFFT cufftSetAutoAllocation(int, int) { return 0; }
CUFFT cufftSetWorkArea(int, void *) { return 0; }
CUFFT cufftMakePlan1d(int plan, int n, int type, int batches, size_t *work) {
  return *work = 0, ask("plan", plan, 1, 4, &n, 0, 1, 0, 0, 1, 0, batches, type, type);
}
CUFFT cufftMakePlanMany(int plan, int rank, int *n, int *inembed, int istride, int idist,
                        int *onembed, int ostride, int odist, int type, int batches, size_t *work) {
  return *work = 0, ask("plan", plan, rank, 4, n, inembed, istride, idist, onembed, ostride, odist,
                        batches, type, type);
}
CUFFT cufftXtMakePlanMany(int plan, int rank, long long *n, long long *inembed, long long istride,
                          long long idist, int in, long long *onembed, long long ostride,
                          long long odist, int out, long long batches, size_t *work, int) {
  return *work = 0, ask("plan", plan, rank, 8, n, inembed, istride, idist, onembed, ostride, odist,
                        batches, in, out);
}
#define EXECUTE(name) \
  CUFFT cufftExec##name(int plan, void *in, void *out) { return ask("execute", plan, in, out, 0); }
EXECUTE(R2C) EXECUTE(C2R) EXECUTE(D2Z) EXECUTE(Z2D)
#define EXECUTE_COMPLEX(name)                         \
  CUFFT name(int plan, void *in, void *out, int sign) { \
    return ask("execute", plan, in, out, sign);         \
  }
EXECUTE_COMPLEX(cufftExecC2C) EXECUTE_COMPLEX(cufftExecZ2Z) EXECUTE_COMPLEX(cufftXtExec)
// Several devices
#define REFUSE_CUFFT(name) CUFFT name() { return 16; }  // CUFFT_NOT_SUPPORTED
REFUSE_CUFFT(cufftXtSetGPUs) REFUSE_CUFFT(cufftXtSetWorkArea) REFUSE_CUFFT(cufftXtMemcpy)
REFUSE_CUFFT(cufftXtExecDescriptorC2C) REFUSE_CUFFT(cufftXtExecDescriptorZ2Z)

// ---- Thrust -------------------------------------------------------------------------------------

#define LINKED __attribute__((visibility("default"))) void
using Shape = std::vector<ptrdiff_t>;

LINKED thrust_sort(int type, void *data, size_t *, const Shape &shape, intptr_t stream, void *) {
  ask("sort", type, data, shape.data(), shape.size(), stream);
}
LINKED thrust_lexsort(int type, size_t *indices, void *keys, size_t k, size_t n, intptr_t stream,
                      void *) {
  ask("lexsort", type, indices, keys, k, n, stream);
}
LINKED thrust_argsort(int type, size_t *indices, void *data, void *, const Shape &shape,
                      intptr_t stream, void *) {
  ask("argsort", type, indices, data, shape.data(), shape.size(), stream);
}

// ---- generators ---------------------------------------------------------------------------------

LINKED init_curand_generator(int, intptr_t state, uint64_t seed, ssize_t, intptr_t stream) {
  ask("seed", state, seed, stream);
}

// CuPy's number of the generator, its state, and where `n` numbers go.
#define TARGET int, intptr_t state, ssize_t, intptr_t out, ssize_t n, intptr_t stream
#define DRAW(name, ...) { ask(name, state, out, n, stream, ##__VA_ARGS__); }

LINKED raw(TARGET) DRAW("raw")
LINKED random_uniform(TARGET) DRAW("random_uniform")
LINKED random_uniform_float(TARGET) DRAW("random_uniform_float")
LINKED exponential(TARGET) DRAW("exponential")
LINKED standard_normal(TARGET) DRAW("standard_normal")
LINKED standard_normal_float(TARGET) DRAW("standard_normal_float")
LINKED interval_32(TARGET, uint32_t most, uint32_t) DRAW("interval_32", most)
LINKED interval_64(TARGET, uint64_t most, uint64_t) DRAW("interval_64", most)
LINKED interval_32(TARGET, int32_t most, int32_t) DRAW("interval_32", most)  // of CuPy 13
LINKED interval_64(TARGET, int64_t most, int64_t) DRAW("interval_64", most)
LINKED standard_gamma(TARGET, intptr_t a) DRAW("standard_gamma", a)
LINKED poisson(TARGET, intptr_t a) DRAW("poisson", a)
LINKED geometric(TARGET, intptr_t a) DRAW("geometric", a)
LINKED logseries(TARGET, intptr_t a) DRAW("logseries", a)
LINKED beta(TARGET, intptr_t a, intptr_t b) DRAW("beta", a, b)
LINKED binomial(TARGET, intptr_t a, intptr_t b, intptr_t) DRAW("binomial", a, b)
LINKED hypergeometric(TARGET, intptr_t a, intptr_t b, intptr_t c) DRAW("hypergeometric", a, b, c)
