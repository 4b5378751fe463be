// The few Python functions needed: the process has them, its headers may be absent.
#pragma once
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>

extern "C" {
struct PyObject;
struct PyThreadState;
extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_RuntimeError;
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
int Py_IsInitialized();
PyObject *Py_BuildValue(const char *, ...);
long PyLong_AsLong(PyObject *);
PyObject *PyLong_FromLong(long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyNumber_Long(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, long);
PyObject *PyUnicode_FromString(const char *);
const char *PyUnicode_AsUTF8(PyObject *);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
void PyErr_Clear();
PyObject *PyErr_Occurred();
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_Print();
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
void PyErr_SetInterrupt();
void PyErr_SetObject(PyObject *, PyObject *);
void PyErr_SetString(PyObject *, const char *);
void PyErr_WriteUnraisable(PyObject *);
PyThreadState *PyEval_SaveThread();
void PyEval_RestoreThread(PyThreadState *);
int PyGILState_Check();
int PyGILState_Ensure();
PyThreadState *PyGILState_GetThisThreadState();
void PyGILState_Release(int);
int PyGC_Disable();
int PyGC_Enable();
}

namespace hostcuda {

inline std::atomic<bool> python_ends = false;  // soon: no Python function is called any more
inline std::atomic<int> python_callers = 0;    // which have Python's own lock, or wait for it

// Where the interpreter ends, Python ends a thread that waits for its lock, by an exception that
// callers in C++ may not pass on. Such a thread stays, as with Python 3.14.
template <class F>
auto or_stay(F function) {
  try {
    return function();
  } catch (abi::__forced_unwind &) {
    for (;;) pause();
  }
}

// Calls a function with Python's own lock, and no exception of before.
template <class F>
auto with_python(F function) {
  return or_stay([&] {
    ++python_callers;
    int state = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    auto answer = function();
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(state);
    --python_callers;
    return answer;
  });
}

// Keeps an object of Python's.
struct Object {
  PyObject *it;
  explicit Object(PyObject *o) : it(o) { Py_IncRef(o); }
  Object(const Object &) = delete;
  ~Object() {
    if (!python_ends) with_python([this] { return Py_DecRef(it), 0; });
  }
};

}  // namespace hostcuda
