// Runs translated kernels: block after block, and in a block the threads one by one, each until it
// ends or waits. A fiber runs thread after thread in a loop; only one that waits is set aside.
#include "fibers.h"

#include <sys/mman.h>

#include <utility>
#ifndef __x86_64__
#include <ucontext.h>
#endif

u64 hc_changes;

namespace hostcuda {
namespace {

const size_t STACK = 1 << 20, LOCAL = 1 << 20, FENCE = 4096;  // pages not touched cost nothing
const double MOST_SECONDS = 10;  // in which threads only go around loops and memory stays the same
const u32 MOST_RESIDENT = 2112;  // blocks: 16 on each of 132 multiprocessors
const u32 FUEL = 200;            // rounds of a loop that may wait for others

std::vector<Fiber *> all_fibers, idle;
void *scheduler;  // its stack pointer
CUresult failure;
std::string failure_message;

// ---- switching -----------------------------------------------------------------------------------

#ifdef __x86_64__
extern "C" void hc_switch(void **from, void *to);
asm(R"(
  .text
  .type hc_switch, @function
hc_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size hc_switch, .-hc_switch
)");
void *fresh_stack(char *top, void (*begin)()) {
  void **sp = (void **)(uintptr_t(top) / 16 * 16);
  *--sp = nullptr;  // as if `begin` had been called
  *--sp = (void *)begin;
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  return sp;
}
#else
void hc_switch(void **from, void *to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, (ucontext_t *)to);
}
void *fresh_stack(char *top, void (*begin)()) {
  auto *context = (ucontext_t *)(uintptr_t(top - sizeof(ucontext_t)) / 64 * 64);
  getcontext(context);
  context->uc_stack.ss_sp = top - STACK / 2;
  context->uc_stack.ss_size = (char *)context - (char *)context->uc_stack.ss_sp;
  context->uc_link = nullptr;
  makecontext(context, begin, 0);
  return context;
}
#endif

void begin();

void renew(Fiber &f) {
  // Stacks begin at other places of a page, so that they share the processor's cache.
  size_t shift = uintptr_t(&f) / sizeof(Fiber) * 832 % 32768;
  f.stack_pointer = fresh_stack(f.stack + FENCE + STACK - shift, begin);
}

Fiber *new_fiber() {
  char *stack = (char *)mmap(nullptr, FENCE + STACK + LOCAL, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return nullptr;
  mprotect(stack, FENCE, PROT_NONE);
  auto *f = new Fiber();
  f->stack = stack, f->stack_end = stack + FENCE + STACK / 4;
  f->local_start = stack + FENCE + STACK, f->local_end = f->local_start + LOCAL;
  renew(*f);
  all_fibers.push_back(f);
  return f;
}

// ---- who runs next -------------------------------------------------------------------------------

void assign(Fiber &f, Group &g) {
  f.block = f.group = &g;
  number(f, thread_at(g.started));
  ++g.started;
  f.local = f.local_start;
  f.wait = Wait::none;
  g.warps[f.warp()].lanes[f.lane()] = &f;
}

Fiber *take_ready(Group &g, u32 w) {
  Warp &warp = g.warps[w];
  u32 lane = pick(warp.ready);
  warp.ready &= ~(1u << lane);
  if (!warp.ready && !warp.meeting) g.active &= ~(1u << w);
  g.current = w;
  warp.lanes[lane]->wait = Wait::none;
  return warp.lanes[lane];
}

// The next thread of a block that can run; one that begins gets the fiber `mine`, if there is one.
Fiber *next(Group &g, Fiber *mine) {
  u32 w = g.current;
  for (;;) {
    if (g.warps[w].ready) return take_ready(g, w);
    bool begun = g.started >= warp_end(w, g.threads);
    if (begun && g.warps[w].meeting && meet(g, w)) continue;
    bool others = g.active & ~(g.warps[w].meeting ? 0 : 1u << w);
    if (!(begun && others && !mine) && g.started < g.threads) {
      if (!mine) {
        if (idle.empty()) {
          Fiber *made = new_fiber();
          if (!made) {
            g.current = w;
            fail(all_fibers.empty() ? nullptr : all_fibers[0], CUDA_ERROR_OUT_OF_MEMORY,
                 "there is no memory for the stacks of so many threads that wait", 0);
          }
          idle.push_back(made);
        }
        mine = idle.back();
        idle.pop_back();
      }
      assign(*mine, g);
      g.current = mine->warp();
      return mine;
    }
    if (!g.active) return nullptr;
    w = pick(g.active);
  }
}

void go_to(Fiber *f, void **from) {
  active = f;
  hc_switch(from, f ? f->stack_pointer : scheduler);
}

void ended(Fiber &f) {
  Group &g = *f.group;
  Warp &warp = g.warps[f.warp()];
  --g.alive;
  warp.alive &= ~(1u << f.lane());
  if (g.uses_barriers || !warp.waiting.empty()) recheck(g, f.warp());
}

void run_all(Fiber &f) {  // of threads that never wait
  Group &g = *f.group;
  void (*run)(hc_thread *) = now->kernel->run;
  for (;;) {
    run(&f);
    if (g.started == g.threads) break;
    if (thread_state) {
      assign(f, g);
      continue;
    }
    f.number = g.started++;
    f.local = f.local_start;
    if (++f.tid[0] < g.ntid[0]) continue;
    f.tid[0] = 0;
    if (++f.tid[1] < g.ntid[1]) continue;
    f.tid[1] = 0, ++f.tid[2];
  }
  g.alive = 0;
}

void begin() {
  Fiber &f = *active;
  for (;;) {
    Group &g = *f.group;
    if (now->kernel->waits) {
      now->kernel->run(&f);
      ended(f);
    } else {
      run_all(f);
    }
    Fiber *then = next(g, &f);
    if (then == &f) continue;
    idle.push_back(&f);
    go_to(then, &f.stack_pointer);
  }
}

void start_group(Group &g, const Run &run, u64 index) {
  const u32 *grid = run.launch->grid, *block = run.launch->block, dynamic = run.launch->shared;
  g.threads = g.alive = u32(volume(block));
  g.started = g.current = g.active = 0, g.index = u32(index) + 1;
  g.ctaid[0] = u32(index % grid[0]), g.ctaid[1] = u32(index / grid[0] % grid[1]);
  g.ctaid[2] = u32(index / grid[0] / grid[1]);
  std::copy_n(grid, 3, g.nctaid);
  std::copy_n(block, 3, g.ntid);
  g.parameters = run.launch->arguments.data();
  g.shared_bytes = run.kernel->shared + dynamic, g.dynamic_bytes = dynamic;
  if (g.shared_bytes) {
    if (g.memory.size() < g.shared_bytes + SHARED_ALIGN) g.memory.resize(g.shared_bytes + SHARED_ALIGN);
    g.shared = (char *)((uintptr_t(g.memory.data()) + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN);
    memset(g.shared, FRESH_BYTE, g.shared_bytes);
  }
  for (u32 w = 0; w * WARP < g.threads; ++w) {
    Warp &warp = g.warps[w];
    u32 lanes = g.threads - w * WARP;
    warp.alive = lanes < WARP ? (1u << lanes) - 1 : ~0u;
    warp.ready = warp.meeting = warp.spinning = 0;
    warp.waiting.clear();
  }
  if (g.uses_barriers)
    for (Barrier &barrier : g.barriers) barrier = {};
  g.uses_barriers = false;
  begin_checks(g);
}

// Let the threads of a block run until all have ended or wait.
void go(Group &g) {
  if (Fiber *f = next(g, nullptr)) go_to(f, &scheduler);
}

bool wake_spinning(Group &g) {
  bool any = false;
  for (u32 w = 0; w * WARP < g.threads; ++w)
    if (u32 lanes = std::exchange(g.warps[w].spinning, 0)) release(g, w, lanes), any = true;
  return any;
}

std::string waits_for(const Fiber &f) {
  const Warp &warp = f.group->warps[f.warp()];
  switch (f.wait) {
    case Wait::spin:
      return "goes around a loop";
    case Wait::barrier:
      return text("waits at barrier %u", f.place);
    case Wait::warp: {
      u32 missing = f.mask & warp.alive;
      for (auto &r : warp.waiting)
        if (r.op == f.op && r.mask == f.mask) missing &= ~r.arrived;
      u32 lane = missing ? __builtin_ctz(missing) : 0;
      return text("waits at a warp function with mask 0x%x for lane %u", f.mask, lane);
    }
    default:
      return "waits";
  }
}

// Name threads that wait for ever: one of each place.
[[noreturn]] void stuck(Group &g) {
  std::string others;
  const Fiber *first = nullptr;
  std::set<std::pair<int, u32>> told;
  for (u32 i = 0; i < g.threads; ++i) {
    const Warp &warp = g.warps[i / WARP];
    if (!(warp.alive >> i % WARP & 1)) continue;
    const Fiber &f = *warp.lanes[i % WARP];
    if (!told.insert({int(f.wait), f.line}).second || told.size() > 4) continue;
    if (!first)
      first = &f;
    else
      others += text("; thread (%u,%u,%u) ", f.tid[0], f.tid[1], f.tid[2]) + waits_for(f) + source(f.line, 0);
  }
  fail(first, CUDA_ERROR_LAUNCH_TIMEOUT,
       waits_for(*first) + source(first->line, 0) + others + ": the kernel cannot end", 0);
}

void run_groups(const Run &run, u64 workspace) {
  u64 blocks = volume(run.launch->grid), begun = 0;
  static std::vector<std::unique_ptr<Group>> groups;  // kept for the next kernel
  std::vector<Group *> resident, free;
  for (auto &g : groups) free.push_back(g.get());
  u64 before = hc_changes, alive = 0;
  double since = wall_ms();
  size_t turn = 0;
  std::vector<u64> order;  // of the next blocks, from the last one on
  for (;;) {
    if (turn == resident.size()) {
      if (begun < blocks && resident.size() < MOST_RESIDENT) {
        if (free.empty()) {
          groups.push_back(std::make_unique<Group>());
          free.push_back(groups.back().get());
        }
        Group *g = free.back();
        free.pop_back();
        if (order.empty()) order_blocks(&order, begun, std::min<u64>(blocks - begun, MOST_RESIDENT));
        start_group(*g, run, order.back());
        order.pop_back(), ++begun;
        g->workspace = workspace;
        resident.push_back(g);
      } else if (resident.empty()) {
        return;
      } else {
        turn = 0;
        u64 living = begun;
        for (Group *g : resident) living += g->alive;
        if (hc_changes != before || living != alive)
          before = hc_changes, alive = living, since = wall_ms();
        else if (wall_ms() - since > 1000 * MOST_SECONDS)
          stuck(*resident[0]);
      }
    }
    Group &g = *resident[turn];
    u64 changes;
    u32 lived;
    do {  // for as long as its own threads answer each other
      changes = hc_changes, lived = g.alive;
      go(g);
      if (failure) return;
    } while (g.alive && wake_spinning(g) && (changes != hc_changes || lived != g.alive));
    if (g.alive) {
      if (!g.active) stuck(g);
      ++turn;
      continue;
    }
    free.push_back(&g);
    resident.erase(resident.begin() + long(turn));
  }
}

}  // namespace

void number(Fiber &f, u32 number) {
  const u32 *ntid = f.block->ntid;
  f.number = number;
  f.tid[0] = number % ntid[0];
  f.tid[1] = number / ntid[0] % ntid[1];
  f.tid[2] = number / (ntid[0] * ntid[1]);
}

void release(Group &g, u32 warp, u32 lanes) {
  g.warps[warp].ready |= lanes;
  g.active |= 1u << warp;
}

void suspend(Fiber &f, Wait wait, u32 line) {
  f.wait = wait, f.line = line;
  Fiber *then = next(*f.group, nullptr);
  if (then != &f) go_to(then, &f.stack_pointer);
}

[[noreturn]] void fail(const hc_thread *t, CUresult status, const std::string &message, u32 line,
                       u32 file) {
  std::string where = now->name;
  if (t) where += place(*(const Fiber *)t);
  fflush(stdout);
  failure_message = where + ": " + message + source(line, file);
  tell(failure_message);
  failure = status;
  if (!active) throw failure;  // by the scheduler itself
  void *never;
  go_to(nullptr, &never);
  abort();
}

CUresult run_kernel(const Run &run, std::string *message) {
  now = &run;
  failure = CUDA_SUCCESS;
  active = nullptr;
  shuffle_threads(u32(volume(run.launch->block)));
  purge_heap();
  for (u32 i = 0; i < run.kernel->module->site_count; ++i)
    run.kernel->module->sites[i].count = 0, run.kernel->module->sites[i].shadow = nullptr;
#ifdef __x86_64__
  unsigned control = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(run.kernel->flushes ? 0x9fc0 : 0x1f80);
#endif
  u64 workspace[8] = {64}, shown = run.cooperative ? u64(workspace) : 0;  // what cooperative groups look for
  if (shown) driver.blocks[shown] = {shown, sizeof workspace, Kind::variable, run.ctx, false, 0, 0};
  begin_watch(run.code);
  try {
    run_groups(run, shown);
  } catch (CUresult) {
  }
  end_watch();
  driver.blocks.erase(shown);
#ifdef __x86_64__
  __builtin_ia32_ldmxcsr(control);
#endif
  if (failure) {  // some fibers are in the middle of a thread
    idle = all_fibers;
    for (Fiber *f : idle) renew(*f);
    *message = failure_message;
  }
  now = nullptr;
  return failure;
}

}  // namespace hostcuda

void hc_exit(hc_thread *t) {
  Fiber &f = *(Fiber *)t;
  if (now->kernel->waits) {
    ended(f);
  } else {
    // The loop of run_all() goes on with the next thread, in a fresh stack.
    Group &g = *f.group;
    if (g.started == g.threads) g.alive = 0;
  }
  Group &g = *f.group;
  renew(f);
  Fiber *then = next(g, &f);
  if (then != &f) idle.push_back(&f);
  void *never;
  go_to(then, &never);
  abort();
}

u32 hc_spin(hc_thread *t, u32 line) {
  Fiber &f = *(Fiber *)t;
  f.group->warps[f.warp()].spinning |= 1u << f.lane();
  suspend(f, Wait::spin, line);
  return FUEL;
}
