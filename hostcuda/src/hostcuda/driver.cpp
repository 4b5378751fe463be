// The driver's start, errors and devices.
#include <dlfcn.h>
#include <pthread.h>

#include "api.h"

Driver hostcuda::driver;

// ---- start, versions, errors --------------------------------------------------------------------

// CUDA does not survive a fork. Another thread may have held the lock, which is not in the child.
static void end_in_fork() {
  driver.is_started = false, driver.is_forked = true;
  new (&driver.lock) std::recursive_timed_mutex;
}

API cuInit(unsigned flags) {
  Lock lock;
  CHECK(!flags, CUDA_ERROR_INVALID_VALUE);
  CHECK(!driver.is_forked, CUDA_ERROR_NOT_INITIALIZED);
  CHECK(driver.device_count, CUDA_ERROR_NO_DEVICE);
  if (!driver.is_started) pthread_atfork(nullptr, nullptr, end_in_fork);
  driver.is_started = true;
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
    E(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    E(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
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

API cuDeviceGetCount(int *count) { ENTER; return *count = driver.device_count, CUDA_SUCCESS; }
API cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER_DEVICE(ordinal);
  *device = ordinal;
  return CUDA_SUCCESS;
}
API cuDeviceGetName(char *name, int size, CUdevice device) {
  ENTER_DEVICE(device);
  snprintf(name, size, "host memory (no GPU)");
  return CUDA_SUCCESS;
}
API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  ENTER_DEVICE(device);
  return *uuid = {{char(device + 1)}}, CUDA_SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER_DEVICE(device);
  return *bytes = driver.device_bytes, CUDA_SUCCESS;
}
API cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER_DEVICE(device);
  return *major = 9, *minor = 0, CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  ENTER_DEVICE(device);
  // The answers of an NVIDIA H100, by the attributes' numbers. 0: a number that is not here, the PCI device,
  // and what this driver does not do (launches on several devices, virtual memory).
  static const int h100[] = {
      0, 1024, 1024, 1024, 64, 2147483647, 65535, 65535, 49152, 65536, 32, 2147483647, 65536, 1980000,
      512, 1, 132, 0, 0, 1, 0, 131072, 131072, 65536, 16384, 16384, 16384, 32768, 32768, 2048, 512, 1,
      1, 0, 0, 0, 2619000, 5120, 52428800, 2048, 3, 1, 32768, 2048, 1, 32768, 32768, 8192, 8192, 32768,
      0, 32, 32768, 32768, 2046, 32768, 131072, 65536, 16384, 16384, 16384, 32768, 2048, 32768, 32768,
      2048, 32768, 32768, 2046, 268435456, 131072, 65000, 2097120, 32768, 32768, 9, 0, 32768, 1, 1, 1,
      233472, 65536, 1, 0, 0, 0, 2, 0, 1, 1, 1, 0, 0, 0, 1, 0, 232448, 0, 1, 0, 0, 0, 0, 0, 0, 32, 0,
      32768000, 134217728, 0, 1024};
#define A(name) CU_DEVICE_ATTRIBUTE_##name
  static const std::map<int, int> others = {
      {A(MULTIPROCESSOR_COUNT), MULTIPROCESSORS},  // few: libraries size their grids by it
      {A(MEMORY_POOLS_SUPPORTED), 1},
      {A(READ_ONLY_HOST_REGISTER_SUPPORTED), 1},
      {A(UNIFIED_FUNCTION_POINTERS), 1},
      {A(MEM_SYNC_DOMAIN_COUNT), 4},
      {A(NUMA_ID), -1},
  };
#undef A
  CHECK(attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE);
  auto it = others.find(attribute);
  *value = it != others.end() ? it->second : size_t(attribute) < std::size(h100) ? h100[attribute] : 0;
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = device + 1;
  return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
  ENTER_DEVICE(device);
  snprintf(text, size, "0000:%02X:00.0", device + 1);
  return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
  ENTER;
  unsigned domain, bus;
  CHECK(sscanf(text, "%x:%x:", &domain, &bus) == 2, CUDA_ERROR_INVALID_VALUE);
  CHECK(!domain && valid_device(int(bus) - 1), CUDA_ERROR_INVALID_DEVICE);
  *device = bus - 1;
  return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *yes, CUdevice device, CUdevice peer) {
  ENTER_DEVICE(device);
  CHECK(valid_device(peer), CUDA_ERROR_INVALID_DEVICE);
  *yes = device != peer;
  return CUDA_SUCCESS;
}
