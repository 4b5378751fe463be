// What the driver consists of: contexts, streams and the work queued on them, events, graphs,
// blocks of memory, modules. "Device" memory is host memory, and kernels are host code
// (translated.h).
//
// Streams are LAZY. Work is queued and runs at the latest moment the CUDA documentation allows:
// when the host waits for it, or when later work that is ordered after it runs. Two other orders
// may be chosen, the earliest, and a random one: each is legal, and a missing fence that is
// harmless in one of them shows in another.
#pragma once
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "translated.h"

namespace hostcuda {

using std::shared_ptr;
using Bytes = std::vector<char>;

const size_t ALIGNMENT = 512;           // of blocks
const unsigned char FRESH_BYTE = 0xCD;  // a new block: device memory is not zeroed
const unsigned char FREED_BYTE = 0xA7;  // a freed block: small as a float, so that += 1 shows
const int MULTIPROCESSORS = 2;          // of a device
const int MOST_SHARED = 227 << 10;      // bytes of shared memory, for a kernel that asks for them
const int MOST_URGENT = -5;              // priority of a stream; 0 is the least
const uint64_t LATEST = ~0ull;

// ---- types --------------------------------------------------------------------------------------

struct Stream;
struct Graph;

struct Launch {
  std::string name;  // of the kernel
  unsigned grid[3], block[3], shared;
  CUstream stream;  // where it ran, in the record
  Bytes arguments;
};
inline uint64_t volume(const unsigned *extents) { return uint64_t(extents[0]) * extents[1] * extents[2]; }

struct Range {
  uintptr_t start;
  size_t size;
};

// Where work stands in a graph that was launched.
struct InGraph {
  uint64_t launch;
  size_t number;
  std::set<size_t> before;  // the nodes that end before it begins
};

// What is queued or captured: a name for messages, the memory that it may touch, and the work.
struct Work {
  std::string name;
  std::vector<Range> reads, writes;
  std::function<void()> run;
  shared_ptr<const Launch> launch = nullptr;  // of a kernel
  std::string caller = {};  // if checked: "program.py:7"
  std::function<void(CUresult)> host = nullptr;  // what is to be called besides, with no lock held
  shared_ptr<const InGraph> node = nullptr;  // if checked
  shared_ptr<const Graph> graph = nullptr;  // that was launched
  uint64_t host_bytes = 0, queued = 0;      // if checked: of page-locked memory, a hash; and when
};

// One call of a host function (callbacks.cpp).
struct HostCall {
  std::function<void(CUresult)> function;
  bool is_ready = false, has_ended = false;  // is all done that comes before it?
  std::promise<void> promise;
  std::shared_future<void> ended = promise.get_future();
  void end() { has_ended = true, promise.set_value(); }
};

// What a capture has gathered. Its nodes are in an order that respects their dependencies.
struct Graph {
  struct Node {
    Work work;
    std::set<size_t> after;
  };
  std::vector<Node> nodes;
  CUstreamCaptureMode mode;
  CUgraph handle;
  std::map<CUuserObject, std::vector<shared_ptr<void>>> kept;  // executables keep them, too
  bool open = true, spoilt = false;
  std::vector<uintptr_t> dropped;  // blocks, whose frees are queued when the capture ends
};

// How much of each stream's work, by its number, comes before something.
using Clock = std::map<int, uint64_t>;

struct Operation {
  uint64_t seq;
  Work work;
  shared_ptr<Stream> after;  // cuStreamWaitEvent: run this stream up to after_seq first
  uint64_t after_seq;
  Clock clock;
  shared_ptr<HostCall> call;
};

struct Context;
struct Stream : std::enable_shared_from_this<Stream> {
  Context *ctx;
  CUstream handle;
  unsigned flags;
  bool legacy = false, of_events = false, destroyed = false;
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

// What every call answers after a kernel has failed.
class Death {
  CUresult status = CUDA_SUCCESS;

 public:
  std::string message;
  bool told = false;  // some call has answered it
  Death &operator=(CUresult failure) { return status = failure, told = false, *this; }
  bool operator!() const { return status == CUDA_SUCCESS; }
  operator CUresult();
};

struct Context {
  CUcontext handle;
  CUdevice device;
  unsigned flags = 0;
  int references = 0;  // primary contexts count retains; others are 1 until destroyed
  bool primary = false;
  Death dead;
  shared_ptr<Stream> legacy, legacy_events;  // of events recorded on it
  std::vector<shared_ptr<Stream>> streams;  // these two, too
  std::vector<CUcontext> peers;             // contexts whose memory this one may reach
  size_t heap_bytes = 0;                    // of malloc() in kernels
  std::map<CUlimit, size_t> limits = {      // that of malloc() in kernels is kept, the others are only told
      {CU_LIMIT_STACK_SIZE, 1 << 10}, {CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20}, {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20}};
};

enum class Kind { device, heap, pinned, registered, managed, variable };
struct Block {
  uintptr_t start;
  size_t size;
  Kind kind;
  Context *ctx;
  bool owned;  // allocated here, at `start`
  unsigned flags;
  unsigned long long id;
  std::string caller = {};  // the program's line that allocated it, if checked
  CUmemoryPool pool = nullptr;  // if allocated in stream order
  bool is_leaving = false;      // its free is queued
  uint64_t written = 0;         // of page-locked memory: when, by work
  shared_ptr<Stream> home = nullptr;  // of an array that shares no block: its free is work there
};

struct Module {
  Context *ctx;
  void *library = nullptr;  // null: a real GPU image, whose launches are only recorded
  std::map<std::string, CUfunction> functions;
  std::vector<uintptr_t> variables;  // where its blocks start
  Range code = {};
};
struct Function {
  Module *module;
  std::string name;
  const hc_kernel *kernel;  // null: only recorded
  hc_limits limits;
  unsigned most_shared;     // bytes of dynamic shared memory
};

struct Damage {
  uintptr_t start;
  size_t size;
  int device;
  std::string by;  // the work, if it is known
};

// ---- the driver ---------------------------------------------------------------------------------

enum class Order { latest, earliest, random };

struct Driver {
  std::recursive_timed_mutex lock;  // for everything: this is a test double, not a fast driver
  bool is_started = false;    // by cuInit
  bool is_forked = false;     // CUDA does not survive fork
  bool is_cleanup = false;    // of this call the answer is dropped, by libraries' destructors
  bool loads_images = true;   // of a GPU; launches of their kernels are recorded, and do nothing
  bool records = false;       // launches

  int device_count = 1;
  size_t device_bytes = size_t(1) << 30;
  Order order = Order::latest;

  uint64_t clock = 0;        // sequence number of the last operation queued
  uint64_t last_handle = 0;  // only those of streams are given again
  int last_stream = 0;       // number
  int polls = 0;             // queries since the last work was queued that found work undone
  long calls = 0;            // of entry points
  int unlocked = 0;          // threads that wait within a call, without the lock
  long host_waits = 0;       // how often the host was blocked on work that had not run yet
  Clock host_clock;          // what the host has waited for

  std::map<CUcontext, Context> contexts;  // destroyed ones stay, with 0 references
  std::map<CUstream, shared_ptr<Stream>> streams;
  std::map<CUevent, Event> events;
  std::map<CUmodule, Module> modules;
  std::map<CUfunction, Function> functions;
  std::map<uintptr_t, Block> blocks;  // by start address
  std::deque<Block> freed;            // their bytes are kept for a while
  std::vector<Damage> broken;         // found when work ran, or the bytes of a freed block went
  std::vector<Launch> launches;
  void (*ask_caller)() = nullptr;     // if checked, at each call of the program
};
extern Driver driver;
inline bool checking = false;
inline thread_local std::string caller;  // the program's line, if asked

inline Death::operator CUresult() {
  told |= status != CUDA_SUCCESS && !driver.is_cleanup;
  return status;
}

inline unsigned random_below(unsigned n, uint64_t &state) {  // xorshift*
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return unsigned(state * 0x2545F4914F6CDD1Dull >> 33) % n;
}

inline bool valid_device(CUdevice device) { return device >= 0 && device < driver.device_count; }

template <class Map, class Key>
auto *lookup(Map &map, Key key) {
  auto it = map.find(key);
  return it == map.end() ? nullptr : &it->second;
}

template <class H>
H new_handle() {
  return H(uintptr_t(0x10000 + 0x10 * ++driver.last_handle));
}

// ---- contexts.cpp -------------------------------------------------------------------------------

Context *current();  // of the calling thread; null: none

// ---- schedule.cpp: what waits for what, and what runs when ---------------------------------------

void set_order(Order order, uint64_t seed);
shared_ptr<Stream> new_stream(Context *ctx, unsigned flags, CUstream handle);
Stream *find_stream(CUstream handle);  // as the caller means it; null: none
bool undone(const Stream &s, uint64_t upto);
bool undone_before(const Stream &s);     // anything that new work on `s` would wait for
void join(Clock &clock, const Clock &other);
enum class Waits { no, yes };  // for host functions
// Its work up to a sequence number. Answers whether all is done.
bool run(Stream &s, uint64_t upto, Waits waits = Waits::yes);
bool has_polled_enough();                // the host asks, finds work undone, and asks again
uint64_t enqueue(Stream &s, Work work, const Event *after = nullptr);
void host_waited(const Clock &clock);
void settle(Stream &s);                  // the host waits for all that new work would wait for
void settle_context(Context *ctx);
double wall_ms();

// ---- callbacks.cpp ------------------------------------------------------------------------------

shared_ptr<HostCall> host_call(Stream &s, uint64_t seq, const std::function<void(CUresult)> &function);
bool host_call_ends(HostCall &call, Waits waits);
void wait_unlocked(const std::shared_future<void> &end);  // library.cpp

// ---- captures.cpp: what a call may not do while a stream is being captured -----------------------

CUresult spoil(const shared_ptr<Graph> &graph, CUresult error);
CUresult may_queue(const Stream &s);  // before work is queued
CUresult may_ask(const Stream &s);    // before the host waits for a stream, or asks about it
CUresult may_be_unsafe();             // before an allocation, and what else relaxed captures allow
Work *work_of(CUgraphExec graph, CUgraphNode node);  // null: there is none

// ---- blocks.cpp: memory -------------------------------------------------------------------------

Block *find_block(const void *address);
Block *find_freed(uintptr_t address);
bool on_device(const Block *b);
bool holds(const Block *b, const void *address, size_t size);
bool untouched(const Block &b);  // since it was freed
size_t used_bytes(int device);
CUresult allocate(Context *ctx, size_t size, Kind kind, unsigned flags, void **out);
void release(Block *b);
void queue_free(Block *b, Stream &s);  // pools.cpp
void forget_freed();  // the bytes of freed blocks

// ---- runtime.cpp --------------------------------------------------------------------------------

CUresult ready();  // makes the primary context current, if none is

// ---- conflicts.cpp ------------------------------------------------------------------------------

void see_host_bytes(Work *work);  // that is queued
void check_host_bytes(const Stream &s, const Work &work);  // before it runs
void note_uses(const Stream &s, const Operation &op);  // of what has run
void add_uses(const std::vector<Range> &reads, const std::vector<Range> &writes);  // of what runs
void forget_streams(const std::vector<int> &numbers);

// ---- perform.cpp --------------------------------------------------------------------------------

void mark_written(uintptr_t start, size_t size);     // checks.cpp
void perform(const Stream &s, const Operation &op);  // runs it, unless the context has failed, and says what it damaged
void report(const Damage &damage);
void tell(const std::string &message);  // prints what is wrong, if this is asked for

}  // namespace hostcuda
using namespace hostcuda;
