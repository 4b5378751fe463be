// The threads of translated kernels (translated.h). Each is a fiber, which is set aside only where
// its code waits for other threads, or spins.
#pragma once
#include "model.h"
#include "translated.h"

namespace hostcuda {

const u32 SHARED_ALIGN = 1024;  // of shared memory, as a generic address
const u32 WARP = 32, MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / WARP, BARRIERS = 16;

enum class Wait : u8 { none, barrier, warp, meeting, spin };

struct Group;
struct Fiber : hc_thread {
  void *stack_pointer;
  char *stack;  // what mmap gave
  Group *group;
  Wait wait;
  u32 line;     // where it waits
  u32 place;    // of a meeting, or the number of a barrier
  u32 mask;     // of a warp function; which lanes met
  hc_warp_op op;
  u64 a, result;
  const hc_site *reader;  // of what nothing has written; null: a shuffle
  u64 read_at;            // of a shuffle, the lane
  u32 b, c;
  u32 lane() const { return number % WARP; }
  u32 warp() const { return number / WARP; }
};

// Lanes that wait at a warp function with the same mask.
struct Rendezvous {
  hc_warp_op op;
  u32 mask, arrived;
};
struct Warp {
  u32 alive = 0;  // not ended; they may not have begun
  u32 ready = 0, meeting = 0, spinning = 0;
  Fiber *lanes[WARP];
  std::vector<Rendezvous> waiting;
};
struct Barrier {
  u32 arrived = 0, expected = 0;  // 0: every thread that lives
  u32 result = 0, count = 0;      // of the predicates
  u32 waits[MOST_WARPS] = {};     // for this barrier
  u32 counted[MOST_WARPS] = {};   // arrived, whether they wait or not
};

struct Checks;  // what a block's threads did with memory

// A block that has begun.
struct Group : hc_block {
  u32 threads, started, alive;
  u32 index;       // in the grid, from 1
  u32 current;     // warp
  u32 active;      // warps with lanes that are ready, or that meet
  bool uses_barriers;
  Warp warps[MOST_WARPS];
  Barrier barriers[BARRIERS];
  Bytes memory;  // shared
  shared_ptr<Checks> checks;
};

struct Run {  // of a kernel, on a device
  const hc_kernel *kernel;
  std::string name;
  Context *ctx;
  Launch *launch;
  bool cooperative;
  Range code;
};
// Run a kernel. A failure is the context's from then on, with its message.
CUresult run_kernel(const Run &run, std::string *message);

inline const Run *now = nullptr;  // what runs
inline Fiber *active = nullptr;   // the thread that does; null: the scheduler

// The order of threads and blocks (thread_order.cpp).
inline uint64_t thread_state = 0;  // if it is random; 0: as numbered
void shuffle_threads(u32 threads);          // of the blocks of a kernel that begins
u32 thread_at(u32 place);                   // which one begins there
u32 warp_end(u32 warp, u32 threads);        // the place where all of a warp have begun
u32 pick_any(u32 set);                      // one of its bits
inline u32 pick(u32 set) { return thread_state ? pick_any(set) : __builtin_ctz(set); }
// Add one or more of the next blocks; the last one begins first.
void order_blocks(std::vector<u64> *order, u64 first, u64 count);

// End the kernel with an error of CUDA's. The message follows the thread's name.
[[noreturn]] void fail(const hc_thread *t, CUresult status, const std::string &message, u32 line,
                       u32 file = 0);
std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Why work in a context may not use some bytes of memory, as the end of a sentence; "" if it may.
std::string wrong_memory(const Context &ctx, u64 address, u64 bytes);
std::string place(const Fiber &fiber);  // its block and thread
std::string source(u32 line, u32 file);  // " (line 4)"
inline const char *verb(const hc_site &site) {
  return site.kind == hc_reads ? "reads" : site.kind == hc_writes ? "writes" : "updates";
}
void number(Fiber &fiber, u32 number);   // it becomes this thread of its block

void release(Group &g, u32 warp, u32 lanes);     // they are ready
void suspend(Fiber &f, Wait wait, u32 line);     // until then
void recheck(Group &g, u32 warp);                // a thread has ended: do others wait in vain?
bool meet(Group &g, u32 warp);                   // the lanes that came first in the source go on
void begin_checks(Group &g);  // of a block that begins
void pass_barrier(Group &g);  // what its threads did comes before what they will do
void pass_warp(Group &g, u32 warp, u32 lanes);
void check_written(const std::string &work, const std::vector<Range> &reads);
void take_uses(std::vector<Range> *uses);  // the bytes that the last kernel used: a list of each hc_kind
inline std::vector<std::string> findings;
inline std::set<std::tuple<std::string, u64, u64>> told;  // what they are about
void find(const std::string &finding);

void begin_watch(const Range &code);  // of a kernel that may run for too long
void end_watch();
void purge_heap();                                // of what went with its context

}  // namespace hostcuda
