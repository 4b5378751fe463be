// Runs queued work, says what it damaged, and, if asked, writes down which memory it changed.
#include "api.h"

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

// The blocks that work may write, as they were before it.
struct Before {
  Range range;
  Bytes bytes;
};

void print_range(const char *what, uintptr_t start, size_t size) {
  Block *b = find_block((void *)start);
  if (!b && !(b = find_freed(start))) return;
  fprintf(trace_file, "%s %llu %zu %zu %zu\n", what, b->id ? b->id : b->start, b->size,
          size_t(start - b->start), size);
}

const size_t MOST_RUNS = 300;  // of bytes that differ; more are told as one

// The runs of bytes that differ.
std::vector<Range> runs(const char *one, const char *other, size_t size) {
  std::vector<Range> found;
  for (size_t i = 0; i < size; ++i) {
    if (one[i] == other[i]) continue;
    size_t first = i;
    while (i < size && one[i] != other[i]) ++i;
    found.push_back({first, i - first});
  }
  return found;
}

void print(const Stream &s, const Operation &op, const std::vector<Before> &before) {
  fprintf(trace_file, "work %llu %d %s\n", (unsigned long long)op.seq, s.number,
          op.work.name.c_str());
  for (auto &[number, seq] : op.clock)
    fprintf(trace_file, "after %d %llu\n", number, (unsigned long long)seq);
  for (auto &range : op.work.reads) print_range("read", range.start, range.size);
  for (auto &[range, bytes] : before) {
    print_range("read", range.start, range.size);
    auto changed = runs(bytes.data(), (const char *)range.start, range.size);
    if (changed.size() > MOST_RUNS)
      changed = {{changed.front().start, changed.back().start + changed.back().size -
                                             changed.front().start}};
    for (auto &run : changed) print_range("write", range.start + run.start, run.size);
  }
}

}  // namespace

void hostcuda::report(const Damage &d) {
  driver.broken.push_back(d);
  tell(d.by + " wrote into a block of " + std::to_string(d.size) + " bytes after it was freed");
}

void hostcuda::tell(const std::string &message) {
  if (loud) fprintf(stderr, "hostcuda: %s\n", message.c_str());
}

void hostcuda::perform(const Stream &s, const Operation &op) {
  std::vector<Before> before;
  if (driver.traces)
    for (auto &range : op.work.writes)
      before.push_back({range, Bytes((char *)range.start, (char *)range.start + range.size)});
  op.work.run();
  for (auto &range : op.work.writes) inspect(range.start, op.work.name);
  if (driver.traces && !op.work.name.empty()) print(s, op, before);
}

EXPORT bool hostcuda_loud(bool yes) { return loud |= yes; }

EXPORT void hostcuda_trace(const char *path) {
  trace_file = fopen(path, "w");
  driver.traces = trace_file != nullptr;
}
