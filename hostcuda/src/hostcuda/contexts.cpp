// Contexts: one is current for each thread, on top of its stack.
#include "api.h"

namespace {

thread_local std::vector<CUcontext> context_stack;

Context *new_context(CUdevice device, unsigned flags) {
  CUcontext handle = new_handle<CUcontext>();
  Context &ctx = driver.contexts[handle];
  ctx.handle = handle, ctx.device = device, ctx.flags = flags;
  return &ctx;
}

void open_context(Context *ctx) {
  ctx->legacy = new_stream(ctx, CU_STREAM_DEFAULT, nullptr);
  ctx->legacy->legacy = true;
  ctx->legacy_events = new_stream(ctx, CU_STREAM_DEFAULT, nullptr);
  ctx->legacy_events->of_events = true;
}

void close_context(Context *ctx) {  // everything that belongs to it goes with it
  settle_context(ctx);
  std::vector<Block *> mine;
  for (auto &item : driver.blocks)
    if (item.second.ctx == ctx) mine.push_back(&item.second);
  for (Block *b : mine) release(b);
  for (auto &s : ctx->streams) s->destroyed = true, driver.streams.erase(s->handle);
  for (auto it = driver.events.begin(); it != driver.events.end();)
    it = it->second.ctx == ctx ? driver.events.erase(it) : std::next(it);
  ctx->streams.clear();
  ctx->peers.clear();
  ctx->legacy = ctx->legacy_events = nullptr;
  ctx->references = 0;
}

Context *primary_context(CUdevice device) {
  for (auto &[handle, ctx] : driver.contexts)
    if (ctx.primary && ctx.device == device) return &ctx;
  Context *ctx = new_context(device, 0);
  ctx->primary = true;
  return ctx;
}

Context *living(CUcontext handle) {
  Context *ctx = lookup(driver.contexts, handle);
  return ctx && ctx->references ? ctx : nullptr;
}

}  // namespace

Context *hostcuda::current() {
  return context_stack.empty() ? nullptr : living(context_stack.back());
}

API cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  ENTER_DEVICE(device);
  Context *ctx = primary_context(device);
  if (!ctx->references++) open_context(ctx);
  *out = ctx->handle;
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER_DEVICE(device);
  Context *ctx = primary_context(device);
  CHECK(ctx->references, CUDA_ERROR_INVALID_CONTEXT);
  if (ctx->references == 1) close_context(ctx);
  else --ctx->references;
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxReset_v2(CUdevice device) {
  ENTER_DEVICE(device);
  Context *ctx = primary_context(device);
  if (ctx->references) close_context(ctx);
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  ENTER_DEVICE(device);
  Context *ctx = primary_context(device);
  *flags = ctx->flags, *active = ctx->references > 0;
  return CUDA_SUCCESS;
}

API cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
  ENTER_DEVICE(device);
  Context *ctx = new_context(device, flags);
  ctx->references = 1;
  open_context(ctx);
  context_stack.push_back(ctx->handle);
  *out = ctx->handle;
  return CUDA_SUCCESS;
}

API cuCtxCreate_v4(CUcontext *out, struct CUctxCreateParams_st *, unsigned flags, CUdevice device) {
  return cuCtxCreate_v2(out, flags, device);
}

API cuCtxDestroy_v2(CUcontext handle) {
  ENTER;
  Context *ctx = living(handle);
  CHECK(ctx && !ctx->primary, CUDA_ERROR_INVALID_CONTEXT);
  close_context(ctx);
  if (!context_stack.empty() && context_stack.back() == handle) context_stack.pop_back();
  return CUDA_SUCCESS;
}

API cuCtxAttach(CUcontext *out, unsigned flags) {
  ENTER_CONTEXT;
  CHECK(!flags, CUDA_ERROR_INVALID_VALUE);
  ++ctx->references;
  *out = ctx->handle;
  return CUDA_SUCCESS;
}

API cuCtxDetach(CUcontext handle) {  // PyCUDA ends primary contexts too with it
  ENTER_CONTEXT;
  CHECK(ctx->handle == handle, CUDA_ERROR_INVALID_CONTEXT);
  if (ctx->references > 1) return --ctx->references, CUDA_SUCCESS;
  close_context(ctx);
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext handle) {
  ENTER;
  CHECK(living(handle), CUDA_ERROR_INVALID_CONTEXT);
  context_stack.push_back(handle);
  return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *out) {
  ENTER;
  CHECK(!context_stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
  if (out) *out = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext handle) {
  ENTER;
  CHECK(!handle || living(handle), CUDA_ERROR_INVALID_CONTEXT);
  if (!context_stack.empty()) context_stack.pop_back();
  if (handle) context_stack.push_back(handle);
  return CUDA_SUCCESS;
}

// Without the lock: it never waits for another thread's call.
API cuCtxGetCurrent(CUcontext *out) {
  if (!driver.is_started) return CUDA_ERROR_NOT_INITIALIZED;
  *out = context_stack.empty() ? nullptr : context_stack.back();
  return CUDA_SUCCESS;
}
API cuCtxGetDevice(CUdevice *device) { ENTER_CONTEXT; return *device = ctx->device, CUDA_SUCCESS; }
API cuCtxGetFlags(unsigned *flags) { ENTER_CONTEXT; return *flags = ctx->flags, CUDA_SUCCESS; }
API cuCtxGetApiVersion(CUcontext, unsigned *version) { ENTER; return *version = 3020, CUDA_SUCCESS; }
API cuCtxSynchronize() {
  ENTER_LIVING_CONTEXT;
  for (auto &stream : ctx->streams) TRY(may_ask(*stream));
  settle_context(ctx);
  return ctx->dead;
}
API cuCtxGetLimit(size_t *value, CUlimit limit) {
  ENTER_CONTEXT;
  CHECK(ctx->limits.count(limit), CUDA_ERROR_UNSUPPORTED_LIMIT);
  return *value = ctx->limits[limit], CUDA_SUCCESS;
}
API cuCtxSetLimit(CUlimit limit, size_t value) {
  ENTER_CONTEXT;
  CHECK(ctx->limits.count(limit), CUDA_ERROR_UNSUPPORTED_LIMIT);
  return ctx->limits[limit] = value, CUDA_SUCCESS;
}
API cuCtxGetCacheConfig(CUfunc_cache *value) {
  ENTER_CONTEXT;
  return *value = CU_FUNC_CACHE_PREFER_NONE, CUDA_SUCCESS;
}
API cuCtxSetCacheConfig(CUfunc_cache) { ENTER_CONTEXT; return CUDA_SUCCESS; }
API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER_CONTEXT;
  return *least = 0, *greatest = MOST_URGENT, CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
  ENTER_CONTEXT;
  Context *other = living(peer);
  CHECK(other && other->device != ctx->device, CUDA_ERROR_INVALID_CONTEXT);
  bool known = std::count(ctx->peers.begin(), ctx->peers.end(), peer);
  CHECK(!known, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  ctx->peers.push_back(peer);
  return CUDA_SUCCESS;
}

API cuCtxDisablePeerAccess(CUcontext peer) {
  ENTER_CONTEXT;
  auto it = std::find(ctx->peers.begin(), ctx->peers.end(), peer);
  CHECK(it != ctx->peers.end(), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  ctx->peers.erase(it);
  return CUDA_SUCCESS;
}
