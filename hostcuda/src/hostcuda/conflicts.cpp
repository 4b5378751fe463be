// Finds pairs of work that use the same bytes, at least one to write, and that nothing orders.
#include "api.h"
#include "fibers.h"

namespace {

struct BlockRange {
  unsigned long long block;
  size_t size, first, end;  // of the block; and of it
};

struct Use {  // of memory, by work that has run
  uint64_t seq;
  int stream;
  bool is_default;
  Clock clock;
  shared_ptr<const InGraph> node;
  std::string name, caller;
  std::vector<BlockRange> reads, writes;
};

bool judges = false;
std::vector<Use> uses;
std::map<int, uint64_t> ended_streams;  // streams; all later work comes after theirs
std::vector<std::string> texts;

std::vector<BlockRange> in_blocks(const std::vector<Range> &ranges) {
  std::vector<BlockRange> found;
  for (auto &range : ranges) {
    Block *b = find_block((void *)range.start);
    if (!b && !(b = find_freed(range.start))) continue;
    size_t first = range.start - b->start;
    found.push_back({b->id ? b->id : b->start, b->size, first, first + range.size});
  }
  return found;
}

// Does the second one, which was queued later, come after the first one?
bool is_after(const Use &b, const Use &a) {
  if (a.node && b.node && a.node->launch == b.node->launch)
    return b.node->before.count(a.node->number) || a.node->before.count(b.node->number);
  if (a.stream == b.stream) return true;
  auto known = b.clock.find(a.stream);
  if (known != b.clock.end() && known->second >= a.seq) return true;
  auto end = ended_streams.find(a.stream);
  return end != ended_streams.end() && b.seq > end->second;
}

// The bytes of the first block that two lists share: from the first to the last one.
bool share(const std::vector<BlockRange> &ranges, const std::vector<BlockRange> &others, BlockRange *common) {
  bool any = false;
  for (auto &one : ranges)
    for (auto &other : others) {
      size_t first = std::max(one.first, other.first), end = std::min(one.end, other.end);
      if (one.block != other.block || first >= end || (any && one.block != common->block)) continue;
      if (any) first = std::min(first, common->first), end = std::max(end, common->end);
      *common = {one.block, one.size, first, end}, any = true;
    }
  return any;
}

std::string described(const Use &use) {
  std::string stream = use.is_default ? "the default stream" : "stream " + std::to_string(use.stream);
  return use.name + (use.caller.empty() ? "" : " of " + use.caller) + " (on " + stream + ")";
}

}  // namespace

void hostcuda::note_use(const Stream &s, const Operation &op, const std::vector<Range> &reads,
                        const std::vector<Range> &writes) {
  if (!judges) return;
  uses.push_back({op.seq, s.number, s.legacy, op.clock, op.work.node, op.work.name, op.work.caller,
                  in_blocks(reads), in_blocks(writes)});
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
  if (judges)
    for (int number : numbers) ended_streams[number] = driver.clock;
}

// Work from now on is compared, or no more.
EXPORT void hostcuda_judge(bool yes) {
  Lock lock;
  std::vector<Range> of_earlier_work;
  take_uses(&of_earlier_work, &of_earlier_work);
  judges = yes, keep_clocks(yes);
  uses.clear(), ended_streams.clear(), texts.clear();
}

// Compares, and answers how many texts there are: of each pair the first work, the second, and what
// both use.
EXPORT size_t hostcuda_compare() {
  Lock lock;
  std::sort(uses.begin(), uses.end(), [](const Use &a, const Use &b) { return a.seq < b.seq; });
  for (auto b = uses.begin(); b != uses.end(); ++b)
    for (auto a = uses.begin(); a != b; ++a) {
      BlockRange common;
      if (is_after(*b, *a)) continue;
      if (!share(a->writes, b->writes, &common) && !share(a->writes, b->reads, &common) &&
          !share(a->reads, b->writes, &common))
        continue;
      texts.insert(texts.end(), {described(*a), described(*b),
                                 text("bytes %zu to %zu of a block of %zu", common.first, common.end,
                                      common.size)});
    }
  return texts.size();
}

EXPORT void hostcuda_conflicts(const char **rows) {
  for (auto &one : texts) *rows++ = one.c_str();
}
