// How an entry point is written: a plain function that begins with a guard.
//
//   API cuDoSomething(CUstream handle) {
//     ENTER;
//     STREAM(stream, handle);
//     ...
//   }
#pragma once
#include "model.h"

// Each entry point is written under its exact exported name, whatever version <cuda.h> maps it to.
#undef cuEventElapsedTime
#undef cuGetProcAddress

#define EXPORT extern "C" __attribute__((visibility("default")))
#define API EXPORT CUresult CUDAAPI

API cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second);  // CUDA 13 has _v2 alone

#define CHECK(condition, error) \
  if (!(condition)) return error
#define TRY(call) \
  if (CUresult status_ = (call)) return status_

namespace hostcuda {

// Does the caller drop the answer? So do destructors, in both libraries.
constexpr bool is_dropped(std::string_view name) {
  for (const char *word : {"Free", "Destroy", "Unload", "Unregister"})
    if (name.find(word) != name.npos) return true;
  return false;
}

// An entry point that runs. If traced, it asks Python who called it, before it locks.
struct Called {
  static inline thread_local int depth = 0;
  Called() {
    if (!depth++ && driver.ask_caller) ask();
  }
  static void ask();  // library.cpp
  ~Called() { --depth; }
};

// Who has this may run queued work that needs Python's own lock. So a thread that waits for this one
// lets that go meanwhile.
struct Lock {
  static inline thread_local int held = 0;
  static void take();  // library.cpp
  Lock() { take(); }
  ~Lock() { --held, driver.lock.unlock(); }
};

inline thread_local bool in_host_function = false;  // which may not call the driver

// One call of the host, under the lock.
struct Guard {
  Called called;
  Lock lock;
  explicit Guard(bool is_cleanup);  // schedule.cpp
};

}  // namespace hostcuda

// The guards: of any call; of one about a device; of one about the current context, which may have
// failed; of one that works in it.
#define ENTER                                     \
  constexpr bool cleanup_ = is_dropped(__func__); \
  Guard guard_(cleanup_);                         \
  CHECK(!in_host_function, CUDA_ERROR_NOT_PERMITTED); \
  CHECK(driver.is_started, CUDA_ERROR_NOT_INITIALIZED)
#define ENTER_DEVICE(device) \
  ENTER;                     \
  CHECK(valid_device(device), CUDA_ERROR_INVALID_DEVICE)
#define ENTER_CONTEXT       \
  ENTER;                    \
  Context *ctx = current(); \
  CHECK(ctx, CUDA_ERROR_INVALID_CONTEXT)
#define ENTER_LIVING_CONTEXT \
  ENTER_CONTEXT;             \
  CHECK(!ctx->dead, ctx->dead)
// What a handle stands for.
#define FIND(name, map, handle)     \
  auto *name = lookup(map, handle); \
  CHECK(name, CUDA_ERROR_INVALID_HANDLE)
// The stream that the caller means.
#define STREAM(name, handle)                                                               \
  Stream *name = find_stream(handle);                                                      \
  if (!name)                                                                               \
    return uintptr_t(handle) > 2 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT; \
  CHECK(!name->ctx->dead, name->ctx->dead)
