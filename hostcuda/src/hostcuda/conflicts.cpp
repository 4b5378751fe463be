// Finds pairs of work that use the same bytes, at least one to write, and that nothing orders.
#include "api.h"
#include "fibers.h"

#include <array>
#include <utility>

namespace {

const size_t MOST_RANGES = 1 << 20, MOST_USES = 1 << 13;  // then the oldest are forgotten

struct BlockRange {
  unsigned long long block;
  size_t first, end, size;  // of it; and of the block
  bool operator<(const BlockRange &other) const {
    return std::tie(block, first) < std::tie(other.block, other.first);
  }
};
using Ranges = std::vector<BlockRange>;  // sorted, and apart

struct Use {  // of memory, by work that has run
  uint64_t seq;
  int stream;
  Clock clock;
  shared_ptr<const InGraph> node;
  std::string name, on;
  std::array<Ranges, 3> ranges;  // by hc_kind
};

bool in_block = false;  // of hostcuda.conflicts()
std::vector<std::string> texts;  // of its conflicts: the first work, the second, and what both use
std::deque<Use> uses;
size_t range_count = 0, when_to_forget = 256;
std::vector<Range> more_reads, more_writes;  // of the work that runs, found late
uint64_t steps = 0, last_call = 0;  // of work that was queued or has run; of a host function

Ranges in_blocks(const std::vector<Range> &ranges) {
  Ranges all, found;
  for (auto &range : ranges) {
    Block *b = find_block((void *)range.start);
    if (!b && !(b = find_freed(range.start))) continue;
    size_t first = range.start - b->start;
    all.push_back({b->id ? b->id : b->start, first, first + range.size, b->size});
  }
  std::sort(all.begin(), all.end());
  for (auto &one : all)
    if (!found.empty() && found.back().block == one.block && one.first <= found.back().end)
      found.back().end = std::max(found.back().end, one.end);
    else
      found.push_back(one);
  return found;
}

bool knows(const Clock &clock, const Use &use) {
  auto last = clock.find(use.stream);
  return last != clock.end() && last->second >= use.seq;
}

// Does the second one, which was queued later, come after the first one?
bool is_after(const Use &b, const Use &a) {
  if (a.node && b.node && a.node->launch == b.node->launch)
    return b.node->before.count(a.node->number) || a.node->before.count(b.node->number);
  return a.stream == b.stream || knows(b.clock, a);
}

// Does all that has not run come after it?
bool is_over(const Use &use) {
  if (!knows(driver.host_clock, use)) return false;
  for (auto &item : driver.contexts)
    for (auto &s : item.second.streams)
      for (auto &op : s->todo)
        if (!knows(op.clock, use)) return false;
  return true;
}

template <class Condition>
void forget_uses(Condition condition) {
  auto end = std::remove_if(uses.begin(), uses.end(), condition);
  uses.erase(end, uses.end());
  range_count = 0;
  for (auto &use : uses)
    for (auto &ranges : use.ranges) range_count += ranges.size();
}

// The bytes of the first block that two lists share: from the first to the last one.
bool share(const Ranges &ranges, const Ranges &others, BlockRange *common) {
  bool any = false;
  auto one = ranges.begin(), other = others.begin();
  while (one != ranges.end() && other != others.end()) {
    size_t first = std::max(one->first, other->first), end = std::min(one->end, other->end);
    if (one->block == other->block && first < end) {
      if (any && one->block != common->block) break;
      *common = {one->block, any ? common->first : first, end, one->size}, any = true;
    }
    ++(std::tie(one->block, one->end) < std::tie(other->block, other->end) ? one : other);
  }
  return any;
}

// Reads do not conflict, nor do atomics.
bool conflict(const Use &a, const Use &b, BlockRange *common) {
  for (int i : {hc_writes, hc_updates, hc_reads})
    for (int j : {hc_writes, hc_updates, hc_reads})
      if ((i != j || i == hc_writes) && share(a.ranges[i], b.ranges[j], common)) return true;
  return false;
}

void compare(const Use &a, const Use &b) {
  BlockRange common;
  if (is_after(b, a) || !conflict(a, b, &common)) return;
  std::string memory = text("bytes %zu to %zu of a block of %zu", common.first, common.end, common.size);
  if (in_block)
    texts.insert(texts.end(), {a.name + a.on, b.name + b.on, memory});
  else if (told.insert({a.name + "\n" + b.name, 0, 0}).second)
    find("a race: " + a.name + a.on + " and " + b.name + b.on + " are not ordered, and both use " + memory);
}

// Calls a function with each range of page-locked memory, and its block.
template <class Function>
void each_page_locked(const std::vector<Range> &ranges, Function function) {
  for (auto &range : ranges) {
    Block *b = find_block((void *)range.start);
    if (b && !on_device(b) && holds(b, (void *)range.start, range.size)) function(range, *b);
  }
}

uint64_t host_bytes(const Work &work) {
  uint64_t hash = 0;
  for (auto *ranges : {&work.reads, &work.writes})
    each_page_locked(*ranges, [&](const Range &range, const Block &) {
      for (size_t i = 0; i < range.size; ++i) hash = (hash ^ ((u8 *)range.start)[i]) * 0x100000001b3;
    });
  return hash;
}

std::string described(const Work &work) { return work.name + (work.caller.empty() ? "" : " of " + work.caller); }
std::string described(const Stream &s) {
  return s.legacy ? " (on the default stream)" : text(" (on stream %d)", s.number);
}

}  // namespace

void hostcuda::see_host_bytes(Work *work) { work->queued = ++steps, work->host_bytes = host_bytes(*work); }

// If neither work nor a host function has changed them, the host has.
void hostcuda::check_host_bytes(const Stream &s, const Work &work) {
  uint64_t last = last_call;
  for (auto *ranges : {&work.reads, &work.writes})
    each_page_locked(*ranges, [&](const Range &, const Block &b) { last = std::max(last, b.written); });
  if (last < work.queued && host_bytes(work) != work.host_bytes && told.insert({described(work), 0, 0}).second)
    find("a race: " + described(work) + described(s) +
         " uses page-locked memory that the host changes before it waits for this work");
}

void hostcuda::add_uses(const std::vector<Range> &reads, const std::vector<Range> &writes) {
  for (auto &range : writes) mark_written(range.start, range.size);
  if (!checking) return;
  more_reads.insert(more_reads.end(), reads.begin(), reads.end());
  more_writes.insert(more_writes.end(), writes.begin(), writes.end());
}

void hostcuda::note_uses(const Stream &s, const Operation &op) {
  std::vector<Range> ranges[] = {std::exchange(more_reads, {}), std::exchange(more_writes, {}), {}};
  take_uses(ranges);
  const Work &work = op.work;
  ranges[hc_reads].insert(ranges[hc_reads].end(), work.reads.begin(), work.reads.end());
  ranges[hc_writes].insert(ranges[hc_writes].end(), work.writes.begin(), work.writes.end());
  if (op.call) last_call = ++steps;
  for (int kind : {hc_writes, hc_updates})
    each_page_locked(ranges[kind], [&](const Range &, Block &b) { b.written = ++steps; });
  Use use = {op.seq, s.number, op.clock, work.node, described(work), described(s), {}};
  for (int kind = 0; kind < 3; ++kind) use.ranges[kind] = in_blocks(ranges[kind]);
  for (auto &other : uses) other.seq < use.seq ? compare(other, use) : compare(use, other);
  for (auto &list : use.ranges) range_count += list.size();
  uses.push_back(std::move(use));
  if (uses.size() > when_to_forget) forget_uses(is_over), when_to_forget = std::max<size_t>(256, 2 * uses.size());
  while (range_count > MOST_RANGES || uses.size() > MOST_USES) {
    for (auto &list : uses.front().ranges) range_count -= list.size();
    uses.pop_front();
  }
}

// No clock needs streams that have ended, once the host has waited for all their work.
void hostcuda::forget_streams(const std::vector<int> &numbers) {
  if (numbers.empty()) return;
  auto forget = [&](Clock &clock) {
    for (int number : numbers) clock.erase(number);
  };
  forget(driver.host_clock);
  for (auto &item : driver.contexts)
    for (auto &s : item.second.streams) forget(s->clock);
  for (auto &item : driver.events) forget(item.second.clock);
  forget_uses([&](const Use &use) {
    return std::find(numbers.begin(), numbers.end(), use.stream) != numbers.end();
  });
}

// Conflicts are gathered from now on, or told again.
EXPORT void hostcuda_gather(bool yes) {
  Lock lock;
  in_block = yes;
  texts.clear();
}

EXPORT size_t hostcuda_conflicts(const char **rows, size_t room) {
  Lock lock;
  for (size_t i = 0; i < std::min(room, texts.size()); ++i) rows[i] = texts[i].c_str();
  return texts.size();
}
