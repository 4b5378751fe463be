// The entry points of the driver. What they mean is in core.h; here is only who asks for what.
#include "textures.h"

// ---- start, versions, errors --------------------------------------------------------------------

API cuInit(unsigned flags) {
  std::lock_guard<std::recursive_mutex> lock(big_lock);
  CHECK(!flags, CUDA_ERROR_INVALID_VALUE);
  CHECK(!is_forked, CUDA_ERROR_NOT_INITIALIZED);
  CHECK(device_count, CUDA_ERROR_NO_DEVICE);
  if (!is_started) pthread_atfork(nullptr, nullptr, [] { is_started = false, is_forked = true; });
  is_started = true;
  return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

namespace {
struct ErrorText {
  CUresult code;
  const char *name, *text;
};
const ErrorText errors[] = {
#define E(name, text) {name, #name, text}
    E(CUDA_SUCCESS, "no error"),
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    E(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    E(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    E(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    E(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    E(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the memory is registered already"),
    E(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to registered memory"),
    E(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    E(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    E(CUDA_ERROR_NOT_READY, "device not ready"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
      "operation failed due to a previous error during capture"),
    E(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture "
                                       "sequences"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
      "dependency created on uncaptured work in another stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
      "operation would make the legacy stream depend on a capturing blocking stream"),
    E(CUDA_ERROR_CAPTURED_EVENT,
      "operation not permitted on an event last recorded in a capturing stream"),
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    E(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    E(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    E(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    E(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    E(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    E(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef E
};
const ErrorText *find_error(CUresult code) {
  for (auto &e : errors)
    if (e.code == code) return &e;
  return nullptr;
}
}  // namespace

API cuGetErrorName(CUresult code, const char **out) {
  auto *e = find_error(code);
  *out = e ? e->name : "CUDA_ERROR_UNKNOWN";  // never null: callers print it unseen
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult code, const char **out) {
  auto *e = find_error(code);
  *out = e ? e->text : "unrecognized error code";
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGetProcAddress_v2(const char *name, void **out, int, cuuint64_t,
                        CUdriverProcAddressQueryResult *result) {
  static void *self = nullptr;
  Dl_info info;
  if (!self && dladdr((void *)cuInit, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *out = dlsym(self, (std::string(name) + "_v2").c_str());
  if (!*out) *out = dlsym(self, name);
  if (result) *result = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, nullptr);
}

API cuGetExportTable(const void **table, const CUuuid *) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

// ---- devices ------------------------------------------------------------------------------------

CALL(cuDeviceGetCount, (int *count), { *count = device_count; })
CALL(cuDeviceGet, (CUdevice *device, int ordinal), {
  CHECK(valid_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  *device = ordinal;
})
CALL_ON_DEVICE(cuDeviceGetName, (char *name, int size, CUdevice device),
               { snprintf(name, size, "host memory (no GPU)"); })
CALL_ON_DEVICE(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device), { *bytes = device_bytes; })
CALL_ON_DEVICE(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device),
               { *major = 9, *minor = 0; })

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  ENTER;
  CHECK(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
#define A(name) CU_DEVICE_ATTRIBUTE_##name
  static const std::map<int, int> known = {
      {A(COMPUTE_CAPABILITY_MAJOR), 9},
      {A(COMPUTE_CAPABILITY_MINOR), 0},
      {A(MAX_THREADS_PER_BLOCK), 1024},
      {A(MAX_BLOCK_DIM_X), 1024},
      {A(MAX_BLOCK_DIM_Y), 1024},
      {A(MAX_BLOCK_DIM_Z), 64},
      {A(MAX_GRID_DIM_X), 2147483647},
      {A(MAX_GRID_DIM_Y), 65535},
      {A(MAX_GRID_DIM_Z), 65535},
      {A(MAX_SHARED_MEMORY_PER_BLOCK), 49152},
      {A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), MOST_SHARED},
      {A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR), MOST_SHARED + 1024},
      {A(TOTAL_CONSTANT_MEMORY), 65536},
      {A(WARP_SIZE), 32},
      {A(MAX_PITCH), 2147483647},
      {A(MAX_REGISTERS_PER_BLOCK), 65536},
      {A(MAX_REGISTERS_PER_MULTIPROCESSOR), 65536},
      {A(MAX_THREADS_PER_MULTIPROCESSOR), 2048},
      {A(COOPERATIVE_LAUNCH), 1},
      {A(MULTIPROCESSOR_COUNT), MULTIPROCESSORS},  // few: libraries size their grids by it
      {A(CLOCK_RATE), 1000000},
      {A(MEMORY_CLOCK_RATE), 1000000},
      {A(GLOBAL_MEMORY_BUS_WIDTH), 64},
      {A(TEXTURE_ALIGNMENT), int(ALIGNMENT)},
      {A(TEXTURE_PITCH_ALIGNMENT), int(TEXTURE_PITCH)},
      {A(ASYNC_ENGINE_COUNT), 1},
      {A(CONCURRENT_KERNELS), 1},
      {A(CAN_MAP_HOST_MEMORY), 1},
      {A(UNIFIED_ADDRESSING), 1},
      {A(MANAGED_MEMORY), 1},
      {A(MEMORY_POOLS_SUPPORTED), 1},
      {A(STREAM_PRIORITIES_SUPPORTED), 1},
      {A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), 1},
  };
#undef A
  auto it = known.find(attribute);
  *value = it != known.end() ? it->second : 0;
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = device + 1;
  return CUDA_SUCCESS;
}

CALL_ON_DEVICE(cuDeviceGetPCIBusId, (char *text, int size, CUdevice device),
               { snprintf(text, size, "0000:%02X:00.0", device + 1); })

CALL(cuDeviceGetByPCIBusId, (CUdevice *device, const char *text), {
  unsigned domain, bus;
  CHECK(sscanf(text, "%x:%x:", &domain, &bus) == 2, CUDA_ERROR_INVALID_VALUE);
  CHECK(!domain && valid_device(int(bus) - 1), CUDA_ERROR_INVALID_DEVICE);
  *device = bus - 1;
})

CALL(cuDeviceCanAccessPeer, (int *yes, CUdevice device, CUdevice peer), {
  CHECK(valid_device(device) && valid_device(peer), CUDA_ERROR_INVALID_DEVICE);
  *yes = device != peer;
})

CALL_ABOUT_CONTEXT(cuCtxEnablePeerAccess, (CUcontext peer, unsigned), {
  Context *other = lookup(contexts, peer);
  CHECK(other && other->references && other->device != ctx->device, CUDA_ERROR_INVALID_CONTEXT);
  bool known = std::count(ctx->peers.begin(), ctx->peers.end(), peer);
  CHECK(!known, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  ctx->peers.push_back(peer);
})

CALL_ABOUT_CONTEXT(cuCtxDisablePeerAccess, (CUcontext peer), {
  auto it = std::find(ctx->peers.begin(), ctx->peers.end(), peer);
  CHECK(it != ctx->peers.end(), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  ctx->peers.erase(it);
})

// ---- contexts -----------------------------------------------------------------------------------

CALL_ON_DEVICE(cuDevicePrimaryCtxRetain, (CUcontext *out, CUdevice device), {
  Context *ctx = primary_context(device);
  if (!ctx->references++) open_context(ctx);
  *out = ctx->handle;
})

CALL_ON_DEVICE(cuDevicePrimaryCtxRelease_v2, (CUdevice device), {
  Context *ctx = primary_context(device);
  CHECK(ctx->references, CUDA_ERROR_INVALID_CONTEXT);
  if (ctx->references == 1) close_context(ctx);
  else --ctx->references;
})

CALL_ON_DEVICE(cuDevicePrimaryCtxReset_v2, (CUdevice device), {
  Context *ctx = primary_context(device);
  if (ctx->references) close_context(ctx);
})

CALL_ON_DEVICE(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active), {
  Context *ctx = primary_context(device);
  *flags = ctx->flags, *active = ctx->references > 0;
})

CALL_ON_DEVICE(cuCtxCreate_v2, (CUcontext *out, unsigned flags, CUdevice device), {
  Context *ctx = new_context(device, flags);
  ctx->references = 1;
  open_context(ctx);
  context_stack.push_back(ctx->handle);
  *out = ctx->handle;
})

API cuCtxCreate_v4(CUcontext *out, struct CUctxCreateParams_st *, unsigned flags, CUdevice device) {
  return cuCtxCreate_v2(out, flags, device);
}

CALL(cuCtxDestroy_v2, (CUcontext handle), {
  Context *ctx = lookup(contexts, handle);
  CHECK(ctx && ctx->references && !ctx->primary, CUDA_ERROR_INVALID_CONTEXT);
  close_context(ctx);
  if (!context_stack.empty() && context_stack.back() == handle) context_stack.pop_back();
})

CALL_ABOUT_CONTEXT(cuCtxAttach, (CUcontext *out, unsigned flags), {
  CHECK(!flags, CUDA_ERROR_INVALID_VALUE);
  ++ctx->references;
  *out = ctx->handle;
})

API cuCtxDetach(CUcontext handle) {  // PyCUDA ends primary contexts too with it
  ENTER_CONTEXT;
  CHECK(ctx->handle == handle, CUDA_ERROR_INVALID_CONTEXT);
  if (ctx->references > 1) return --ctx->references, CUDA_SUCCESS;
  close_context(ctx);
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

CALL(cuCtxPushCurrent_v2, (CUcontext handle), {
  Context *ctx = lookup(contexts, handle);
  CHECK(ctx && ctx->references, CUDA_ERROR_INVALID_CONTEXT);
  context_stack.push_back(handle);
})

CALL(cuCtxPopCurrent_v2, (CUcontext *out), {
  CHECK(!context_stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
  if (out) *out = context_stack.back();
  context_stack.pop_back();
})

CALL(cuCtxSetCurrent, (CUcontext handle), {
  Context *ctx = lookup(contexts, handle);
  CHECK(!handle || (ctx && ctx->references), CUDA_ERROR_INVALID_CONTEXT);
  if (!context_stack.empty()) context_stack.pop_back();
  if (handle) context_stack.push_back(handle);
})

// Without the lock: it never waits for another thread's call.
API cuCtxGetCurrent(CUcontext *out) {
  if (!is_started) return CUDA_ERROR_NOT_INITIALIZED;
  *out = context_stack.empty() ? nullptr : context_stack.back();
  return CUDA_SUCCESS;
}
CALL_ABOUT_CONTEXT(cuCtxGetDevice, (CUdevice *device), { *device = ctx->device; })
CALL_ABOUT_CONTEXT(cuCtxGetFlags, (unsigned *flags), { *flags = ctx->flags; })
CALL(cuCtxGetApiVersion, (CUcontext, unsigned *version), { *version = 3020; })
CALL_IN_CONTEXT(cuCtxSynchronize, (), {
  for (auto &stream : ctx->streams) TRY(may_ask(*stream));
  settle_context(ctx);
})
CALL_ABOUT_CONTEXT(cuCtxGetLimit, (size_t *value, CUlimit), { *value = 8 << 20; })
CALL_ABOUT_CONTEXT(cuCtxSetLimit, (CUlimit, size_t), {})
CALL_ABOUT_CONTEXT(cuCtxGetCacheConfig, (CUfunc_cache * value),
                   { *value = CU_FUNC_CACHE_PREFER_NONE; })
CALL_ABOUT_CONTEXT(cuCtxSetCacheConfig, (CUfunc_cache), {})
CALL_ABOUT_CONTEXT(cuCtxGetStreamPriorityRange, (int *least, int *greatest),
                   { *least = 0, *greatest = -5; })
