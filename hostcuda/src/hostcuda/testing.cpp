// What tests ask of the driver; __init__.py calls these.
#include "api.h"
#include "fibers.h"

EXPORT void hostcuda_configure(int devices, size_t bytes) {
  driver.device_count = devices, driver.device_bytes = bytes;
}

// Threads and blocks have a random order, too, if `order` is random or there is a seed.
EXPORT void hostcuda_begin(bool loads_images, bool checks, int order, u64 seed) {
  driver.loads_images = loads_images;
  checking = checks;
  set_order(Order(order), seed);
}

EXPORT long hostcuda_calls() { std::lock_guard lock(driver.lock); return driver.calls; }

EXPORT long hostcuda_host_waits() { std::lock_guard lock(driver.lock); return driver.host_waits; }

// Operations queued and not yet run: on one stream, or on all with handle -1.
EXPORT long hostcuda_pending(uintptr_t handle) {
  std::lock_guard lock(driver.lock);
  if (handle != uintptr_t(-1)) {
    auto stream = find_stream(CUstream(handle));
    return stream ? long(stream->todo.size()) : -1;
  }
  long count = 0;
  for (auto &item : driver.contexts)
    for (auto &stream : item.second.streams) count += stream->todo.size();
  return count;
}

struct hostcuda_row {
  uintptr_t start;
  size_t size;
  int device;
  const char *by;
};

// Both fill at most `room` rows and answer how many there are.
EXPORT size_t hostcuda_live_blocks(hostcuda_row *rows, size_t room) {
  std::lock_guard lock(driver.lock);
  size_t n = 0;
  for (auto &item : driver.blocks) {
    const Block &b = item.second;
    if (b.kind != Kind::device && b.kind != Kind::managed) continue;
    if (n < room) rows[n] = {b.start, b.size, b.ctx->device, ""};
    ++n;
  }
  return n;
}

EXPORT size_t hostcuda_damaged(hostcuda_row *rows, size_t room) {
  std::lock_guard lock(driver.lock);
  size_t n = 0;
  auto add = [&](uintptr_t start, size_t size, int device, const char *by = "") {
    if (n < room) rows[n] = {start, size, device, by};
    ++n;
  };
  for (auto &d : driver.broken) add(d.start, d.size, d.device, d.by.c_str());
  for (auto &b : driver.freed)
    if (!untouched(b)) add(b.start, b.size, b.ctx->device);
  return n;
}

struct hostcuda_launch {
  const char *name;
  unsigned grid[3], block[3], shared;
  uintptr_t stream;
  const char *arguments;
  size_t bytes;
};

EXPORT void hostcuda_record(bool yes) { driver.records = yes; }

EXPORT size_t hostcuda_launches(hostcuda_launch *rows, size_t room) {
  std::lock_guard lock(driver.lock);
  size_t n = 0;
  for (auto &l : driver.launches) {
    if (n == room) break;
    rows[n++] = {l.name.c_str(),
                 {l.grid[0], l.grid[1], l.grid[2]},
                 {l.block[0], l.block[1], l.block[2]},
                 l.shared,
                 uintptr_t(l.stream),
                 l.arguments.data(),
                 l.arguments.size()};
  }
  return driver.launches.size();
}

EXPORT void hostcuda_clear() {
  std::lock_guard lock(driver.lock);
  driver.launches.clear();
  driver.host_waits = 0;
  forget_freed();
}

EXPORT void hostcuda_finish() {
  Lock lock;
  long before = driver.host_waits;
  for (auto &item : driver.contexts) settle_context(&item.second);
  driver.host_waits = before;
}

EXPORT void hostcuda_revive() {
  std::lock_guard lock(driver.lock);
  for (auto &item : driver.contexts) item.second.dead = CUDA_SUCCESS;
  findings.clear(), told.clear();
}

// Why kernels failed; if `untold`, where no call has told it. And what `--check` found. Fills at most `room` rows.
EXPORT size_t hostcuda_failures(bool untold, const char **rows, size_t room) {
  std::lock_guard lock(driver.lock);
  size_t n = 0;
  for (auto &item : driver.contexts) {
    const Death &dead = item.second.dead;
    if (!dead || (untold && dead.told)) continue;
    if (n < room) rows[n] = dead.message.c_str();
    ++n;
  }
  for (auto &finding : findings) {
    if (n < room) rows[n] = finding.c_str();
    ++n;
  }
  return n;
}

void hc_cover(const char *source, const char *lines) {
  const char *report = getenv("HOSTCUDA_COVER");
  FILE *file = report ? fopen(report, "a") : nullptr;
  if (!file) return;
  fprintf(file, "SF:%s\n%s\nend_of_record\n", source, lines);
  fclose(file);
}
