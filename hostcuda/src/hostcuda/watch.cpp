// Ends a kernel that runs too long: the signal of a timer lets its thread call fail().
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "fibers.h"

namespace hostcuda {
namespace {

const int SIGNAL = SIGRTMAX - 3;
Range code;  // of the kernel that runs

double most_seconds() {
  static const char *given = getenv("HOSTCUDA_SECONDS");
  static const double seconds = given ? atof(given) : 300;
  return seconds;
}

[[noreturn]] void end_late() {
  fail(active, CUDA_ERROR_LAUNCH_TIMEOUT, text("has not ended after %g s (HOSTCUDA_SECONDS)", most_seconds()),
       0);
}

// Only code of the kernel itself is left: it holds no lock. The timer's next signal may find it there.
void look(int, siginfo_t *, void *context) {
  mcontext_t &state = ((ucontext_t *)context)->uc_mcontext;
#if defined(__x86_64__)
  auto &place = state.gregs[REG_RIP], &stack = state.gregs[REG_RSP];
  if (u64(place) - code.start >= code.size) return;
  stack = (stack - 128) / 16 * 16 - 8;  // as behind a call, below what the kernel uses
  place = greg_t(end_late);
#elif defined(__aarch64__)
  if (state.pc - code.start < code.size) state.pc = u64(end_late);
#endif
}

timer_t timer() {
  thread_local timer_t made = [] {
    struct sigaction action = {};
    action.sa_sigaction = look, action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGNAL, &action, nullptr);
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID, event.sigev_signo = SIGNAL;
    event._sigev_un._tid = gettid();
    timer_t made = {};
    timer_create(CLOCK_MONOTONIC, &event, &made);
    return made;
  }();
  return made;
}

void set(double seconds) {
  itimerspec when = {};
  when.it_value.tv_sec = time_t(seconds);
  when.it_value.tv_nsec = long((seconds - double(when.it_value.tv_sec)) * 1e9);
  when.it_interval.tv_nsec = 10'000'000;
  timer_settime(timer(), 0, &when, nullptr);
}

}  // namespace

void begin_watch(const Range &kernel) {
  code = kernel;
  set(most_seconds());
}
void end_watch() { set(0); }

}  // namespace hostcuda
