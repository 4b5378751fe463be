// Streams and events. What waits for what is in core.h.
#include "core.h"

CALL_IN_CONTEXT(cuStreamCreateWithPriority, (CUstream *out, unsigned flags, int priority), {
  CHECK(flags <= CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
  *out = new_handle<CUstream>();
  streams[*out] = new_stream(ctx, flags, *out);
  streams[*out]->priority = priority;
})

API cuStreamCreate(CUstream *out, unsigned flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

CALL(cuStreamDestroy_v2, (CUstream handle), {
  auto *found = lookup(streams, handle);
  CHECK(found, CUDA_ERROR_INVALID_HANDLE);
  (*found)->destroyed = true;  // its queued work still runs, as documented
  streams.erase(handle);
})

CALL(cuStreamSynchronize, (CUstream handle), {
  STREAM(stream, handle);
  if (stream->legacy) return settle(*stream), CUDA_SUCCESS;
  host_waits += undone(*stream, LATEST);
  run(*stream, LATEST);
})

CALL(cuStreamQuery, (CUstream handle), {
  STREAM(stream, handle);
  bool busy = stream->legacy ? undone_before(*stream) : undone(*stream, LATEST);
  return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
})

CALL(cuStreamGetFlags, (CUstream handle, unsigned *flags), {
  STREAM(stream, handle);
  *flags = stream->flags;
})
CALL(cuStreamGetPriority, (CUstream handle, int *priority), {
  STREAM(stream, handle);
  *priority = stream->priority;
})
CALL(cuStreamGetCtx, (CUstream handle, CUcontext *out), {
  STREAM(stream, handle);
  *out = stream->ctx->handle;
})
CALL(cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus *status), {
  STREAM(stream, handle);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
})

API cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *,
                              CUgraph *, const CUgraphNode **, size_t *) {
  return cuStreamIsCapturing(handle, status);
}

CALL(cuStreamWaitEvent, (CUstream handle, CUevent event_handle, unsigned), {
  STREAM(stream, handle);
  Event *event = lookup(events, event_handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  if (event->stream && undone(*event->stream, event->seq))
    enqueue(*stream, [] {}, event->stream, event->seq);
})

CALL_IN_CONTEXT(cuEventCreate, (CUevent *out, unsigned flags), {
  *out = new_handle<CUevent>();
  events[*out] = Event{ctx, flags, nullptr, 0, nullptr};
})
CALL(cuEventDestroy_v2, (CUevent handle),
     { return events.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; })

CALL(cuEventRecord, (CUevent handle, CUstream stream_handle), {
  Event *event = lookup(events, handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  STREAM(stream, stream_handle);
  CHECK(stream->ctx == event->ctx, CUDA_ERROR_INVALID_HANDLE);
  auto when = std::make_shared<double>(0);
  event->stream = stream;
  event->milliseconds = when;
  // On a stream with nothing to wait for the event is complete at once, as on an idle GPU.
  bool idle = !undone_before(*stream);
  event->seq = enqueue(*stream, [=] { *when = wall_ms(); });
  if (idle) run(*stream, LATEST);
})

CALL(cuEventQuery, (CUevent handle), {
  Event *event = lookup(events, handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  return event->stream && undone(*event->stream, event->seq) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
})

CALL(cuEventSynchronize, (CUevent handle), {
  Event *event = lookup(events, handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  if (!event->stream) return CUDA_SUCCESS;
  shared_ptr<Stream> stream = event->stream;
  host_waits += undone(*stream, event->seq);
  run(*stream, event->seq);
})

CALL(cuEventElapsedTime, (float *milliseconds, CUevent first, CUevent second), {
  Event *a = lookup(events, first), *b = lookup(events, second);
  CHECK(a && b && a->stream && b->stream, CUDA_ERROR_INVALID_HANDLE);
  CHECK(!((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
  CHECK(!undone(*a->stream, a->seq) && !undone(*b->stream, b->seq), CUDA_ERROR_NOT_READY);
  double elapsed = *b->milliseconds - *a->milliseconds;
  *milliseconds = b->seq > a->seq ? std::max(elapsed, 0.001) : elapsed;
})

API cuEventElapsedTime_v2(float *milliseconds, CUevent first, CUevent second) {
  return cuEventElapsedTime(milliseconds, first, second);
}
