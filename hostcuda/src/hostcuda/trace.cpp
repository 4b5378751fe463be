// Runs queued work, says what it damaged, and, if asked, writes down which memory it used.
#include "api.h"
#include "fibers.h"

#include <utility>

namespace {

bool loud = false;  // what is wrong is printed where it is found
FILE *trace_file = nullptr;

// Reports writes to a block that had been freed.
void inspect(uintptr_t address, const std::string &by) {
  Block *b = find_block((void *)address) ? nullptr : find_freed(address);
  if (!b || untouched(*b)) return;
  report({b->start, b->size, b->ctx->device, by});
  memset((char *)b->start, FREED_BYTE, b->size);
}

void print_range(const char *what, uintptr_t start, size_t size) {
  Block *b = find_block((void *)start);
  if (!b && !(b = find_freed(start))) return;
  fprintf(trace_file, "%s %llu %zu %zu %zu\n", what, b->id ? b->id : b->start, b->size,
          size_t(start - b->start), size);
}

const size_t MOST_RANGES = 10000;  // more are told as one for each block

void print_ranges(const char *what, const std::vector<Range> &ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    Range all = ranges[i];
    if (ranges.size() > MOST_RANGES)
      for (Block *b = find_block((void *)all.start);
           b && i + 1 < ranges.size() && find_block((void *)ranges[i + 1].start) == b; ++i)
        all.size = ranges[i + 1].start + ranges[i + 1].size - all.start;
    print_range(what, all.start, all.size);
  }
}

std::vector<Range> more_reads, more_writes;  // of the work that runs: of a graph's nodes, or found late

void add(std::vector<Range> *to, const std::vector<Range> &ranges) {
  to->insert(to->end(), ranges.begin(), ranges.end());
}

void print(const Stream &s, const Operation &op, const std::vector<Range> &reads,
           const std::vector<Range> &writes) {
  fprintf(trace_file, "work %llu %d %s\ncaller %s\n", (unsigned long long)op.seq, s.number,
          op.work.name.c_str(), op.work.caller.c_str());
  for (auto &[number, seq] : op.clock)
    fprintf(trace_file, "after %d %llu\n", number, (unsigned long long)seq);
  print_ranges("read", reads);
  print_ranges("write", writes);
  u64 hash = 0;  // of what was written
  for (auto &range : writes)
    if (holds(find_block((void *)range.start), (void *)range.start, range.size))
      for (size_t i = 0; i < range.size; ++i)
        hash = (hash ^ ((u8 *)range.start)[i]) * 0x100000001b3;
  fprintf(trace_file, "hash %llu\n", hash);
}

void note(const Stream &s, const Operation &op) {
  std::vector<Range> reads = std::exchange(more_reads, {}), writes = std::exchange(more_writes, {});
  add(&reads, op.work.reads), add(&writes, op.work.writes);
  take_uses(&reads, &writes);
  note_use(s, op, reads, writes);
  if (trace_file) print(s, op, reads, writes);
}

}  // namespace

void hostcuda::report(const Damage &d) {
  driver.broken.push_back(d);
  tell(d.by + " wrote into a block of " + std::to_string(d.size) + " bytes after it was freed");
}

void hostcuda::find(const std::string &finding) {
  if (trace_file) {
    fprintf(trace_file, "found %s\n", finding.c_str());
  } else {
    findings.push_back(finding);
    tell(finding);
  }
}

void hostcuda::tell(const std::string &message) {
  if (loud) fprintf(stderr, "hostcuda: %s\n", message.c_str());
}

void hostcuda::perform(const Stream &s, const Operation &op) {
  if (!s.ctx->dead) {
    op.work.run();
    for (auto &range : op.work.writes) {
      inspect(range.start, op.work.name);
      mark_written(range.start, range.size);
    }
  }
  if (driver.traces && !op.work.name.empty()) note(s, op);
}

void hostcuda::add_uses(const std::vector<Range> &reads, const std::vector<Range> &writes) {
  for (auto &range : writes) mark_written(range.start, range.size);
  if (driver.traces) add(&more_reads, reads), add(&more_writes, writes);
}

void hostcuda::keep_clocks(bool yes) { driver.traces = yes || trace_file; }

EXPORT bool hostcuda_loud(bool yes) { return loud |= yes; }

// `ask` is called at each entry point, and calls the function below; null: no more.
EXPORT void hostcuda_trace(const char *path, void (*ask)()) {
  if (path) trace_file = fopen(path, "w");
  keep_clocks(false);
  driver.ask_caller = ask;
}

EXPORT void hostcuda_caller(const char *name) { caller = name; }
