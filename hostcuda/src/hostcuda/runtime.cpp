// CuPy's side. CuPy links the CUDA runtime statically, but its modules bind one another's C
// functions by name and signature when they are imported (Cython's `__pyx_capi__`). Each ENTRY
// below stands in for one function of `cupy_backends.cuda.api.runtime`, over the driver of this
// folder; _cupy.py puts them in place and refuses a CuPy whose names or signatures differ.
// Written for CuPy 13.6 and 14; _cupy.py names what only the latter has.
#include "api.h"
#include "textures.h"

// The few Python functions needed, declared here: the process has them, its headers may be absent.
extern "C" {
struct PyObject;
extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_RuntimeError;
void Py_IncRef(PyObject *);
PyObject *Py_BuildValue(const char *, ...);
PyObject *PyLong_FromLong(long);
PyObject *PyUnicode_FromString(const char *);
const char *PyUnicode_AsUTF8(PyObject *);
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
void PyErr_SetObject(PyObject *, PyObject *);
void PyErr_SetString(PyObject *, const char *);
}

namespace {
struct Entry {
  const char *name, *signature;
  void *function;
};
Entry table[128];
int entries = 0;
PyObject *runtime_error, *pointer_attributes, *device_properties;  // from __init__.py
thread_local int thread_device = 0;  // cudaSetDevice's, until a context is current

// Driver and runtime share their error numbers, so one is raised as the other.
bool failed(CUresult status) {
  if (status) PyErr_SetObject(runtime_error, PyLong_FromLong(status));
  return status;
}

PyObject *none(CUresult status) {
  if (failed(status)) return nullptr;
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

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

// The runtime works in whatever context is current, and makes the primary one current if none is.
CUresult ready() {
  CUcontext ctx = nullptr;
  if (CUresult e = cuInit(0)) return e;
  if (CUresult e = cuCtxGetCurrent(&ctx)) return e;
  if (ctx) return CUDA_SUCCESS;
  if (CUresult e = primary(thread_device, &ctx)) return e;
  return cuCtxSetCurrent(ctx);
}

CUresult enable_peer(int device) {
  CUcontext peer;
  if (CUresult e = ready()) return e;
  if (CUresult e = primary(device, &peer)) return e;
  return cuCtxEnablePeerAccess(peer, 0);
}

template <class H>
H handle(intptr_t value) {
  return reinterpret_cast<H>(value);
}
}  // namespace

#define SKIP "int __pyx_skip_dispatch"
#define OPTIONAL(name)                                                      \
  ", struct __pyx_opt_args_13cupy_backends_4cuda_3api_7runtime_" #name " *" \
  "__pyx_optional_args"
#define ENTRY(type, name, signature, params)                                     \
  static type rt_##name params;                                                  \
  static int at_##name =                                                         \
      (table[entries] = {#name, #type signature, (void *)rt_##name}, entries++); \
  static type rt_##name params
#define OBJECT(name, signature, params, body) \
  ENTRY(PyObject *, name, "(" signature ")", params) { return body; }
#define NUMBER(type, name, signature, params, on_error, variable, call) \
  ENTRY(type, name, " (" signature ")", params) {                       \
    variable{};                                                         \
    return failed(call) ? on_error : (type)(value);                     \
  }
#define READY(call) none(ready() ?: (call))

// devices
NUMBER(int, getDeviceCount, SKIP, (int), -1, int value, cuInit(0) ?: cuDeviceGetCount(&value))
NUMBER(int, driverGetVersion, SKIP, (int), -1, int value, cuDriverGetVersion(&value))
NUMBER(int, deviceGetAttribute, "int, int, " SKIP, (int attribute, int device, int), -1, int value,
       cuInit(0) ?: cuDeviceGetAttribute(&value, CUdevice_attribute(attribute), device))
NUMBER(int, deviceCanAccessPeer, "int, int, " SKIP, (int device, int peer, int), -1, int value,
       cuInit(0) ?: cuDeviceCanAccessPeer(&value, device, peer))
NUMBER(size_t, deviceGetLimit, "int, " SKIP, (int limit, int), -1, size_t value,
       ready() ?: cuCtxGetLimit(&value, CUlimit(limit)))
OBJECT(deviceSetLimit, "int, size_t, " SKIP, (int limit, size_t value, int),
       READY(cuCtxSetLimit(CUlimit(limit), value)))
OBJECT(deviceSynchronize, SKIP, (int), READY(cuCtxSynchronize()))
OBJECT(deviceEnablePeerAccess, "int, " SKIP, (int device, int), none(enable_peer(device)))
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
NUMBER(intptr_t, mallocAsync, "size_t, intptr_t, " SKIP, (size_t size, intptr_t stream, int), 0,
       CUdeviceptr value, ready() ?: cuMemAllocAsync(&value, size, handle<CUstream>(stream)))
NUMBER(intptr_t, mallocManaged, "size_t, " SKIP OPTIONAL(mallocManaged),
       (size_t size, int, void *), 0, CUdeviceptr value,
       ready() ?: cuMemAllocManaged(&value, size, CU_MEM_ATTACH_GLOBAL))
NUMBER(intptr_t, hostAlloc, "size_t, unsigned int, " SKIP, (size_t size, unsigned flags, int), 0,
       void *value, ready() ?: cuMemHostAlloc(&value, size, flags))
OBJECT(hostRegister, "intptr_t, size_t, unsigned int, " SKIP,
       (intptr_t p, size_t size, unsigned flags, int),
       READY(cuMemHostRegister_v2((void *)p, size, flags)))
OBJECT(hostUnregister, "intptr_t, " SKIP, (intptr_t p, int), READY(cuMemHostUnregister((void *)p)))
OBJECT(free, "intptr_t, " SKIP, (intptr_t p, int), READY(cuMemFree_v2(p)))
OBJECT(freeHost, "intptr_t, " SKIP, (intptr_t p, int), READY(cuMemFreeHost((void *)p)))
OBJECT(freeAsync, "intptr_t, intptr_t, " SKIP, (intptr_t p, intptr_t stream, int),
       READY(cuMemFreeAsync(p, handle<CUstream>(stream))))
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
OBJECT(memset, "intptr_t, int, size_t, " SKIP, (intptr_t p, int value, size_t n, int),
       READY(cuMemsetD8_v2(p, value, n)))
OBJECT(memsetAsync, "intptr_t, int, size_t, intptr_t, " SKIP,
       (intptr_t p, int value, size_t n, intptr_t stream, int),
       READY(cuMemsetD8Async(p, value, n, handle<CUstream>(stream))))

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
NUMBER(intptr_t, streamCreateWithFlags, "unsigned int, " SKIP, (unsigned flags, int), 0,
       CUstream value, ready() ?: cuStreamCreate(&value, flags))
NUMBER(intptr_t, streamCreateWithPriority, "unsigned int, int, " SKIP,
       (unsigned flags, int priority, int), 0, CUstream value,
       ready() ?: cuStreamCreateWithPriority(&value, flags, priority))
NUMBER(unsigned int, streamGetFlags, "intptr_t, " SKIP, (intptr_t s, int), 0, unsigned value,
       ready() ?: cuStreamGetFlags(handle<CUstream>(s), &value))
NUMBER(int, streamGetPriority, "intptr_t, " SKIP, (intptr_t s, int), 0, int value,
       ready() ?: cuStreamGetPriority(handle<CUstream>(s), &value))
OBJECT(streamDestroy, "intptr_t, " SKIP, (intptr_t s, int),
       READY(cuStreamDestroy_v2(handle<CUstream>(s))))
OBJECT(streamSynchronize, "intptr_t, " SKIP, (intptr_t s, int),
       READY(cuStreamSynchronize(handle<CUstream>(s))))
OBJECT(streamQuery, "intptr_t, " SKIP, (intptr_t s, int),
       PyLong_FromLong(ready() ?: cuStreamQuery(handle<CUstream>(s))))
OBJECT(streamWaitEvent, "intptr_t, intptr_t, " SKIP OPTIONAL(streamWaitEvent),
       (intptr_t s, intptr_t event, int, void *),
       READY(cuStreamWaitEvent(handle<CUstream>(s), handle<CUevent>(event), 0)))
NUMBER(intptr_t, eventCreate, SKIP, (int), 0, CUevent value, ready() ?: cuEventCreate(&value, 0))
NUMBER(intptr_t, eventCreateWithFlags, "unsigned int, " SKIP, (unsigned flags, int), 0,
       CUevent value, ready() ?: cuEventCreate(&value, flags))
OBJECT(eventDestroy, "intptr_t, " SKIP, (intptr_t e, int),
       READY(cuEventDestroy_v2(handle<CUevent>(e))))
OBJECT(eventRecord, "intptr_t, intptr_t, " SKIP, (intptr_t e, intptr_t s, int),
       READY(cuEventRecord(handle<CUevent>(e), handle<CUstream>(s))))
OBJECT(eventSynchronize, "intptr_t, " SKIP, (intptr_t e, int),
       READY(cuEventSynchronize(handle<CUevent>(e))))
OBJECT(eventQuery, "intptr_t, " SKIP, (intptr_t e, int),
       PyLong_FromLong(ready() ?: cuEventQuery(handle<CUevent>(e))))
NUMBER(float, eventElapsedTime, "intptr_t, intptr_t, " SKIP, (intptr_t a, intptr_t b, int), 0,
       float value, ready() ?: cuEventElapsedTime(&value, handle<CUevent>(a), handle<CUevent>(b)))

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
OBJECT(graphLaunch, "intptr_t, intptr_t, " SKIP, (intptr_t graph, intptr_t s, int),
       READY(cuGraphLaunch(handle<CUgraphExec>(graph), handle<CUstream>(s))))
OBJECT(graphDestroy, "intptr_t, " SKIP, (intptr_t graph, int),
       READY(cuGraphDestroy(handle<CUgraph>(graph))))
OBJECT(graphExecDestroy, "intptr_t, " SKIP, (intptr_t graph, int),
       READY(cuGraphExecDestroy(handle<CUgraphExec>(graph))))

// CUDA arrays, textures and surfaces. The runtime's structures, as its documentation lays them out:
// its headers include more than pip's packages bring. Enumerations have the driver's numbers.
struct channel_description {
  int bits[4], kind;  // 0 signed, 1 unsigned, 2 floating point
};
struct position {
  size_t x, y, z;
};
struct pitched {
  void *start;
  size_t pitch, width, height;
};
struct copy_parameters {
  CUarray from_array;
  position from_at;
  pitched from;
  CUarray to_array;
  position to_at;
  pitched to;
  position extent;
  int kind;
};
struct resource_description {
  int type;
  union {
    CUarray array;
    struct {
      CUdeviceptr start;
      channel_description channels;
      size_t size, height, pitch;  // bytes; or texels, rows and bytes from row to row
    } memory;
  };
};
struct texture_description {
  int address[3], filter, read_mode, srgb;  // read mode 0: as they are, 1: as fractions of one
  float border[4];
  int normalized;
};

static CUarray_format format_of(const channel_description &c, unsigned *count) {
  *count = 0;
  while (*count < 4 && c.bits[*count]) ++*count;
  const CUarray_format integers[][2] = {{CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT8},
                                        {CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT16},
                                        {CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_UNSIGNED_INT32}};
  if (c.kind == 2) return c.bits[0] == 16 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT;
  return integers[c.bits[0] == 8 ? 0 : c.bits[0] == 16 ? 1 : 2][c.kind == 1];
}
static CUresult make_array(intptr_t channels, size_t width, size_t height, size_t depth,
                           unsigned flags, CUarray *out) {
  CUDA_ARRAY3D_DESCRIPTOR d = {};
  d.Width = width, d.Height = height, d.Depth = depth, d.Flags = flags;
  d.Format = format_of(*(channel_description *)channels, &d.NumChannels);
  return ready() ?: cuArray3DCreate_v2(out, &d);
}
static CUDA_RESOURCE_DESC resource_of(intptr_t p) {
  const resource_description &given = *(resource_description *)p;
  CUDA_RESOURCE_DESC d = {};
  d.resType = CUresourcetype(given.type);
  auto &m = given.memory;
  if (d.resType == CU_RESOURCE_TYPE_ARRAY) {
    d.res.array.hArray = given.array;
  } else if (d.resType == CU_RESOURCE_TYPE_LINEAR) {
    d.res.linear.devPtr = m.start, d.res.linear.sizeInBytes = m.size;
    d.res.linear.format = format_of(m.channels, &d.res.linear.numChannels);
  } else {
    auto &to = d.res.pitch2D;
    to.devPtr = m.start, to.width = m.size, to.height = m.height, to.pitchInBytes = m.pitch;
    to.format = format_of(m.channels, &to.numChannels);
  }
  return d;
}
static CUresult make_texture(intptr_t resource, intptr_t texture, CUtexObject *out) {
  const texture_description &given = *(texture_description *)texture;
  CUDA_RESOURCE_DESC from = resource_of(resource);
  CUDA_TEXTURE_DESC d = {};
  for (int i = 0; i < 3; ++i) d.addressMode[i] = CUaddress_mode(given.address[i]);
  d.filterMode = CUfilter_mode(given.filter);
  d.flags = (given.read_mode ? 0 : CU_TRSF_READ_AS_INTEGER) |
            (given.normalized ? CU_TRSF_NORMALIZED_COORDINATES : 0);
  memcpy(d.borderColor, given.border, sizeof d.borderColor);
  return ready() ?: cuTexObjectCreate(out, &from, &d, nullptr);
}
static CUresult make_surface(intptr_t resource, CUsurfObject *out) {
  CUDA_RESOURCE_DESC from = resource_of(resource);
  return ready() ?: cuSurfObjectCreate(out, &from);
}
static CUresult copy_box(const copy_parameters &p, CUstream stream, bool wait) {
  CUDA_MEMCPY3D c = {};
  size_t texel = 1;  // with an array, positions and widths are counted in its texels
  for (CUarray array : {p.from_array, p.to_array}) {
    CUDA_ARRAY3D_DESCRIPTOR d;
    if (!array) continue;
    if (CUresult e = cuArray3DGetDescriptor_v2(&d, array)) return e;
    Image image;
    image.channels = d.NumChannels, image.format = d.Format;
    texel = image.texel();
  }
#define SIDE(side, where)                                                                    \
  c.side##MemoryType = p.where##_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;         \
  c.side##Array = p.where##_array, c.side##Device = CUdeviceptr(p.where.start);               \
  c.side##Pitch = p.where.pitch, c.side##Height = p.where.height;                             \
  c.side##XInBytes = p.where##_at.x * (p.where##_array ? texel : 1);                          \
  c.side##Y = p.where##_at.y, c.side##Z = p.where##_at.z
  SIDE(src, from);
  SIDE(dst, to);
#undef SIDE
  c.WidthInBytes = p.extent.x * texel, c.Height = p.extent.y, c.Depth = p.extent.z;
  return ready() ?: wait ? cuMemcpy3D_v2(&c) : cuMemcpy3DAsync_v2(&c, stream);
}

struct array_options {
  int given;
  unsigned flags;
};
NUMBER(intptr_t, mallocArray, "intptr_t, size_t, size_t, " SKIP OPTIONAL(mallocArray),
       (intptr_t channels, size_t width, size_t height, int, array_options *options), 0,
       CUarray value,
       make_array(channels, width, height, 0, options && options->given ? options->flags : 0,
                  &value))
NUMBER(intptr_t, malloc3DArray, "intptr_t, size_t, size_t, size_t, " SKIP OPTIONAL(malloc3DArray),
       (intptr_t channels, size_t width, size_t height, size_t depth, int, array_options *options),
       0, CUarray value,
       make_array(channels, width, height, depth, options && options->given ? options->flags : 0,
                  &value))
OBJECT(freeArray, "intptr_t, " SKIP, (intptr_t array, int),
       READY(cuArrayDestroy(handle<CUarray>(array))))
NUMBER(uintmax_t, createTextureObject, "intptr_t, intptr_t, " SKIP,
       (intptr_t resource, intptr_t texture, int), 0, CUtexObject value,
       make_texture(resource, texture, &value))
NUMBER(uintmax_t, createSurfaceObject, "intptr_t, " SKIP, (intptr_t resource, int), 0,
       CUsurfObject value, make_surface(resource, &value))
OBJECT(destroyTextureObject, "uintmax_t, " SKIP, (uintmax_t object, int),
       READY(cuTexObjectDestroy(object)))
OBJECT(destroySurfaceObject, "uintmax_t, " SKIP, (uintmax_t object, int),
       READY(cuSurfObjectDestroy(object)))
OBJECT(memcpy3D, "intptr_t, " SKIP, (intptr_t parameters, int),
       none(copy_box(*(copy_parameters *)parameters, nullptr, true)))
OBJECT(memcpy3DAsync, "intptr_t, intptr_t, " SKIP, (intptr_t parameters, intptr_t stream, int),
       none(copy_box(*(copy_parameters *)parameters, handle<CUstream>(stream), false)))

// In place of everything else that answers an object, or a handle.
EXPORT PyObject *hostcuda_refuse_object() { return none(CUDA_ERROR_NOT_SUPPORTED); }
EXPORT intptr_t hostcuda_refuse_handle() { return failed(CUDA_ERROR_NOT_SUPPORTED), 0; }

EXPORT const Entry *hostcuda_runtime(PyObject *error, PyObject *attributes, PyObject *properties) {
  runtime_error = error, pointer_attributes = attributes, device_properties = properties;
  for (PyObject *o : {error, attributes, properties}) Py_IncRef(o);
  return table;  // ends with a null name
}
