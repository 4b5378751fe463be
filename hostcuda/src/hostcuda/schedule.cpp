// What waits for what, and what runs when.
#include "api.h"
#include "fibers.h"

#include <chrono>

namespace hostcuda {
namespace {

const int MOST_POLLS = 1000;  // then the work runs: a GPU would end it at some time

uint64_t random_state = 1;
unsigned random_below(unsigned n) { return hostcuda::random_below(n, random_state); }

// Does new work on `a` wait for earlier work on `b`? The legacy default stream and the blocking
// streams of its context wait for each other; every other pair is independent. An event recorded on
// the default stream waits as work there does, but no blocking stream waits for it: an H200 (driver
// 580) lets them wait, and CUDA's guide does not promise it.
bool ordered(const Stream &a, const Stream &b) {
  if (&a == &b) return true;
  return a.ctx == b.ctx && a.blocking() && b.blocking() && (a.legacy || a.of_events || b.legacy);
}

// In the random order, some of the queued work runs meanwhile.
void go_on() {
  if (driver.order != Order::random) return;
  for (auto &item : driver.contexts)
    for (auto &s : item.second.streams)
      if (!s->todo.empty() && random_below(8) < s->haste) run(*s, s->todo.front().seq, Waits::no);
}

// If tests ask which kernels are launched.
void record(const Stream &s, const Work &work) {
  if (!driver.records || !work.launch) return;
  driver.launches.push_back(*work.launch);
  driver.launches.back().stream = s.handle;
}

}  // namespace

Guard::Guard(bool is_cleanup) {
  ++driver.calls;
  driver.is_cleanup = is_cleanup;
  if (driver.is_started) go_on();
}

void set_order(Order order, uint64_t seed) {
  driver.order = order;
  random_state = (seed + 1) * 0x9E3779B97F4A7C15ull;
  thread_state = order == Order::random || seed ? ~random_state : 0;
}

shared_ptr<Stream> new_stream(Context *ctx, unsigned flags, CUstream handle) {
  auto s = std::make_shared<Stream>();
  s->ctx = ctx, s->flags = flags, s->handle = handle, s->number = ++driver.last_stream;
  const unsigned hastes[] = {0, 1, 4, 8};
  if (driver.order == Order::random) s->haste = hastes[random_below(4)];
  ctx->streams.push_back(s);
  return s;
}

// Null and 1 are the legacy default stream of the current context (one per context: those of two
// contexts are not ordered), 2 the calling thread's own.
Stream *find_stream(CUstream handle) {
  static thread_local std::map<Context *, shared_ptr<Stream>> thread_streams;
  if (uintptr_t(handle) > 2) {
    auto *s = lookup(driver.streams, handle);
    return s ? s->get() : nullptr;
  }
  Context *ctx = current();
  if (!ctx) return nullptr;
  if (handle != CU_STREAM_PER_THREAD) return ctx->legacy.get();
  auto &mine = thread_streams[ctx];
  if (!mine || mine->destroyed) mine = new_stream(ctx, CU_STREAM_DEFAULT, handle);
  return mine.get();
}

bool undone(const Stream &s, uint64_t upto) {
  return !s.todo.empty() && s.todo.front().seq <= upto;
}

bool undone_before(const Stream &s) {
  for (auto &t : s.ctx->streams)
    if (ordered(s, *t) && undone(*t, LATEST)) return true;
  return false;
}

bool has_polled_enough() { return ++driver.polls > MOST_POLLS; }

void join(Clock &clock, const Clock &other) {
  for (auto &[number, seq] : other) clock[number] = std::max(clock[number], seq);
}

void host_waited(const Clock &clock) {
  if (checking) join(driver.host_clock, clock);
}

// Before each operation runs all that it waits for. Every dependency has a smaller number than the
// operation, so the recursion ends. While it waits for a host function, other threads may run the
// same streams, and add some.
bool run(Stream &s, uint64_t upto, Waits waits) {
  while (undone(s, upto)) {
    const uint64_t seq = s.todo.front().seq, after_seq = s.todo.front().after_seq;
    const shared_ptr<Stream> after = s.todo.front().after;
    auto &all = s.ctx->streams;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].get() != &s && ordered(s, *all[i]) && !run(*all[i], seq - 1, waits)) return false;
    if (after && !run(*after, after_seq, waits)) return false;
    if (!undone(s, seq)) continue;
    if (shared_ptr<HostCall> call = s.todo.front().call) {
      if (!host_call_ends(*call, waits)) return false;
      if (!undone(s, seq)) continue;
    }
    Operation op = std::move(s.todo.front());
    s.todo.pop_front();
    perform(s, op);
  }
  return true;
}

uint64_t enqueue(Stream &s, Work work, const Event *after) {
  work.caller = caller;
  if (s.graph) {
    s.graph->nodes.push_back({std::move(work), s.last});
    s.last = {s.graph->nodes.size() - 1};
    return 0;
  }
  record(s, work);
  uint64_t seq = ++driver.clock;
  driver.polls = 0;
  if (checking) {
    see_host_bytes(&work);
    join(s.clock, driver.host_clock);
    for (auto &t : s.ctx->streams)
      if (ordered(s, *t)) join(s.clock, t->clock);
    if (after) join(s.clock, after->clock);
    s.clock[s.number] = seq;
  }
  auto call = work.host ? host_call(s, seq, work.host) : nullptr;
  s.todo.push_back({seq, std::move(work), after ? after->stream : nullptr, after ? after->seq : 0,
                    s.clock, call});
  bool is_hasty = driver.order == Order::random && random_below(8) < s.haste;
  if (driver.order == Order::earliest || is_hasty) run(s, seq, Waits::no);
  return seq;
}

void settle(Stream &s) {
  for (auto &t : s.ctx->streams)
    if (ordered(s, *t)) host_waited(t->clock);
  if (!undone_before(s)) return;
  ++driver.host_waits;
  auto &all = s.ctx->streams;
  for (size_t i = 0; i < all.size(); ++i)
    if (ordered(s, *all[i])) run(*all[i], LATEST);
}

// What was queued last runs first, where nothing orders it: the worst case for a missing fence.
void settle_context(Context *ctx) {
  Stream *last = nullptr;
  auto latest = [](const Stream *s) { return s && !s->todo.empty() ? s->todo.back().seq : 0; };
  for (bool waited = false;; waited = true) {
    for (auto &t : ctx->streams)
      if (latest(t.get()) > latest(last)) last = t.get();
    if (!latest(last)) break;
    driver.host_waits += !waited;
    run(*last, LATEST);
  }
  for (auto &t : ctx->streams) host_waited(t->clock);
  auto drained = [](const shared_ptr<Stream> &t) { return t->destroyed; };
  if (driver.unlocked) return;
  auto &all = ctx->streams;
  std::vector<int> ended;
  for (auto &t : all)
    if (t->destroyed) ended.push_back(t->number);
  forget_streams(ended);
  all.erase(std::remove_if(all.begin(), all.end(), drained), all.end());
}

double wall_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace hostcuda
