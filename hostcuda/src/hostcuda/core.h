// A CUDA driver on host memory: the public driver API of <cuda.h>, with "device" memory that is
// host memory and kernels that are host code (see translated.h).
//
// Its streams are LAZY. Work is queued and runs at the latest moment the CUDA documentation allows:
// when the host waits for it, or when later work that is ordered after it runs. Two other orders may
// be chosen, the earliest, and a random one: each is legal, and a missing fence that is harmless in
// one of them shows in another.
#pragma once
#include <cuda.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "translated.h"

// Each entry point is written under its exact exported name, whatever version <cuda.h> maps it to.
#undef cuEventElapsedTime
#undef cuGetProcAddress

#define EXPORT extern "C" __attribute__((visibility("default")))
#define API EXPORT CUresult CUDAAPI

API cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second);

namespace hostcuda {

using std::shared_ptr;
using Bytes = std::vector<char>;

const size_t ALIGNMENT = 512;           // of blocks
const size_t GAP = 16 << 10;            // behind a block: 1024 threads, of 16 bytes each, stay inside
const unsigned char FRESH_BYTE = 0xCD;  // a new block: device memory is not zeroed
const unsigned char FREED_BYTE = 0xA7;  // a freed block: small as a float, so that += 1 shows
const size_t QUARANTINE = 64 << 20;     // freed bytes kept, so that writes after free show
const int MULTIPROCESSORS = 2;          // of a device
const unsigned FREE_SHARED = 48 << 10;  // bytes of shared memory that a kernel may use
const unsigned MOST_SHARED = 227 << 10; // if it asks for them (cuFuncSetAttribute)
const uint64_t LATEST = ~0ull;

inline std::recursive_mutex big_lock;  // for everything: this is a test double, not a fast driver
inline bool is_started = false;         // by cuInit
inline bool is_forked = false;          // CUDA does not survive fork
inline int device_count = 1;
inline size_t device_bytes = size_t(1) << 30;
inline uint64_t clock_now = 0;    // sequence number of the last operation queued
inline uint64_t last_handle = 0;  // handles are never reused, so a stale one is always recognised
inline long calls = 0;            // of entry points
inline long host_waits = 0;       // how often the host was blocked on work that had not run yet

enum class Order { latest, earliest, random };
inline Order order = Order::latest;
inline uint64_t random_state = 1;
inline int stream_count = 0;
inline int polls = 0;            // queries since the last work was queued that found work undone
const int MOST_POLLS = 1000;     // then the work runs: a GPU would end it at some time
inline bool record_only = true;  // images of a GPU load, and their launches are recorded

inline unsigned random_below(unsigned n) {  // xorshift*
  random_state ^= random_state >> 12, random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return unsigned(random_state * 0x2545F4914F6CDD1Dull >> 33) % n;
}

template <class H>
H new_handle() {
  return H(uintptr_t(0x10000 + 0x10 * ++last_handle));
}

struct Context;
struct Stream;

// What is queued or captured: a name for messages, the memory that it may touch, and the work.
struct Range {
  uintptr_t start;
  size_t size;
};
struct Work {
  std::string name;
  std::vector<Range> reads, writes;
  std::function<void()> run;
};

// What a capture has gathered. Its nodes are in an order that respects their dependencies.
struct Graph {
  struct Node {
    Work work;
    std::set<size_t> after;
  };
  std::vector<Node> nodes;
  CUstreamCaptureMode mode;
  cuuint64_t id;
  bool open = true, spoilt = false;
};

// How much of each stream's work, by its number, comes before something.
using Clock = std::map<int, uint64_t>;

struct Operation {
  uint64_t seq;
  Work work;
  shared_ptr<Stream> after;  // cuStreamWaitEvent: run this stream up to after_seq first
  uint64_t after_seq;
  Clock clock;
};

struct Stream {
  Context *ctx;
  CUstream handle;
  unsigned flags;
  bool legacy = false, destroyed = false;
  int priority = 0, number = 0;
  unsigned haste = 0;  // in the random order: of 8 calls, how many let it run
  Clock clock;         // of what is queued last
  std::deque<Operation> todo;
  shared_ptr<Graph> graph;  // while it is being captured
  bool began_here = false;
  std::set<size_t> last;    // the nodes that its next one follows
  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};

struct Event {
  Context *ctx;
  unsigned flags;
  shared_ptr<Stream> stream;  // of the latest record, null before the first
  uint64_t seq = 0;
  Clock clock;
  shared_ptr<double> milliseconds;
  shared_ptr<Graph> graph;  // of a record on a stream that was being captured
  std::set<size_t> last;
};

inline bool is_cleanup = false;  // of this call the answer is dropped, by libraries' destructors
constexpr bool is_dropped(const char *name) {
  for (const char *word : {"Free", "Destroy", "Unload", "Unregister"})
    for (const char *at = name; *at; ++at) {
      int n = 0;
      while (word[n] && at[n] == word[n]) ++n;
      if (!word[n]) return true;
    }
  return false;
}

// What every call answers after a kernel has failed.
class Death {
  CUresult status = CUDA_SUCCESS;

 public:
  std::string message;
  bool told = false;  // some call has answered it
  Death &operator=(CUresult failure) { return status = failure, told = false, *this; }
  bool operator!() const { return status == CUDA_SUCCESS; }
  operator CUresult() { return told |= status != CUDA_SUCCESS && !is_cleanup, status; }
};

struct Context {
  CUcontext handle;
  CUdevice device;
  unsigned flags = 0;
  int references = 0;  // primary contexts count retains; others are 1 until destroyed
  bool primary = false;
  Death dead;
  shared_ptr<Stream> legacy;
  std::vector<shared_ptr<Stream>> streams;  // the legacy one too
  std::vector<CUcontext> peers;             // contexts whose memory this one may reach
};

enum class Kind { device, pinned, registered, managed, variable };
struct Block {
  uintptr_t start;
  size_t size;
  Kind kind;
  Context *ctx;
  bool owned;  // allocated here, at `start`
  unsigned flags;
  unsigned long long id;
};

struct Function;
struct Module {
  Context *ctx;
  void *library = nullptr;  // null: a real GPU image, whose launches are only recorded
  std::map<std::string, CUfunction> functions;
  std::set<uintptr_t> variables;  // those that cuModuleGetGlobal was asked for
};
struct Function {
  Module *module;
  std::string name;
  const hc_kernel *kernel;  // null: only recorded
  unsigned most_shared;  // bytes of dynamic shared memory
};

struct Launch {
  std::string name;
  unsigned grid[3], block[3], shared;
  uintptr_t stream;
  Bytes arguments;
};

struct Damage {
  uintptr_t start;
  size_t size;
  int device;
  std::string by;  // the work, if it is known
};

inline std::map<CUcontext, Context> contexts;  // destroyed ones stay, with 0 references
inline std::map<CUstream, shared_ptr<Stream>> streams;
inline std::map<CUevent, Event> events;
inline std::map<CUmodule, Module> modules;
inline std::map<CUfunction, Function> functions;
inline std::map<uintptr_t, Block> blocks;  // by start address
inline std::deque<Block> freed;            // the quarantine
inline size_t freed_bytes = 0;
inline std::vector<Damage> broken;  // found when work ran, or a block left the quarantine
inline std::vector<Launch> launch_log;
inline thread_local std::vector<CUcontext> context_stack;
// Per-thread default streams.
inline thread_local std::map<Context *, shared_ptr<Stream>> thread_streams;

template <class Map, class Key>
auto *lookup(Map &map, Key key) {
  auto it = map.find(key);
  return it == map.end() ? nullptr : &it->second;
}

inline Context *current() {
  if (context_stack.empty()) return nullptr;
  Context *ctx = lookup(contexts, context_stack.back());
  return ctx && ctx->references ? ctx : nullptr;
}

inline double wall_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

#define ENTER                                           \
  std::lock_guard<std::recursive_mutex> lock(big_lock); \
  ++calls;                                              \
  is_cleanup = false;                                   \
  if (!is_started) return CUDA_ERROR_NOT_INITIALIZED;   \
  if (order == Order::random) go_on()
#define ENTER_CONTEXT       \
  ENTER;                    \
  Context *ctx = current(); \
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT
#define CHECK(condition, error) \
  if (!(condition)) return error
#define TRY(call) \
  if (CUresult status_ = (call)) return status_

// Entry points: under the lock, and on the devices or in the context they need.
#define CALL(name, params, ...)     \
  API name params {                 \
    ENTER;                          \
    is_cleanup = is_dropped(#name); \
    __VA_ARGS__                     \
    return CUDA_SUCCESS;            \
  }
#define CALL_ON_DEVICE(name, params, ...)                   \
  CALL(name, params, {                                      \
    CHECK(valid_device(device), CUDA_ERROR_INVALID_DEVICE); \
    __VA_ARGS__                                             \
  })
#define CALL_IN_CONTEXT(name, params, ...)  \
  CALL(name, params, {                      \
    Context *ctx = current();               \
    CHECK(ctx, CUDA_ERROR_INVALID_CONTEXT); \
    CHECK(!ctx->dead, ctx->dead);           \
    __VA_ARGS__                             \
    return ctx->dead;                       \
  })
#define CALL_ABOUT_CONTEXT(name, params, ...) \
  CALL(name, params, {                        \
    Context *ctx = current();                 \
    CHECK(ctx, CUDA_ERROR_INVALID_CONTEXT);   \
    __VA_ARGS__                               \
  })

// ---- streams: what waits for what ---------------------------------------------------------------

inline shared_ptr<Stream> new_stream(Context *ctx, unsigned flags, CUstream handle) {
  auto s = std::make_shared<Stream>();
  s->ctx = ctx, s->flags = flags, s->handle = handle, s->number = ++stream_count;
  const unsigned hastes[] = {0, 1, 4, 8};
  if (order == Order::random) s->haste = hastes[random_below(4)];
  ctx->streams.push_back(s);
  return s;
}

// A stream handle as the caller means it. Null and 1 are the legacy default stream of the current
// context (one per context: those of two contexts are not ordered), 2 the calling thread's own.
inline shared_ptr<Stream> find_stream(CUstream handle) {
  if (uintptr_t(handle) > 2) {
    auto *s = lookup(streams, handle);
    return s ? *s : nullptr;
  }
  Context *ctx = current();
  if (!ctx) return nullptr;
  if (handle != CU_STREAM_PER_THREAD) return ctx->legacy;
  auto &mine = thread_streams[ctx];
  if (!mine || mine->destroyed) mine = new_stream(ctx, CU_STREAM_DEFAULT, handle);
  return mine;
}
#define STREAM(name, handle)                     \
  shared_ptr<Stream> name = find_stream(handle); \
  if (!name) return uintptr_t(handle) > 2 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT; \
  CHECK(!name->ctx->dead, name->ctx->dead)

// Does new work on `a` wait for earlier work on `b`? The legacy default stream and the blocking
// streams of its context wait for each other; every other pair is independent.
inline bool ordered(const Stream &a, const Stream &b) {
  if (&a == &b) return true;
  return a.ctx == b.ctx && a.blocking() && b.blocking() && (a.legacy || b.legacy);
}

inline bool undone(const Stream &s, uint64_t upto) {
  return !s.todo.empty() && s.todo.front().seq <= upto;
}

inline bool undone_before(const Stream &s) {  // anything that new work on `s` would wait for
  for (auto &t : s.ctx->streams)
    if (ordered(s, *t) && undone(*t, LATEST)) return true;
  return false;
}

// ---- work that is traced (trace.cpp) -------------------------------------------------------------

void perform(const Stream &s, const Operation &op);  // runs it, and says what it damaged
inline bool tracing = false;
inline Clock host_clock;  // what the host has waited for

inline void join(Clock &clock, const Clock &other) {
  for (auto &[number, seq] : other) clock[number] = std::max(clock[number], seq);
}
inline void host_waited(const Clock &clock) {
  if (tracing) join(host_clock, clock);
}

// Run the work of `s` up to sequence number `upto`, and before each operation all that it waits
// for. Every dependency has a smaller number than the operation, so the recursion ends.
inline void run(Stream &s, uint64_t upto) {
  while (undone(s, upto)) {
    Operation op = std::move(s.todo.front());
    s.todo.pop_front();
    for (auto &t : s.ctx->streams)
      if (t.get() != &s && ordered(s, *t)) run(*t, op.seq - 1);
    if (op.after) run(*op.after, op.after_seq);
    if (!s.ctx->dead) perform(s, op);
  }
}

// Another call of the host: in the random order, some of the queued work runs meanwhile.
inline void go_on() {
  for (auto &item : contexts)
    for (auto &s : item.second.streams)
      if (!s->todo.empty() && random_below(8) < s->haste) run(*s, s->todo.front().seq);
}

inline uint64_t enqueue(Stream &s, Work work, const Event *after = nullptr) {
  if (s.graph) {
    s.graph->nodes.push_back({std::move(work), s.last});
    s.last = {s.graph->nodes.size() - 1};
    return 0;
  }
  uint64_t seq = ++clock_now;
  polls = 0;
  if (tracing) {
    join(s.clock, host_clock);
    for (auto &t : s.ctx->streams)
      if (ordered(s, *t)) join(s.clock, t->clock);
    if (after) join(s.clock, after->clock);
    s.clock[s.number] = seq;
  }
  s.todo.push_back({seq, std::move(work), after ? after->stream : nullptr, after ? after->seq : 0,
                    s.clock});
  if (order == Order::earliest || (order == Order::random && random_below(8) < s.haste)) run(s, seq);
  return seq;
}

// ---- captures: what a call may not do while a stream is being captured ----------------------------

inline CUresult spoil(const shared_ptr<Graph> &graph, CUresult error) {
  graph->spoilt = true;
  return error;
}

// Before work is queued on `s`. The default stream would have to wait for captured blocking ones.
inline CUresult may_queue(const Stream &s) {
  CHECK(!s.graph || !s.graph->spoilt, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  for (auto &t : s.ctx->streams)
    if (s.legacy && t->graph && t->blocking())
      return spoil(t->graph, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  return CUDA_SUCCESS;
}

// Before the host waits for a stream, or asks about it.
inline CUresult may_ask(const Stream &s) {
  return s.graph ? spoil(s.graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

inline thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Before a call that is unsafe during any capture but relaxed ones, such as an allocation.
inline CUresult may_be_unsafe() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (auto &item : contexts)
    for (auto &t : item.second.streams)
      if (t->graph && t->graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return spoil(t->graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return CUDA_SUCCESS;
}

// The host waits here: everything that new work on `s` would wait for is run.
inline void settle(Stream &s) {
  for (auto &t : s.ctx->streams)
    if (ordered(s, *t)) host_waited(t->clock);
  if (!undone_before(s)) return;
  ++host_waits;
  for (auto &t : std::vector<shared_ptr<Stream>>(s.ctx->streams))
    if (ordered(s, *t)) run(*t, LATEST);
}

inline void settle_context(Context *ctx) {
  bool waited = false;
  // What was queued last runs first, where nothing orders it: the worst case for a missing fence.
  auto streams = ctx->streams;
  auto latest = [](const shared_ptr<Stream> &t) { return t->todo.empty() ? 0 : t->todo.back().seq; };
  std::stable_sort(streams.begin(), streams.end(),
                   [&](auto &one, auto &other) { return latest(one) > latest(other); });
  for (auto &t : streams) {
    host_waited(t->clock);
    waited |= undone(*t, LATEST);
    run(*t, LATEST);
  }
  host_waits += waited;
  auto drained = [](const shared_ptr<Stream> &t) { return t->destroyed; };
  auto &all = ctx->streams;
  all.erase(std::remove_if(all.begin(), all.end(), drained), all.end());
}

// ---- memory -------------------------------------------------------------------------------------

inline Block *find_block(const void *address) {
  auto it = blocks.upper_bound(uintptr_t(address));
  if (it == blocks.begin()) return nullptr;
  Block &b = std::prev(it)->second;
  // One past the end still counts for empty ranges only; the driver says "not mine" as well.
  return uintptr_t(address) < b.start + b.size ? &b : nullptr;
}

inline Block *find_freed(uintptr_t address) {
  for (Block &b : freed)
    if (address >= b.start && address < b.start + b.size) return &b;
  return nullptr;
}

inline bool on_device(const Block *b) {
  return b && b->kind != Kind::pinned && b->kind != Kind::registered;
}

inline bool holds(const Block *b, const void *address, size_t size) {
  return b && uintptr_t(address) + size <= b->start + b->size;
}

inline bool untouched(const Block &b) {  // since it was freed
  const char *p = (const char *)b.start;
  return (unsigned char)p[0] == FREED_BYTE && !memcmp(p, p + 1, b.size - 1);
}

inline size_t used_bytes(int device) {
  size_t used = 0;
  for (auto &item : blocks)
    if (on_device(&item.second) && item.second.ctx->device == device) used += item.second.size;
  return used;
}

inline CUresult allocate(Context *ctx, size_t size, Kind kind, unsigned flags, void **out) {
  static unsigned long long last_id = 0;
  CHECK(size && out, CUDA_ERROR_INVALID_VALUE);
  bool device = kind == Kind::device || kind == Kind::managed;
  CHECK(!device || size <= device_bytes - used_bytes(ctx->device), CUDA_ERROR_OUT_OF_MEMORY);
  void *start = aligned_alloc(ALIGNMENT, (size + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  CHECK(start, CUDA_ERROR_OUT_OF_MEMORY);
  memset(start, FRESH_BYTE, size);
  blocks[uintptr_t(start)] = {uintptr_t(start), size, kind, ctx, true, flags, ++last_id};
  *out = start;
  return CUDA_SUCCESS;
}

inline void leave_quarantine() {
  Block &b = freed.front();
  if (!untouched(b)) broken.push_back({b.start, b.size, b.ctx->device, ""});
  freed_bytes -= b.size + GAP;
  free((void *)b.start);
  freed.pop_front();
}

inline void release(Block *found) {
  Block b = *found;
  blocks.erase(b.start);
  if (!b.owned) return;
  memset((char *)b.start, FREED_BYTE, b.size);
  freed.push_back(b);
  freed_bytes += b.size + GAP;
  while (freed_bytes > QUARANTINE) leave_quarantine();
}

// ---- contexts -----------------------------------------------------------------------------------

inline Context *new_context(CUdevice device, unsigned flags) {
  CUcontext handle = new_handle<CUcontext>();
  Context &ctx = contexts[handle];
  ctx.handle = handle, ctx.device = device, ctx.flags = flags;
  return &ctx;
}

inline void open_context(Context *ctx) {
  ctx->legacy = new_stream(ctx, CU_STREAM_DEFAULT, nullptr);
  ctx->legacy->legacy = true;
}

inline void close_context(Context *ctx) {  // everything that belongs to it goes with it
  settle_context(ctx);
  std::vector<Block *> mine;
  for (auto &item : blocks)
    if (item.second.ctx == ctx) mine.push_back(&item.second);
  for (Block *b : mine) release(b);
  for (auto &s : ctx->streams) s->destroyed = true, streams.erase(s->handle);
  for (auto it = events.begin(); it != events.end();)
    it = it->second.ctx == ctx ? events.erase(it) : std::next(it);
  ctx->streams.clear();
  ctx->peers.clear();
  ctx->legacy = nullptr;
  ctx->references = 0;
}

inline Context *primary_context(CUdevice device) {
  for (auto &item : contexts)
    if (item.second.primary && item.second.device == device) return &item.second;
  Context *ctx = new_context(device, 0);
  ctx->primary = true;
  return ctx;
}

void report(const Damage &damage);      // trace.cpp
void tell(const std::string &message);  // prints what is wrong, if this is asked for

inline bool valid_device(CUdevice device) { return device >= 0 && device < device_count; }

Work *work_of(CUgraphExec graph, CUgraphNode node);  // graphs.cpp; null: there is none

}  // namespace hostcuda
using namespace hostcuda;
