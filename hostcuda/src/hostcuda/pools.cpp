// Memory in stream order: an allocation and a free are work on their stream, and pools count them.
#include "api.h"
#include "fibers.h"

namespace {

const size_t CHUNK = 32 << 20;  // what a pool reserves is a multiple of this

struct Pool {
  CUdevice device;
  bool is_default;
  int reuse[3] = {1, 1, 1};  // told only: blocks are never reused
  cuuint64_t threshold = 0, reserved = 0, most_reserved = 0, most_used = 0;
};
std::map<CUmemoryPool, Pool> pools;
std::map<CUdevice, CUmemoryPool> defaults, chosen;

CUmemoryPool default_of(CUdevice device) {
  CUmemoryPool &pool = defaults[device];
  if (!pool) pool = new_handle<CUmemoryPool>(), pools[pool] = {device, true};
  return pool;
}

CUmemoryPool pool_of(CUdevice device) {
  CUmemoryPool *pool = lookup(chosen, device);
  return pool ? *pool : default_of(device);
}

// Bytes of a pool's blocks; `used` are those that no call has freed, though the free may not have run.
struct Usage {
  cuuint64_t used = 0, held = 0;
  explicit Usage(CUmemoryPool pool) {
    for (auto &[start, b] : driver.blocks)
      if (b.pool == pool) held += b.size, used += b.is_leaving ? 0 : b.size;
  }
};

cuuint64_t in_chunks(cuuint64_t bytes) { return (bytes + CHUNK - 1) / CHUNK * CHUNK; }

void shrink(CUmemoryPool handle, Pool &pool, cuuint64_t kept) {
  if (kept < pool.reserved) pool.reserved = std::min(pool.reserved, in_chunks(std::max(kept, Usage(handle).held)));
}

CUresult may_change(const Stream &s, const char *what) {
  if (s.graph) tell(text("%s in a capture is not supported", what));
  CHECK(!s.graph, CUDA_ERROR_NOT_SUPPORTED);
  return may_queue(s);
}

CUresult allocate_in(CUmemoryPool handle, CUdeviceptr *out, size_t size, Stream &s) {
  Pool *pool = lookup(pools, handle);
  CHECK(pool && pool->device == s.ctx->device, CUDA_ERROR_INVALID_VALUE);
  TRY(may_change(s, "an allocation"));
  *out = 0;
  if (!size) return CUDA_SUCCESS;
  // What the stream has freed can be used again, without a wait of the host.
  if (size > driver.device_bytes - used_bytes(pool->device)) run(s, LATEST);
  TRY(allocate(s.ctx, size, Kind::device, 0, (void **)out));
  uintptr_t start = *out;
  Block &b = driver.blocks[start];
  b.pool = handle;
  Usage now(handle);
  pool->reserved = std::max(pool->reserved, in_chunks(now.held));
  pool->most_reserved = std::max(pool->most_reserved, pool->reserved);
  pool->most_used = std::max(pool->most_used, now.used);
  // The range counts as read: it holds nothing that was written.
  enqueue(s, {"an allocation of " + std::to_string(size) + " bytes", {{start, size}}, {}, [start, size, id = b.id] {
                Block *found = lookup(driver.blocks, start);
                if (found && found->id == id) memset((void *)start, FRESH_BYTE, size);
              }});
  return CUDA_SUCCESS;
}

}  // namespace

void hostcuda::queue_free(Block *b, Stream &s) {
  b->is_leaving = true;
  if (s.graph) return s.graph->dropped.push_back(b->start);
  enqueue(s, {"a free of " + std::to_string(b->size) + " bytes", {}, {{b->start, b->size}}, [start = b->start] {
    if (Block *found = lookup(driver.blocks, start)) release(found);
  }});
}

API cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream handle) {
  ENTER;
  STREAM(stream, handle);
  return allocate_in(pool_of(stream->ctx->device), out, size, *stream);
}

API cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream handle) {
  ENTER;
  STREAM(stream, handle);
  return allocate_in(pool, out, size, *stream);
}

API cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  ENTER;
  STREAM(stream, handle);
  TRY(may_change(*stream, "a free"));
  if (!address) return CUDA_SUCCESS;
  Block *b = lookup(driver.blocks, uintptr_t(address));
  CHECK(b && b->kind == Kind::device && !b->is_leaving, CUDA_ERROR_INVALID_VALUE);
  queue_free(b, *stream);
  return CUDA_SUCCESS;
}

// ---- pools --------------------------------------------------------------------------------------

API cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER_DEVICE(device);
  return *out = default_of(device), CUDA_SUCCESS;
}
API cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER_DEVICE(device);
  return *out = pool_of(device), CUDA_SUCCESS;
}
API cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  ENTER_DEVICE(device);
  Pool *pool = lookup(pools, handle);
  CHECK(pool && pool->device == device, CUDA_ERROR_INVALID_VALUE);
  return chosen[device] = handle, CUDA_SUCCESS;
}

API cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *p) {
  ENTER;
  CHECK(p->allocType == CU_MEM_ALLOCATION_TYPE_PINNED && p->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            valid_device(p->location.id), CUDA_ERROR_INVALID_VALUE);
  CHECK(p->handleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED);  // for other processes
  *out = new_handle<CUmemoryPool>();
  pools[*out] = {p->location.id, false};
  return CUDA_SUCCESS;
}
API cuMemPoolDestroy(CUmemoryPool handle) {
  ENTER;
  Pool *pool = lookup(pools, handle);
  CHECK(pool && !pool->is_default, CUDA_ERROR_INVALID_VALUE);
  if (pool_of(pool->device) == handle) chosen.erase(pool->device);
  pools.erase(handle);
  return CUDA_SUCCESS;
}
API cuMemPoolTrimTo(CUmemoryPool handle, size_t kept) {
  ENTER;
  Pool *pool = lookup(pools, handle);
  CHECK(pool, CUDA_ERROR_INVALID_VALUE);
  return shrink(handle, *pool, kept), CUDA_SUCCESS;
}

#define A(name) CU_MEMPOOL_ATTR_##name
API cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *out) {
  ENTER;
  Pool *pool = lookup(pools, handle);
  CHECK(pool, CUDA_ERROR_INVALID_VALUE);
  Usage now(handle);
  if (now.used == now.held) shrink(handle, *pool, pool->threshold);  // its frees have run
  auto answer = [&](auto value) { return memcpy(out, &value, sizeof value), CUDA_SUCCESS; };
  switch (attribute) {
    case A(REUSE_FOLLOW_EVENT_DEPENDENCIES):
    case A(REUSE_ALLOW_OPPORTUNISTIC):
    case A(REUSE_ALLOW_INTERNAL_DEPENDENCIES): return answer(pool->reuse[attribute - 1]);
    case A(RELEASE_THRESHOLD): return answer(pool->threshold);
    case A(RESERVED_MEM_CURRENT): return answer(pool->reserved);
    case A(RESERVED_MEM_HIGH): return answer(pool->most_reserved);
    case A(USED_MEM_CURRENT): return answer(now.used);
    case A(USED_MEM_HIGH): return answer(pool->most_used);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

API cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  ENTER;
  Pool *pool = lookup(pools, handle);
  CHECK(pool, CUDA_ERROR_INVALID_VALUE);
  switch (attribute) {
    case A(REUSE_FOLLOW_EVENT_DEPENDENCIES):
    case A(REUSE_ALLOW_OPPORTUNISTIC):
    case A(REUSE_ALLOW_INTERNAL_DEPENDENCIES): return pool->reuse[attribute - 1] = *(int *)value, CUDA_SUCCESS;
    case A(RELEASE_THRESHOLD): return pool->threshold = *(cuuint64_t *)value, CUDA_SUCCESS;
    case A(RESERVED_MEM_HIGH): return pool->most_reserved = pool->reserved, CUDA_SUCCESS;
    case A(USED_MEM_HIGH): return pool->most_used = Usage(handle).used, CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
#undef A
