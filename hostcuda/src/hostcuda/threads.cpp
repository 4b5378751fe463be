// Runs the threads of a kernel one at a time, each until it ends or waits at a barrier.
//
// One fiber runs thread after thread in a plain loop. Only when a thread waits at a barrier is its
// fiber set aside, and another one goes on with the threads that have not started: a kernel without
// barriers costs no switch.
#include <sys/mman.h>
#include <ucontext.h>

#include <memory>
#include <vector>

#include "kernel.h"

#pragma GCC visibility push(default)
extern "C" {
hostcuda_size threadIdx, blockIdx, blockDim, gridDim;  // as kernels see them (device.h)
unsigned hostcuda_thread;
unsigned long long hostcuda_slots[1024];
}
#pragma GCC visibility pop

namespace {

const size_t STACK = 256 << 10;  // of one fiber; pages that are not touched cost nothing

struct OldFiber {
  ucontext_t context;
  void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  unsigned thread;
  bool waiting;
  hostcuda_barrier_kind barrier;
};

std::vector<std::unique_ptr<OldFiber>> fibers;  // kept for the next block
ucontext_t old_scheduler;
OldFiber *old_active;
const hostcuda_kernel *kernel;
void **arguments;
unsigned next_thread, thread_count;
bool trapped;

void select(unsigned thread) {
  hostcuda_thread = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y,
               thread / (blockDim.x * blockDim.y)};
}

void work() {
  while (next_thread < thread_count) {
    old_active->thread = next_thread++;
    select(old_active->thread);
    kernel->call(arguments);
  }
}

void resume(OldFiber &fiber) {
  old_active = &fiber;
  fiber.waiting = false;
  select(fiber.thread);
  swapcontext(&old_scheduler, &fiber.context);
}

void run_block() {
  size_t used = 0;
  next_thread = 0;
  while (next_thread < thread_count) {
    if (used == fibers.size()) fibers.push_back(std::make_unique<OldFiber>());
    OldFiber &fiber = *fibers[used++];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = &old_scheduler;
    makecontext(&fiber.context, work, 0);
    resume(fiber);
    if (trapped) return;
  }
  // Every thread has ended or waits. A warp's barrier is met first: its threads may be on their way
  // to the block's barrier, where the others are already.
  for (;;) {
    bool warp = false, block = false;
    for (size_t i = 0; i < used; ++i)
      if (fibers[i]->waiting) (fibers[i]->barrier == hostcuda_warp_barrier ? warp : block) = true;
    if (!warp && !block) return;
    hostcuda_barrier_kind met = warp ? hostcuda_warp_barrier : hostcuda_block_barrier;
    std::vector<OldFiber *> released;
    for (size_t i = 0; i < used; ++i)
      if (fibers[i]->waiting && fibers[i]->barrier == met) released.push_back(fibers[i].get());
    for (OldFiber *fiber : released) {
      resume(*fiber);
      if (trapped) return;
    }
  }
}

}  // namespace

void hostcuda_barrier(hostcuda_barrier_kind kind) {
  old_active->waiting = true;
  old_active->barrier = kind;
  swapcontext(&old_active->context, &old_scheduler);
}

void hostcuda_trap() {
  trapped = true;
  swapcontext(&old_active->context, &old_scheduler);  // and never back
}

bool hostcuda_run(const hostcuda_kernel *k, void **args, hostcuda_size grid, hostcuda_size block) {
  trapped = false;
  kernel = k, arguments = args, gridDim = grid, blockDim = block;
  thread_count = block.x * block.y * block.z;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block();
        if (trapped) return false;
      }
  return true;
}
