// How a replacement of a function of CuPy's runtime is written (runtime.cpp): ENTRY, or one of the
// shorter forms below it.
#pragma once
#include "api.h"
#include "python.h"

namespace hostcuda {

struct Entry {
  const char *name, *signature;
  void *function;
};
extern Entry table[128];
extern int entries;

// Queue calls of Python functions (callbacks.cpp).
CUresult launch_python(CUstream stream, PyObject *function, intptr_t argument);
CUresult launch_python(CUstream stream, PyObject *pair);  // of function and argument
CUresult add_python(CUstream stream, PyObject *function, intptr_t argument);

bool failed(CUresult status);     // raises it
PyObject *none(CUresult status);  // None, unless it failed

template <class H>
H handle(intptr_t value) {
  return reinterpret_cast<H>(value);
}

}  // namespace hostcuda

#define SKIP "int __pyx_skip_dispatch"
#define OPTIONAL(name)                                                      \
  ", struct __pyx_opt_args_13cupy_backends_4cuda_3api_7runtime_" #name " *" \
  "__pyx_optional_args"
#define ENTRY(type, name, signature, params)                                     \
  static type rt_##name params;                                                  \
  static int at_##name =                                                         \
      (table[entries] = {#name, #type signature, (void *)rt_##name}, entries++); \
  static type rt_##name params
#define OBJECT(name, signature, params, body) \
  ENTRY(PyObject *, name, "(" signature ")", params) { return body; }
#define NUMBER(type, name, signature, params, on_error, variable, call) \
  ENTRY(type, name, " (" signature ")", params) {                       \
    variable{};                                                         \
    return failed(call) ? on_error : (type)(value);                     \
  }
#define READY(call) none(ready() ?: (call))
