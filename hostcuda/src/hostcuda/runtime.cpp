// CuPy's side. CuPy links the CUDA runtime statically, but its modules bind one another's C
// functions by name and signature when they are imported (Cython's `__pyx_capi__`). Each ENTRY
// below stands in for one function of `cupy_backends.cuda.api.runtime`, over the driver of this
// folder; _cupy.py puts them in place and refuses a CuPy whose names or signatures differ.
// Written for CuPy 13.6 and 14; _cupy.py names what only the latter has.
#include "runtime.h"

namespace {
PyObject *runtime_error, *pointer_attributes, *device_properties;  // from __init__.py
thread_local int thread_device = 0;  // cudaSetDevice's, until a context is current

}  // namespace

Entry hostcuda::table[128];
int hostcuda::entries = 0;

// Driver and runtime share their error numbers, so one is raised as the other.
bool hostcuda::failed(CUresult status) {
  if (status) PyErr_SetObject(runtime_error, PyLong_FromLong(status));
  return status;
}

PyObject *hostcuda::none(CUresult status) {
  if (failed(status)) return nullptr;
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

namespace {

// The runtime holds one reference to each primary context it has used.
CUresult primary(int device, CUcontext *ctx) {
  static bool held[64];
  unsigned flags;
  int active;
  if (CUresult e = cuInit(0)) return e;
  if (CUresult e = cuDevicePrimaryCtxGetState(device, &flags, &active)) return e;
  if (CUresult e = cuDevicePrimaryCtxRetain(ctx, device)) return e;
  bool first = !held[device] || !active;
  held[device] = true;
  return first ? CUDA_SUCCESS : cuDevicePrimaryCtxRelease_v2(device);
}

}  // namespace

// The runtime works in whatever context is current, and makes the primary one current if none is.
CUresult hostcuda::ready() {
  CUcontext ctx = nullptr;
  if (CUresult e = cuInit(0)) return e;
  if (CUresult e = cuCtxGetCurrent(&ctx)) return e;
  if (ctx) return CUDA_SUCCESS;
  if (CUresult e = primary(thread_device, &ctx)) return e;
  return cuCtxSetCurrent(ctx);
}

namespace {

CUresult enable_peer(int device) {
  CUcontext peer;
  if (CUresult e = ready()) return e;
  if (CUresult e = primary(device, &peer)) return e;
  return cuCtxEnablePeerAccess(peer, 0);
}

}  // namespace

// devices
NUMBER(int, getDeviceCount, SKIP, (int), -1, int value, cuInit(0) ?: cuDeviceGetCount(&value))
NUMBER(int, driverGetVersion, SKIP, (int), -1, int value, cuDriverGetVersion(&value))
NUMBER(int, deviceGetAttribute, "int, int, " SKIP, (int attribute, int device, int), -1, int value,
       cuInit(0) ?: cuDeviceGetAttribute(&value, CUdevice_attribute(attribute), device))
NUMBER(int, deviceCanAccessPeer, "int, int, " SKIP, (int device, int peer, int), -1, int value,
       cuInit(0) ?: cuDeviceCanAccessPeer(&value, device, peer))
MAKE(size_t, deviceGetLimit, cuCtxGetLimit, int)
PASS(deviceSetLimit, cuCtxSetLimit, int, size_t)
OBJECT(deviceSynchronize, SKIP, (int), READY(cuCtxSynchronize()))
PASS(deviceEnablePeerAccess, enable_peer, int)
OBJECT(getDeviceProperties, "int, " SKIP, (int device, int),
       PyObject_CallFunction(device_properties, "i", device))
OBJECT(_ensure_context, "void", (), none(ready()))
OBJECT(profilerStart, SKIP, (int), none(CUDA_SUCCESS))
OBJECT(profilerStop, SKIP, (int), none(CUDA_SUCCESS))

ENTRY(int, getDevice, " (" SKIP ")", (int)) {
  CUcontext ctx = nullptr;
  CUdevice device = thread_device;
  return failed(cuInit(0) ?: cuCtxGetCurrent(&ctx) ?: ctx ? cuCtxGetDevice(&device) : CUDA_SUCCESS)
             ? -1
             : device;
}
ENTRY(PyObject *, setDevice, "(int, " SKIP ")", (int device, int)) {
  CUcontext ctx;
  CUresult status = cuInit(0) ?: primary(device, &ctx) ?: cuCtxSetCurrent(ctx);
  if (!status) thread_device = device;
  return none(status);
}
ENTRY(PyObject *, _deviceEnsurePeerAccess, "(int, " SKIP ")", (int device, int)) {
  CUresult status = enable_peer(device);
  return none(status == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : status);
}
ENTRY(int, deviceGetByPCIBusId, " (PyObject *, " SKIP ")", (PyObject *text, int)) {
  int device;
  return failed(cuInit(0) ?: cuDeviceGetByPCIBusId(&device, PyUnicode_AsUTF8(text))) ? -1 : device;
}
ENTRY(PyObject *, deviceGetPCIBusId, "(int, " SKIP ")", (int device, int)) {
  char text[16];
  if (failed(cuInit(0) ?: cuDeviceGetPCIBusId(text, sizeof text, device))) return nullptr;
  return PyUnicode_FromString(text);
}

// memory
NUMBER(intptr_t, malloc, "size_t, " SKIP, (size_t size, int), 0, CUdeviceptr value,
       ready()
           ?: size ? cuMemAlloc_v2(&value, size)
                   : CUDA_SUCCESS)
MAKE(intptr_t, mallocAsync, cuMemAllocAsync, size_t, intptr_t)
NUMBER(intptr_t, mallocManaged, "size_t, " SKIP OPTIONAL(mallocManaged),
       (size_t size, int, void *), 0, CUdeviceptr value,
       ready() ?: cuMemAllocManaged(&value, size, CU_MEM_ATTACH_GLOBAL))
MAKE(intptr_t, hostAlloc, cuMemHostAlloc, size_t, unsigned int)
PASS(hostRegister, cuMemHostRegister_v2, intptr_t, size_t, unsigned int)
PASS(hostUnregister, cuMemHostUnregister, intptr_t)
PASS(free, cuMemFree_v2, intptr_t)
PASS(freeHost, cuMemFreeHost, intptr_t)
PASS(freeAsync, cuMemFreeAsync, intptr_t, intptr_t)
MAKE(intptr_t, mallocFromPoolAsync, cuMemAllocFromPoolAsync, size_t, intptr_t, intptr_t)
MAKE(intptr_t, deviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, int)
MAKE(intptr_t, deviceGetMemPool, cuDeviceGetMemPool, int)
PASS(deviceSetMemPool, cuDeviceSetMemPool, int, intptr_t)
struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_MemPoolProps {
  void *head[2];  // of a Python object
  int allocation, handles, location, device;
};
static CUresult make_pool(const __pyx_obj_13cupy_backends_4cuda_3api_7runtime_MemPoolProps &given, CUmemoryPool *out) {
  CUmemPoolProps p = {};
  p.allocType = CUmemAllocationType(given.allocation), p.handleTypes = CUmemAllocationHandleType(given.handles);
  p.location.type = CUmemLocationType(given.location), p.location.id = given.device;
  return ready() ?: cuMemPoolCreate(out, &p);
}
NUMBER(intptr_t, memPoolCreate, "struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_MemPoolProps *, " SKIP,
       (__pyx_obj_13cupy_backends_4cuda_3api_7runtime_MemPoolProps *given, int), 0, CUmemoryPool value,
       make_pool(*given, &value))
PASS(memPoolDestroy, cuMemPoolDestroy, intptr_t)
PASS(memPoolTrimTo, cuMemPoolTrimTo, intptr_t, size_t)
ENTRY(PyObject *, memPoolGetAttribute, "(intptr_t, int, " SKIP ")", (intptr_t pool, int attribute, int)) {
  unsigned long long value = 0;  // of an int, the low bytes
  if (failed(ready() ?: cuMemPoolGetAttribute(handle<CUmemoryPool>(pool), CUmemPool_attribute(attribute), &value)))
    return nullptr;
  return PyLong_FromUnsignedLongLong(value);
}
ENTRY(PyObject *, memPoolSetAttribute, "(intptr_t, int, PyObject *, " SKIP ")",
      (intptr_t pool, int attribute, PyObject *given, int)) {
  PyObject *whole = PyNumber_Long(given);  // CuPy gives floats, too
  if (!whole) return nullptr;
  unsigned long long value = PyLong_AsUnsignedLongLong(whole);
  Py_DecRef(whole);
  if (PyErr_Occurred()) return nullptr;
  return READY(cuMemPoolSetAttribute(handle<CUmemoryPool>(pool), CUmemPool_attribute(attribute), &value));
}
OBJECT(memcpy, "intptr_t, intptr_t, size_t, int, " SKIP,
       (intptr_t to, intptr_t from, size_t n, int, int), READY(cuMemcpy(to, from, n)))
OBJECT(memcpyAsync, "intptr_t, intptr_t, size_t, int, intptr_t, " SKIP,
       (intptr_t to, intptr_t from, size_t n, int, intptr_t stream, int),
       READY(cuMemcpyAsync(to, from, n, handle<CUstream>(stream))))
OBJECT(memcpyPeer, "intptr_t, int, intptr_t, int, size_t, " SKIP,
       (intptr_t to, int, intptr_t from, int, size_t n, int), READY(cuMemcpy(to, from, n)))
OBJECT(memcpyPeerAsync, "intptr_t, int, intptr_t, int, size_t, intptr_t, " SKIP,
       (intptr_t to, int, intptr_t from, int, size_t n, intptr_t stream, int),
       READY(cuMemcpyAsync(to, from, n, handle<CUstream>(stream))))
PASS(memset, cuMemsetD8_v2, intptr_t, int, size_t)
PASS(memsetAsync, cuMemsetD8Async, intptr_t, int, size_t, intptr_t)

ENTRY(PyObject *, memGetInfo, "(" SKIP ")", (int)) {
  size_t available, total;
  if (failed(ready() ?: cuMemGetInfo_v2(&available, &total))) return nullptr;
  return Py_BuildValue("(nn)", available, total);
}
static CUresult describe(intptr_t p, int *type, int *device, void **on_device, void **on_host) {
  unsigned memory = 0;
  bool managed = false;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                 CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void *answers[] = {&memory, &managed, device, on_device, on_host};
  CUresult status = ready() ?: cuPointerGetAttributes(5, asked, answers, p);
  *type = managed ? 3 : memory == CU_MEMORYTYPE_DEVICE ? 2 : memory;  // cudaMemoryType
  if (!*type) *on_host = (void *)p;
  return status;
}
ENTRY(int, pointerGetMemoryType, " (intptr_t, " SKIP ")", (intptr_t p, int)) {
  int type, device;
  void *on_device, *on_host;
  return failed(describe(p, &type, &device, &on_device, &on_host)) ? -1 : type;
}
struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_PointerAttributes;
ENTRY(struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_PointerAttributes *,
      pointerGetAttributes, "(intptr_t, " SKIP ")", (intptr_t p, int)) {
  int type, device;
  void *on_device, *on_host;
  if (failed(describe(p, &type, &device, &on_device, &on_host))) return nullptr;
  return (struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_PointerAttributes *)
      PyObject_CallFunction(pointer_attributes, "inni", device, on_device, on_host, type);
}

// streams and events
NUMBER(intptr_t, streamCreate, SKIP, (int), 0, CUstream value, ready() ?: cuStreamCreate(&value, 0))
MAKE(intptr_t, streamCreateWithFlags, cuStreamCreate, unsigned int)
MAKE(intptr_t, streamCreateWithPriority, cuStreamCreateWithPriority, unsigned int, int)
NUMBER(unsigned int, streamGetFlags, "intptr_t, " SKIP, (intptr_t s, int), 0, unsigned value,
       ready() ?: cuStreamGetFlags(handle<CUstream>(s), &value))
NUMBER(int, streamGetPriority, "intptr_t, " SKIP, (intptr_t s, int), 0, int value,
       ready() ?: cuStreamGetPriority(handle<CUstream>(s), &value))
PASS(streamDestroy, cuStreamDestroy_v2, intptr_t)
PASS(streamSynchronize, cuStreamSynchronize, intptr_t)
OBJECT(streamQuery, "intptr_t, " SKIP, (intptr_t s, int),
       PyLong_FromLong(ready() ?: cuStreamQuery(handle<CUstream>(s))))
OBJECT(streamWaitEvent, "intptr_t, intptr_t, " SKIP OPTIONAL(streamWaitEvent),
       (intptr_t s, intptr_t event, int, void *),
       READY(cuStreamWaitEvent(handle<CUstream>(s), handle<CUevent>(event), 0)))
OBJECT(launchHostFunc, "intptr_t, PyObject *, intptr_t, " SKIP,
       (intptr_t s, PyObject *function, intptr_t argument, int),
       READY(launch_python(handle<CUstream>(s), function, argument)))
OBJECT(_launchHostFuncUnmanaged, "intptr_t, PyObject *, " SKIP, (intptr_t s, PyObject *pair, int),
       READY(launch_python(handle<CUstream>(s), pair)))
OBJECT(streamAddCallback, "intptr_t, PyObject *, intptr_t, " SKIP OPTIONAL(streamAddCallback),
       (intptr_t s, PyObject *function, intptr_t argument, int, void *),
       READY(add_python(handle<CUstream>(s), function, argument)))
NUMBER(intptr_t, eventCreate, SKIP, (int), 0, CUevent value, ready() ?: cuEventCreate(&value, 0))
MAKE(intptr_t, eventCreateWithFlags, cuEventCreate, unsigned int)
PASS(eventDestroy, cuEventDestroy_v2, intptr_t)
PASS(eventRecord, cuEventRecord, intptr_t, intptr_t)
PASS(eventSynchronize, cuEventSynchronize, intptr_t)
OBJECT(eventQuery, "intptr_t, " SKIP, (intptr_t e, int),
       PyLong_FromLong(ready() ?: cuEventQuery(handle<CUevent>(e))))
MAKE(float, eventElapsedTime, cuEventElapsedTime, intptr_t, intptr_t)

// captures
struct capture_options {
  int given, mode;
};
OBJECT(streamBeginCapture, "intptr_t, " SKIP OPTIONAL(streamBeginCapture),
       (intptr_t s, int, capture_options *options),
       READY(cuStreamBeginCapture_v2(handle<CUstream>(s),
                                     options && options->given
                                         ? CUstreamCaptureMode(options->mode)
                                         : CU_STREAM_CAPTURE_MODE_RELAXED)))
NUMBER(intptr_t, streamEndCapture, "intptr_t, " SKIP, (intptr_t s, int), 0, CUgraph value,
       ready() ?: cuStreamEndCapture(handle<CUstream>(s), &value))
ENTRY(int, streamIsCapturing, " (intptr_t, " SKIP ")", (intptr_t s, int)) {
  CUstreamCaptureStatus status;
  if (failed(ready() ?: cuStreamIsCapturing(handle<CUstream>(s), &status))) return -1;
  if (status != CU_STREAM_CAPTURE_STATUS_INVALIDATED) return status;
  PyErr_SetString(PyExc_RuntimeError, "an error has invalidated the capture sequence");
  return -1;
}
NUMBER(intptr_t, graphInstantiate, "intptr_t, " SKIP, (intptr_t graph, int), 0, CUgraphExec value,
       ready() ?: cuGraphInstantiateWithFlags(&value, handle<CUgraph>(graph), 0))
PASS(graphLaunch, cuGraphLaunch, intptr_t, intptr_t)
PASS(graphUpload, cuGraphUpload, intptr_t, intptr_t)
PASS(graphDestroy, cuGraphDestroy, intptr_t)
PASS(graphExecDestroy, cuGraphExecDestroy, intptr_t)

// A Python function alone.
EXPORT PyObject *hostcuda_disable_peer(int device) {
  CUcontext peer;
  return none(ready() ?: primary(device, &peer) ?: cuCtxDisablePeerAccess(peer));
}

// In place of everything else that answers an object, or a handle.
EXPORT PyObject *hostcuda_refuse_object() { return none(CUDA_ERROR_NOT_SUPPORTED); }
EXPORT intptr_t hostcuda_refuse_handle() { return failed(CUDA_ERROR_NOT_SUPPORTED), 0; }

EXPORT const Entry *hostcuda_runtime(PyObject *error, PyObject *attributes, PyObject *properties) {
  runtime_error = error, pointer_attributes = attributes, device_properties = properties;
  for (PyObject *o : {error, attributes, properties}) Py_IncRef(o);
  return table;  // ends with a null name
}
