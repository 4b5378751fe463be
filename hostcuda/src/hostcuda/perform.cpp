// Runs queued work, and says what is wrong with it.
#include "api.h"
#include "fibers.h"

namespace {

bool loud = false;  // what is wrong is printed where it is found
FILE *findings_file = nullptr;  // of `--orders`, which compares what is printed

// Reports writes to a block that had been freed.
void inspect(uintptr_t address, const std::string &by) {
  Block *b = find_block((void *)address) ? nullptr : find_freed(address);
  if (!b || untouched(*b)) return;
  report({b->start, b->size, b->ctx->device, by});
  memset((char *)b->start, FREED_BYTE, b->size);
}

}  // namespace

void hostcuda::report(const Damage &d) {
  driver.broken.push_back(d);
  tell(d.by + " wrote into a block of " + std::to_string(d.size) + " bytes after it was freed");
}

void hostcuda::find(const std::string &finding) {
  if (findings_file) {
    fprintf(findings_file, "%s\n", finding.c_str()), fflush(findings_file);
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
    if (checking) check_host_bytes(s, op.work);
    op.work.run();
    for (auto &range : op.work.writes) {
      inspect(range.start, op.work.name);
      mark_written(range.start, range.size);
    }
  }
  if (checking && !op.work.name.empty()) note_uses(s, op);
}

EXPORT bool hostcuda_loud(bool yes) { return loud |= yes; }

// `ask` is called at each entry point, and calls the function below; null: no more.
EXPORT void hostcuda_ask(void (*ask)()) { driver.ask_caller = ask; }
EXPORT void hostcuda_caller(const char *name) { caller = name; }
EXPORT void hostcuda_find_into(const char *path) { findings_file = fopen(path, "a"); }
