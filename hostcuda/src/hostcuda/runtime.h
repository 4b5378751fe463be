// How a replacement of a function of CuPy's runtime is written (runtime.cpp): ENTRY, or one of the
// shorter forms below it.
#pragma once
#include "api.h"
#include "python.h"

#include <type_traits>

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

// Passes its parameters on, and answers None.
template <auto call, class... Given> struct Pass;
template <class... P, CUresult (*call)(P...), class... Given> struct Pass<call, Given...> {
  static PyObject *run(Given... given, int) { return none(ready() ?: call((P)given...)); }
};
// Passes them on, and answers what `call` puts into its first one.
template <auto call, class Type, class... Given> struct Make;
template <class T, class... P, CUresult (*call)(T *, P...), class Type, class... Given>
struct Make<call, Type, Given...> {
  static Type run(Given... given, int) {
    T value{};
    return failed(ready() ?: call(&value, (P)given...)) ? Type(std::is_same_v<Type, int> ? -1 : 0) : (Type)value;
  }
};

}  // namespace hostcuda

#define SKIP "int __pyx_skip_dispatch"
#define OPTIONAL(name)                                                      \
  ", struct __pyx_opt_args_13cupy_backends_4cuda_3api_7runtime_" #name " *" \
  "__pyx_optional_args"
#define ROW(name, signature, ...) \
  static int at_##name = (table[entries] = {#name, signature, (void *)__VA_ARGS__}, entries++);
#define ENTRY(type, name, signature, params)   \
  static type rt_##name params;                \
  ROW(name, #type signature, rt_##name)        \
  static type rt_##name params
#define PASS(name, call, ...) ROW(name, "PyObject *(" #__VA_ARGS__ ", " SKIP ")", Pass<call, __VA_ARGS__>::run)
#define MAKE(type, name, call, ...) ROW(name, #type " (" #__VA_ARGS__ ", " SKIP ")", Make<call, type, __VA_ARGS__>::run)
#define OBJECT(name, signature, params, body) \
  ENTRY(PyObject *, name, "(" signature ")", params) { return body; }
#define NUMBER(type, name, signature, params, on_error, variable, call) \
  ENTRY(type, name, " (" signature ")", params) {                       \
    variable{};                                                         \
    return failed(call) ? on_error : (type)(value);                     \
  }
#define READY(call) none(ready() ?: (call))
