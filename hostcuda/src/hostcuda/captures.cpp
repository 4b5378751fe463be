// Captures: what they forbid and gather, and the launch of the graphs that come of them.
#include "api.h"

#include <utility>

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::map<CUgraph, shared_ptr<Graph>> graphs;
std::map<CUgraphExec, shared_ptr<Graph>> executables;
std::map<CUuserObject, std::vector<shared_ptr<void>>> user_objects;  // the caller's references

// Also of one that is being captured.
Graph *graph_of(CUgraph handle) {
  for (auto &item : driver.contexts)
    for (auto &t : item.second.streams)
      if (t->graph && t->graph->handle == handle) return t->graph.get();
  auto *found = lookup(graphs, handle);
  return found ? found->get() : nullptr;
}

std::set<size_t> all_before(const Graph &graph, std::set<size_t> nodes) {
  for (size_t i = graph.nodes.size(); i-- > 0;)
    if (nodes.count(i)) nodes.insert(graph.nodes[i].after.begin(), graph.nodes[i].after.end());
  return nodes;
}

// What was captured last runs first, where nothing orders it: the worst case for a missing fence.
void launch(Stream &s, const shared_ptr<Graph> &launched) {
  const Graph &graph = *launched;
  const uint64_t number = ++driver.last_handle;
  std::set<size_t> done;
  while (done.size() < graph.nodes.size())
    for (size_t i = graph.nodes.size(); i-- > 0;) {
      const auto &after = graph.nodes[i].after;
      if (done.count(i) || !std::includes(done.begin(), done.end(), after.begin(), after.end()))
        continue;
      Work work = graph.nodes[i].work;
      work.graph = launched;
      if (checking)
        work.node = std::make_shared<InGraph>(InGraph{number, i, all_before(graph, after)});
      enqueue(s, std::move(work));
      done.insert(i);
      break;
    }
}

CUgraphNode node_of(const Graph &graph, size_t index) {
  return CUgraphNode(uintptr_t(graph.handle) << 20 | (index + 1));
}

}  // namespace

namespace hostcuda {

CUresult spoil(const shared_ptr<Graph> &graph, CUresult error) {
  graph->spoilt = true;
  return error;
}

// The default stream would have to wait for captured blocking ones.
CUresult may_queue(const Stream &s) {
  CHECK(!s.graph || !s.graph->spoilt, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  for (auto &t : s.ctx->streams)
    if (s.legacy && t->graph && t->blocking())
      return spoil(t->graph, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  return CUDA_SUCCESS;
}

CUresult may_ask(const Stream &s) {
  return s.graph ? spoil(s.graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

CUresult may_be_unsafe() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (auto &item : driver.contexts)
    for (auto &t : item.second.streams)
      if (t->graph && t->graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return spoil(t->graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return CUDA_SUCCESS;
}

Work *work_of(CUgraphExec handle, CUgraphNode node) {
  auto *graph = lookup(executables, handle);
  if (graph) *graph = std::make_shared<Graph>(**graph);  // what is launched stays as it is
  for (size_t i = 0; graph && i < (*graph)->nodes.size(); ++i)
    if (node == node_of(**graph, i)) return &(*graph)->nodes[i].work;
  return nullptr;
}

}  // namespace hostcuda

API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  ENTER;
  STREAM(stream, handle);
  CHECK(!stream->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(!stream->graph, CUDA_ERROR_ILLEGAL_STATE);
  CHECK(mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_ERROR_NOT_SUPPORTED);
  stream->graph = std::make_shared<Graph>();
  stream->began_here = true;
  stream->graph->mode = mode;
  stream->graph->handle = new_handle<CUgraph>();
  return CUDA_SUCCESS;
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  ENTER;
  std::swap(thread_mode, *mode);
  return CUDA_SUCCESS;
}

API cuStreamEndCapture(CUstream handle, CUgraph *out) {
  ENTER;
  STREAM(stream, handle);
  shared_ptr<Graph> graph = stream->graph;
  CHECK(graph, CUDA_ERROR_ILLEGAL_STATE);
  if (!stream->began_here) return spoil(graph, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  bool joined = true;
  auto inside = all_before(*graph, stream->last);
  for (auto &item : driver.contexts)
    for (auto &t : item.second.streams)
      if (t->graph == graph) {
        joined &= std::includes(inside.begin(), inside.end(), t->last.begin(), t->last.end());
        t->graph = nullptr, t->began_here = false;
        t->last.clear();
      }
  graph->open = false;
  for (uintptr_t address : graph->dropped)
    if (Block *b = lookup(driver.blocks, address)) queue_free(b, *b->home);
  *out = nullptr;
  CHECK(!graph->spoilt, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(joined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  *out = graph->handle;
  graphs[*out] = graph;
  return CUDA_SUCCESS;
}

// Asked about the default stream beside the capture of a blocking one, CUDA answers with the error
// that work there would end in, and leaves the capture alone.
API cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                              CUgraph *out, const CUgraphNode **nodes, size_t *count) {
  ENTER;
  STREAM(stream, handle);
  for (auto &t : stream->ctx->streams)
    CHECK(!stream->legacy || !t->graph || !t->blocking(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  *status = !stream->graph          ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->graph->spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id && stream->graph) *id = cuuint64_t(stream->graph->handle);
  if (out && stream->graph) *out = stream->graph->handle;
  if (nodes && stream->graph) {
    static thread_local std::vector<CUgraphNode> last;
    last.clear();
    for (size_t i : stream->last) last.push_back(node_of(*stream->graph, i));
    *nodes = last.data(), *count = last.size();
  }
  return CUDA_SUCCESS;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  return cuStreamGetCaptureInfo_v2(handle, status, nullptr, nullptr, nullptr, nullptr);
}

API cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long) {
  ENTER;
  FIND(graph, graphs, handle);
  *out = new_handle<CUgraphExec>();
  executables[*out] = std::make_shared<Graph>(**graph);
  return CUDA_SUCCESS;
}

API cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph handle, CUDA_GRAPH_INSTANTIATE_PARAMS *how) {
  how->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return cuGraphInstantiateWithFlags(out, handle, how->flags);
}

API cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
  ENTER;
  FIND(found, executables, handle);
  STREAM(stream, stream_handle);
  return may_queue(*stream);
}

API cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  ENTER;
  FIND(found, executables, handle);
  STREAM(stream, stream_handle);
  CHECK(!stream->graph, CUDA_ERROR_NOT_SUPPORTED);
  TRY(may_queue(*stream));
  shared_ptr<Graph> graph = *found;
  launch(*stream, graph);
  return CUDA_SUCCESS;
}

API cuGraphDestroy(CUgraph handle) {
  ENTER;
  return graphs.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
API cuGraphExecDestroy(CUgraphExec handle) {
  ENTER;
  return executables.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// The destructor is called when the last reference is gone, those of running graphs included.
API cuUserObjectCreate(CUuserObject *out, void *object, CUhostFn destroy, unsigned count,
                       unsigned flags) {
  ENTER;
  CHECK(destroy && count && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUDA_ERROR_INVALID_VALUE);
  *out = new_handle<CUuserObject>();
  user_objects[*out].assign(count, shared_ptr<void>(object, [destroy](void *last) {
    bool outer = std::exchange(in_host_function, true);
    destroy(last);
    in_host_function = outer;
  }));
  return CUDA_SUCCESS;
}

API cuUserObjectRelease(CUuserObject object, unsigned count) {
  ENTER;
  auto *references = lookup(user_objects, object);
  CHECK(references && count && count <= references->size(), CUDA_ERROR_INVALID_VALUE);
  references->resize(references->size() - count);
  if (references->empty()) user_objects.erase(object);
  return CUDA_SUCCESS;
}

API cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned count, unsigned flags) {
  ENTER;
  Graph *graph = graph_of(handle);
  auto *references = lookup(user_objects, object);
  CHECK(graph && references && count, CUDA_ERROR_INVALID_VALUE);
  shared_ptr<void> kept = references->front();
  if (flags & CU_GRAPH_USER_OBJECT_MOVE) TRY(cuUserObjectRelease(object, count));
  graph->kept[object].resize(graph->kept[object].size() + count, kept);
  return CUDA_SUCCESS;
}

API cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned count) {
  std::vector<shared_ptr<void>> dropped;  // at the end, without the lock
  ENTER;
  Graph *graph = graph_of(handle);
  auto *kept = graph ? lookup(graph->kept, object) : nullptr;
  CHECK(kept && count <= kept->size(), CUDA_ERROR_INVALID_VALUE);
  for (; count; --count, kept->pop_back()) dropped.push_back(kept->back());
  return CUDA_SUCCESS;
}
