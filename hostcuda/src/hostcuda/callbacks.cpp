// Host functions: work that a thread of the driver's own calls, with no lock held, as CUDA does.
#include "api.h"
#include "python.h"

#include <condition_variable>
#include <thread>

namespace {

using Steady = std::chrono::steady_clock;

// A program may wait for the function alone, and never for its stream. So after this time the stream
// runs by itself, as a GPU does.
const std::chrono::milliseconds PATIENCE(20);

struct Waiting {
  shared_ptr<Stream> stream;
  uint64_t seq;
  shared_ptr<HostCall> call;
  Steady::time_point due;
};
auto &waiting = *new std::deque<Waiting>;  // by seq
auto &changed = *new std::condition_variable_any;

auto a_ready_one() {
  return std::find_if(waiting.begin(), waiting.end(), [](const Waiting &w) { return w.call->is_ready; });
}

void serve() {
  std::unique_lock lock(driver.lock);
  while (!python_ends) {
    auto found = a_ready_one();
    if (waiting.empty()) {
      changed.wait(lock);
    } else if (found != waiting.end()) {
      Waiting one = *found;
      waiting.erase(found);
      CUresult status = one.stream->ctx->dead;
      lock.unlock();
      in_host_function = true;
      one.call->function(status);
      in_host_function = false;
      lock.lock();
      one.call->end();
      run(*one.stream, driver.order == Order::earliest ? LATEST : one.seq, Waits::no);
    } else if (waiting.front().due <= Steady::now()) {
      Waiting one = waiting.front();
      run(*one.stream, one.seq, Waits::no);  // so that it is ready
    } else {
      changed.wait_until(lock, waiting.front().due);
    }
  }
}

CUresult enqueue_call(CUstream handle, bool in_graphs, std::function<void(CUresult)> function) {
  ENTER;
  STREAM(stream, handle);
  if (!in_graphs) TRY(may_ask(*stream));
  TRY(may_queue(*stream));
  Work work = {"a host function", {}, {}, [] {}};
  work.host = std::move(function);
  enqueue(*stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace

namespace hostcuda {

shared_ptr<HostCall> host_call(Stream &s, uint64_t seq, const std::function<void(CUresult)> &function) {
  static std::once_flag started;
  std::call_once(started, [] { std::thread(serve).detach(); });
  auto call = std::make_shared<HostCall>();
  call->function = function;
  waiting.push_back({s.shared_from_this(), seq, call, Steady::now() + PATIENCE});
  changed.notify_all();
  return call;
}

// Work on its stream before it has run. Answers whether it has ended.
bool host_call_ends(HostCall &call, Waits waits) {
  if (call.has_ended || python_ends) return true;
  call.is_ready = true;
  changed.notify_all();
  if (waits == Waits::yes) wait_unlocked(call.ended);
  return call.has_ended;
}

// A function of Python's, whose exceptions are printed: nobody waits for them.
template <class... A>
static void call_python(PyObject *function, const char *format, A... arguments) {
  if (python_ends) return;
  with_python([&] {
    PyObject *answer = PyObject_CallFunction(function, format, arguments...);
    answer ? Py_DecRef(answer) : PyErr_WriteUnraisable(function);
    return 0;
  });
}

CUresult launch_python(CUstream stream, PyObject *function, intptr_t argument) {
  auto kept = std::make_shared<Object>(function);
  return enqueue_call(stream, false, [=](CUresult status) {
    if (!status) call_python(kept->it, "n", argument);
  });
}

// For graphs, too.
CUresult launch_python(CUstream stream, PyObject *pair) {
  auto kept = std::make_shared<Object>(pair);
  return enqueue_call(stream, true, [=](CUresult status) {
    if (!status) call_python(PyTuple_GetItem(kept->it, 0), "(O)", PyTuple_GetItem(kept->it, 1));
  });
}

CUresult add_python(CUstream stream, PyObject *function, intptr_t argument) {
  auto kept = std::make_shared<Object>(function);
  return enqueue_call(stream, false, [=](CUresult status) {
    call_python(kept->it, "nin", intptr_t(stream), int(status), argument);
  });
}

}  // namespace hostcuda

API cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  return enqueue_call(stream, true, [=](CUresult status) {
    if (!status) function(data);
  });
}

API cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data, unsigned) {
  return enqueue_call(stream, false, [=](CUresult status) { function(stream, status, data); });
}
