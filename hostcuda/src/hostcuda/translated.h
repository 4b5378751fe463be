// What the driver and a translated kernel module share (ptx.py). Both sides include this file.
#pragma once
#include <cstddef>

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using s8 = signed char;
using s16 = short;
using s32 = int;
using s64 = long long;
using f32 = float;
using f64 = double;

enum hc_space : u8 { hc_generic, hc_shared, hc_local };
enum hc_kind : u8 { hc_reads, hc_writes, hc_updates };  // the last are atomics

// A load, a store or an atomic of the source. An access is right if it is one of `count` multiples
// of its size from `start` on: the last memory that was seen here. Cleared before each launch.
struct hc_site {
  u64 start, count;
  u32 line;
  u16 file;
  u8 bytes;
  hc_space space;
  hc_kind kind;
  bool is_volatile;
  void *shadow;  // of that memory (checks.cpp)
  bool is_guess;  // some thread has read here, and then updated the same bytes by an atomic
};

// What all threads of a block share.
struct hc_block {
  u32 ctaid[3], nctaid[3], ntid[3];
  char *parameters;
  char *shared;  // static, then dynamic
  u64 shared_bytes, dynamic_bytes;
  u64 workspace;  // of a cooperative launch
  u64 grid_id;
};

struct hc_thread {
  hc_block *block;
  char *local_start, *local, *local_end;  // a stack: where the next function's memory begins
  char *stack_end;          // of the host's stack
  u32 tid[3];
  u32 number;  // in the block
  bool unwritten;  // with `--check`: what was read, or will be written, comes from where nothing wrote
};

struct hc_variable {
  void *start;
  u64 bytes;
};

struct hc_module {
  hc_site *sites;
  u32 site_count;
  const char *const *files;  // by their numbers in the PTX
  const hc_variable *variables;
  u32 variable_count;
};

struct hc_limits {  // what NVRTC says of a kernel
  s32 registers, shared, local, constant;  // per thread, bytes of the block, per thread, in all
  u32 threads;                             // of a block, at most
};

// A module exports an array of these, `hostcuda_kernels`, that ends with a null name, and its
// `hostcuda_module`.
struct hc_kernel {
  const char *name;  // as NVRTC mangles it
  void (*run)(hc_thread *);
  const hc_module *module;
  s32 count;  // of its parameters
  const size_t *sizes, *offsets;
  const char *kinds;     // one letter each; f: a float or a double
  size_t bytes;  // of the packed parameters
  u32 shared;    // static shared memory, to where the dynamic one begins
  bool waits;    // a thread may wait for others
  bool flushes;  // subnormal floats are zero everywhere
  hc_limits limits;
};

enum hc_warp_op : u32 {
  hc_shfl_up, hc_shfl_down, hc_shfl_bfly, hc_shfl_idx,
  hc_vote_all, hc_vote_any, hc_vote_uni, hc_vote_ballot,
  hc_match_any32, hc_match_any64, hc_match_all32, hc_match_all64,
  hc_redux_add_u32, hc_redux_add_s32, hc_redux_min_u32, hc_redux_min_s32, hc_redux_max_u32,
  hc_redux_max_s32, hc_redux_and_b32, hc_redux_or_b32, hc_redux_xor_b32,
  hc_elect, hc_syncwarp
};
enum hc_barrier_op : u32 { hc_bar_sync, hc_bar_popc, hc_bar_and, hc_bar_or };
enum hc_rounded_op : u32 { hc_add, hc_mul, hc_fma, hc_div, hc_sqrt };
enum hc_rounding : u32 { hc_rn, hc_rz, hc_rm, hc_rp };

#pragma GCC visibility push(default)
extern "C" {
extern u64 hc_changes;  // of memory, by modules with loops that wait

// Checks an access that its site does not know; answers the host's address, or never.
char *hc_access(hc_thread *, hc_site *, u64 address);
// What `--check` looks at, after that. `value`: what will be written; of an atomic, if it does not
// depend on what was there.
char *hc_seen(hc_thread *, hc_site *, char *, const void *value);
void hc_used(hc_thread *, const char *how, u32 line, u32 file);  // a value that nothing has written
// With `--cover`: which lines of a source can run, and when one has.
void hc_cover(const char *source, const char *lines);
void hc_fence(hc_thread *);
void hc_local_full(hc_thread *, u32 line);  // never answers
u64 hc_callee(hc_thread *, const u64 *functions, u32 count, u64 address, u32 line);

u32 hc_barrier(hc_thread *, hc_barrier_op, u32 number, u32 count, u32 predicate, u32 line);
void hc_arrive(hc_thread *, u32 number, u32 count, u32 line);
// The result in the low 32 bits, and a predicate behind it.
u64 hc_warp(hc_thread *, hc_warp_op, u32 mask, u64 a, u32 b, u32 c, u32 line);
u32 hc_meet(hc_thread *, u32 place, u32 line);  // of the lanes that can run: who is there
u32 hc_spin(hc_thread *, u32 line);             // lets others run; answers for how long to go on
[[noreturn]] void hc_exit(hc_thread *);
void hc_trap(hc_thread *, u32 line);

u32 hc_vprintf(hc_thread *, u64 format, u64 arguments);
void hc_assertfail(hc_thread *, u64 message, u64 file, u32 line, u64 function);
u64 hc_malloc(hc_thread *, u64 bytes);
void hc_free(hc_thread *, u64 address, u32 line);
u64 hc_clock();
u64 hc_nanoseconds();

f32 hc_rounded_f32(hc_rounded_op, hc_rounding, f32, f32, f32);
f64 hc_rounded_f64(hc_rounded_op, hc_rounding, f64, f64, f64);
f32 hc_narrow(hc_rounding, f64);       // a double to a float
f32 hc_float_s64(hc_rounding, s64);    // integers to floats
f32 hc_float_u64(hc_rounding, u64);
f64 hc_double_s64(hc_rounding, s64);
f64 hc_double_u64(hc_rounding, u64);

void hc_texture(hc_thread *, u64 texture, u32 dimensions, const f32 *at, s32 layer, u32 *words,
                u32 line);
void hc_gather(hc_thread *, u64 texture, const f32 *at, u32 component, u32 *words, u32 line);
void hc_texel(hc_thread *, u64 texture, s32 i, u32 *words, u32 line);
char *hc_surface(hc_thread *, u64 surface, s32 x, s32 y, s32 z, u32 bytes, u32 mode, u32 line);
}
#pragma GCC visibility pop
