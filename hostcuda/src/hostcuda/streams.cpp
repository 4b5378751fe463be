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
  CHECK(!(*found)->ctx->dead, (*found)->ctx->dead);
  (*found)->destroyed = true;  // its queued work still runs, as documented
  streams.erase(handle);
})

CALL(cuStreamSynchronize, (CUstream handle), {
  STREAM(stream, handle);
  TRY(may_ask(*stream));
  TRY(may_be_unsafe());
  if (stream->legacy) return settle(*stream), stream->ctx->dead;
  host_waits += undone(*stream, LATEST);
  host_waited(stream->clock);
  run(*stream, LATEST);
  return stream->ctx->dead;
})

CALL(cuStreamQuery, (CUstream handle), {
  STREAM(stream, handle);
  TRY(may_ask(*stream));
  TRY(may_be_unsafe());
  bool busy = stream->legacy ? undone_before(*stream) : undone(*stream, LATEST);
  if (busy && ++polls > MOST_POLLS) run(*stream, LATEST);
  if (!busy) host_waited(stream->clock);
  return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
})

CALL(cuStreamGetFlags, (CUstream handle, unsigned *flags), {
  STREAM(stream, handle);
  TRY(may_ask(*stream));
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
// A wait for what is captured draws the stream into the capture.
static CUresult wait_in_graph(Stream &s, const Event &event) {
  CHECK(event.graph->open, CUDA_ERROR_CAPTURED_EVENT);
  if (s.legacy) return spoil(event.graph, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  if (s.graph && s.graph != event.graph)
    return spoil(s.graph, spoil(event.graph, CUDA_ERROR_STREAM_CAPTURE_MERGE));
  s.graph = event.graph;
  s.last.insert(event.last.begin(), event.last.end());
  return CUDA_SUCCESS;
}

CALL(cuStreamWaitEvent, (CUstream handle, CUevent event_handle, unsigned), {
  STREAM(stream, handle);
  Event *event = lookup(events, event_handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  TRY(may_queue(*stream));
  if (event->graph) return wait_in_graph(*stream, *event);
  if (stream->graph && event->stream)
    return spoil(stream->graph, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (event->stream && undone(*event->stream, event->seq))
    enqueue(*stream, {"", {}, {}, [] {}}, event);
  else if (tracing && event->stream)
    join(stream->clock, event->clock);
})

CALL_IN_CONTEXT(cuEventCreate, (CUevent *out, unsigned flags), {
  *out = new_handle<CUevent>();
  events[*out] = Event{ctx, flags};
})
CALL(cuEventDestroy_v2, (CUevent handle),
     { return events.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; })

CALL(cuEventRecord, (CUevent handle, CUstream stream_handle), {
  Event *event = lookup(events, handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  STREAM(stream, stream_handle);
  CHECK(stream->ctx == event->ctx, CUDA_ERROR_INVALID_HANDLE);
  TRY(may_queue(*stream));
  event->graph = stream->graph, event->last = stream->last;
  if (event->graph) {
    event->stream = nullptr;
    return CUDA_SUCCESS;
  }
  auto when = std::make_shared<double>(0);
  event->stream = stream;
  event->milliseconds = when;
  // On a stream with nothing to wait for the event is complete at once, as on an idle GPU.
  bool idle = !undone_before(*stream);
  event->seq = enqueue(*stream, {"", {}, {}, [=] { *when = wall_ms(); }});
  event->clock = stream->clock;
  if (idle) run(*stream, LATEST);
})

CALL(cuEventQuery, (CUevent handle), {
  Event *event = lookup(events, handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  CHECK(!event->graph, CUDA_ERROR_CAPTURED_EVENT);
  TRY(may_be_unsafe());
  if (event->stream && undone(*event->stream, event->seq)) {
    if (++polls > MOST_POLLS) run(*event->stream, event->seq);
    return CUDA_ERROR_NOT_READY;
  }
  host_waited(event->clock);
  return CUDA_SUCCESS;
})

CALL(cuEventSynchronize, (CUevent handle), {
  Event *event = lookup(events, handle);
  CHECK(event, CUDA_ERROR_INVALID_HANDLE);
  CHECK(!event->graph, CUDA_ERROR_CAPTURED_EVENT);
  TRY(may_be_unsafe());
  if (!event->stream) return CUDA_SUCCESS;
  shared_ptr<Stream> stream = event->stream;
  host_waits += undone(*stream, event->seq);
  host_waited(event->clock);
  run(*stream, event->seq);
  return stream->ctx->dead;
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
