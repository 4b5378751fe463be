// Work that is a Python function: what libraries with their own GPU code do (_work.py).
#include "api.h"
#include "fibers.h"
#include "python.h"

#include <chrono>
#include <utility>

namespace {

// Answers what went wrong. Meanwhile no destructor calls the driver, whose state is in between.
std::string call(PyObject *function) {
  bool collects = PyGC_Disable();
  PyObject *answer = PyObject_CallFunction(function, nullptr);
  if (collects) PyGC_Enable();
  if (!answer) return PyErr_Clear(), PyErr_SetInterrupt(), "was interrupted";  // by Ctrl-C
  const char *text = answer == &_Py_NoneStruct ? "" : PyUnicode_AsUTF8(answer);
  std::string wrong = text ? text : "failed";
  PyErr_Clear();
  Py_DecRef(answer);
  return wrong;
}

thread_local bool ends_python = false;

// What runs, and where.
Context *working = nullptr;
std::string work_name;

void end_with(CUresult status, const std::string &message) {
  if (!!working->dead) return;
  working->dead = status, working->dead.message = work_name + ": " + message;
  tell(working->dead.message);
}

// May the work that runs use these bytes? If not, its context fails.
bool may_use(const std::vector<Range> &reads, const std::vector<Range> &writes) {
  for (auto *ranges : {&reads, &writes})
    for (auto &range : *ranges) {
      std::string wrong = wrong_memory(*working, range.start, range.size);
      if (wrong.empty()) continue;
      const char *verb = ranges == &reads ? "reads" : "writes";
      end_with(CUDA_ERROR_ILLEGAL_ADDRESS, text("%s %zu bytes", verb, range.size) + wrong);
      return false;
    }
  check_written(work_name, reads);
  return true;
}

}  // namespace

// A destructor may call the driver while an exception is on its way.
void hostcuda::Called::ask() {
  if (!python_ends) with_python([] { return driver.ask_caller(), 0; });
}

// Python's lock comes before the driver's, whose owner may wait for Python's.
void hostcuda::Lock::take() {
  while (!driver.lock.try_lock_for(std::chrono::milliseconds(1))) {
    if (!python_callers || !Py_IsInitialized() || !PyGILState_Check()) continue;
    PyThreadState *state = PyEval_SaveThread();
    driver.lock.lock(), driver.lock.unlock();
    or_stay([&] { PyEval_RestoreThread(state); });
  }
  ++held;
  if (!python_ends || ends_python || !PyGILState_GetThisThreadState()) return;
  driver.lock.unlock();  // a daemon thread, beside the end of the process
  if (PyGILState_Check()) PyEval_SaveThread();
  for (;;) pause();
}

// Wait for another thread, which may need the driver or Python.
void hostcuda::wait_unlocked(const std::shared_future<void> &given) {
  auto end = given;
  int held = std::exchange(Lock::held, 0);
  bool is_cleanup = driver.is_cleanup;
  ++driver.unlocked;
  for (int i = 0; i < held; ++i) driver.lock.unlock();
  PyThreadState *state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  end.wait();
  if (state) or_stay([&] { PyEval_RestoreThread(state); });
  for (int i = 0; i < held; ++i) Lock::take();
  --driver.unlocked;
  driver.is_cleanup = is_cleanup;
}

// Queue a Python function, which answers None, or what went wrong.
EXPORT CUresult hostcuda_enqueue(CUstream handle, const char *name, PyObject *function,
                                 const Range *reads, size_t read_count, const Range *writes,
                                 size_t write_count) {
  TRY(ready());
  ENTER;
  STREAM(stream, handle);
  TRY(may_queue(*stream));
  auto kept = std::make_shared<Object>(function);
  Work work = {name, {reads, reads + read_count}, {writes, writes + write_count}, nullptr};
  work.run = [kept, ctx = stream->ctx, name = work.name, in = work.reads, out = work.writes] {
    working = ctx, work_name = name;
    if (!may_use(in, out)) return;
    std::string wrong = python_ends ? "" : with_python([&] { return call(kept->it); });
    if (!wrong.empty()) end_with(CUDA_ERROR_LAUNCH_FAILED, wrong);
  };
  enqueue(*stream, std::move(work));
  return CUDA_SUCCESS;
}

// The function that runs has found in memory what it uses, too.
EXPORT bool hostcuda_use(const Range *reads, size_t read_count, const Range *writes,
                         size_t write_count) {
  std::vector<Range> in(reads, reads + read_count), out(writes, writes + write_count);
  if (!may_use(in, out)) return false;
  add_uses(in, out);
  return true;
}

// The interpreter ends in this thread. Python functions that are queued are dropped, and no other
// thread of Python's enters the driver any more: it could not get Python's lock.
EXPORT void hostcuda_end_python() {
  Lock lock;
  python_ends = ends_python = true;
}
