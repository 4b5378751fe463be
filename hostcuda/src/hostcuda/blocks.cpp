// Blocks of memory. A freed one is kept for a while, so that writes after free show.
#include "api.h"

namespace {

const size_t GAP = 16 << 10;         // behind a block: 1024 threads, of 16 bytes each, stay inside
const size_t QUARANTINE = 64 << 20;  // bytes of freed blocks that are kept
size_t freed_bytes = 0;

void leave_quarantine() {
  Block &b = driver.freed.front();
  if (!untouched(b)) driver.broken.push_back({b.start, b.size, b.ctx->device, ""});
  freed_bytes -= b.size + GAP;
  free((void *)b.start);
  driver.freed.pop_front();
}

}  // namespace

namespace hostcuda {

Block *find_block(const void *address) {
  auto it = driver.blocks.upper_bound(uintptr_t(address));
  if (it == driver.blocks.begin()) return nullptr;
  Block &b = std::prev(it)->second;
  // One past the end still counts for empty ranges only; the driver says "not mine" as well.
  return uintptr_t(address) < b.start + b.size ? &b : nullptr;
}

Block *find_freed(uintptr_t address) {
  for (Block &b : driver.freed)
    if (address >= b.start && address < b.start + b.size) return &b;
  return nullptr;
}

bool on_device(const Block *b) {
  return b && b->kind != Kind::pinned && b->kind != Kind::registered;
}

bool holds(const Block *b, const void *address, size_t size) {
  return b && uintptr_t(address) + size <= b->start + b->size;
}

bool untouched(const Block &b) {
  const char *p = (const char *)b.start;
  return (unsigned char)p[0] == FREED_BYTE && !memcmp(p, p + 1, b.size - 1);
}

size_t used_bytes(int device) {
  size_t used = 0;
  for (auto &[start, b] : driver.blocks)
    if (on_device(&b) && b.ctx->device == device) used += b.size;
  return used;
}

CUresult allocate(Context *ctx, size_t size, Kind kind, unsigned flags, void **out) {
  static unsigned long long last_id = 0;
  CHECK(size && out, CUDA_ERROR_INVALID_VALUE);
  bool device = kind == Kind::device || kind == Kind::managed;
  CHECK(!device || size <= driver.device_bytes - used_bytes(ctx->device), CUDA_ERROR_OUT_OF_MEMORY);
  void *start = aligned_alloc(ALIGNMENT, (size + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  CHECK(start, CUDA_ERROR_OUT_OF_MEMORY);
  memset(start, FRESH_BYTE, size);
  driver.blocks[uintptr_t(start)] = {uintptr_t(start), size, kind, ctx, true, flags, ++last_id,
                                      caller};
  *out = start;
  return CUDA_SUCCESS;
}

void release(Block *found) {
  Block b = *found;
  driver.blocks.erase(b.start);
  if (!b.owned) return;
  memset((char *)b.start, FREED_BYTE, b.size);
  driver.freed.push_back(b);
  freed_bytes += b.size + GAP;
  while (freed_bytes > QUARANTINE) leave_quarantine();
}

void forget_freed() {
  while (!driver.freed.empty()) leave_quarantine();
  driver.broken.clear();
}

}  // namespace hostcuda
