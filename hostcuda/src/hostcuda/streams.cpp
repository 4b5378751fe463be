// Streams and events. What waits for what is in schedule.cpp.
#include "api.h"

static std::vector<CUstream> free_handles;  // the newest one is given again first, as on a GPU

API cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
  ENTER_LIVING_CONTEXT;
  CHECK(flags <= CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
  if (free_handles.empty()) free_handles.push_back(new_handle<CUstream>());
  *out = free_handles.back(), free_handles.pop_back();
  driver.streams[*out] = new_stream(ctx, flags, *out);
  driver.streams[*out]->priority = std::clamp(priority, MOST_URGENT, 0);
  return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

API cuStreamDestroy_v2(CUstream handle) {
  ENTER;
  FIND(found, driver.streams, handle);
  CHECK(!(*found)->ctx->dead, (*found)->ctx->dead);
  (*found)->destroyed = true;  // its queued work still runs, as documented
  driver.streams.erase(handle);
  free_handles.push_back(handle);
  return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream handle) {
  ENTER;
  STREAM(stream, handle);
  TRY(may_ask(*stream));
  TRY(may_be_unsafe());
  if (stream->legacy) return settle(*stream), stream->ctx->dead;
  driver.host_waits += undone(*stream, LATEST);
  host_waited(stream->clock);
  run(*stream, LATEST);
  return stream->ctx->dead;
}

API cuStreamQuery(CUstream handle) {
  ENTER;
  STREAM(stream, handle);
  TRY(may_ask(*stream));
  TRY(may_be_unsafe());
  bool busy = stream->legacy ? undone_before(*stream) : undone(*stream, LATEST);
  if (busy && has_polled_enough()) run(*stream, LATEST, Waits::no);
  if (!busy) host_waited(stream->clock);
  return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

API cuStreamGetFlags(CUstream handle, unsigned *flags) {
  ENTER;
  STREAM(stream, handle);
  TRY(may_ask(*stream));
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
API cuStreamGetPriority(CUstream handle, int *priority) {
  ENTER;
  STREAM(stream, handle);
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
API cuStreamGetCtx(CUstream handle, CUcontext *out) {
  ENTER;
  STREAM(stream, handle);
  *out = stream->ctx->handle;
  return CUDA_SUCCESS;
}
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

API cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  ENTER;
  STREAM(stream, handle);
  FIND(event, driver.events, event_handle);
  TRY(may_queue(*stream));
  if (event->graph) return wait_in_graph(*stream, *event);
  if (stream->graph && event->stream)
    return spoil(stream->graph, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (event->stream && undone(*event->stream, event->seq))
    enqueue(*stream, {"", {}, {}, [] {}}, event);
  else if (checking && event->stream)
    join(stream->clock, event->clock);
  return CUDA_SUCCESS;
}

API cuEventCreate(CUevent *out, unsigned flags) {
  ENTER_LIVING_CONTEXT;
  *out = new_handle<CUevent>();
  driver.events[*out] = Event{ctx, flags};
  return CUDA_SUCCESS;
}
API cuEventDestroy_v2(CUevent handle) {
  ENTER;
  return driver.events.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuEventRecord(CUevent handle, CUstream stream_handle) {
  ENTER;
  FIND(event, driver.events, handle);
  STREAM(stream, stream_handle);
  CHECK(stream->ctx == event->ctx, CUDA_ERROR_INVALID_HANDLE);
  TRY(may_queue(*stream));
  if (stream->legacy) stream = stream->ctx->legacy_events.get();
  event->graph = stream->graph, event->last = stream->last;
  if (event->graph) {
    event->stream = nullptr;
    return CUDA_SUCCESS;
  }
  auto when = std::make_shared<double>(0);
  event->stream = stream->shared_from_this();
  event->milliseconds = when;
  // On a stream with nothing to wait for the event is complete at once, as on an idle GPU.
  bool idle = !undone_before(*stream);
  event->seq = enqueue(*stream, {"", {}, {}, [=] { *when = wall_ms(); }});
  event->clock = stream->clock;
  if (idle) run(*stream, LATEST);
  return CUDA_SUCCESS;
}

API cuEventQuery(CUevent handle) {
  ENTER;
  FIND(event, driver.events, handle);
  CHECK(!event->graph, CUDA_ERROR_CAPTURED_EVENT);
  TRY(may_be_unsafe());
  if (event->stream && undone(*event->stream, event->seq)) {
    if (has_polled_enough()) run(*event->stream, event->seq, Waits::no);
    return CUDA_ERROR_NOT_READY;
  }
  host_waited(event->clock);
  return CUDA_SUCCESS;
}

API cuEventSynchronize(CUevent handle) {
  ENTER;
  FIND(event, driver.events, handle);
  CHECK(!event->graph, CUDA_ERROR_CAPTURED_EVENT);
  TRY(may_be_unsafe());
  if (!event->stream) return CUDA_SUCCESS;
  shared_ptr<Stream> stream = event->stream;
  driver.host_waits += undone(*stream, event->seq);
  host_waited(event->clock);
  run(*stream, event->seq);
  return stream->ctx->dead;
}

API cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second) {
  ENTER;
  Event *a = lookup(driver.events, first), *b = lookup(driver.events, second);
  CHECK(a && b && a->stream && b->stream, CUDA_ERROR_INVALID_HANDLE);
  CHECK(!((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
  CHECK(!undone(*a->stream, a->seq) && !undone(*b->stream, b->seq), CUDA_ERROR_NOT_READY);
  double elapsed = *b->milliseconds - *a->milliseconds;
  *milliseconds = b->seq > a->seq ? std::max(elapsed, 0.001) : elapsed;
  return CUDA_SUCCESS;
}
