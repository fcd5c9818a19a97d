// Streams and events: those of the driver, handle for handle.

#include <cstring>
#include <utility>

#include "tests/fakes/cuda_runtime/runtime.h"

using namespace fake_cudart;  // NOLINT: entry points have no namespace
using freescale::cuda::CaptureStatus;
using freescale::cuda::Event;
using freescale::cuda::IpcEventHandle;
using freescale::cuda::Stream;

namespace {

Code create(const Below& below, cudaStream_t* stream, unsigned flags, int priority) {
  Stream created = nullptr;
  const Code code = below.driver().stream_create_with_priority.code(&created, flags, priority);
  *stream = reinterpret_cast<cudaStream_t>(created);
  return code;
}

Code capture_status(const Below& below, cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CaptureStatus found = CaptureStatus::kNone;
  const Code code = below.driver().stream_is_capturing.code(driver_stream(stream), &found);
  *status = static_cast<cudaStreamCaptureStatus>(found);
  return code;
}

Code record(const Below& below, cudaEvent_t event, cudaStream_t stream) {
  return below.driver().event_record.code(driver_event(event), driver_stream(stream));
}

}  // namespace

// --- Streams ------------------------------------------------------------------------------------

FAKE_CUDART_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return call([&](const Below& below) { return create(below, stream, 0, 0); });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call([&](const Below& below) { return create(below, stream, flags, 0); });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                            int priority) {
  return call([&](const Below& below) { return create(below, stream, flags, priority); });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&](const Below& below) {
    return below.driver().stream_destroy.code(driver_stream(stream));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call([&](const Below& below) {
    return below.driver().stream_get_priority.code(driver_stream(stream), priority);
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call(
      [&](const Below& below) { return below.driver().stream_query.code(driver_stream(stream)); });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&](const Below& below) {
    return below.driver().stream_synchronize.code(driver_stream(stream));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                   unsigned flags) {
  return call([&](const Below& below) {
    return below.driver().stream_wait_event.code(driver_stream(stream), driver_event(event), flags);
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                                  void* argument) {
  return call([&](const Below& below) {
    return below.launch_host_func(driver_stream(stream), function, argument);
  });
}

// --- Capture: a stream may say that it is being captured, no graph comes of it ------------------

FAKE_CUDART_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                                     cudaStreamCaptureStatus* status) {
  return call([&](const Below& below) { return capture_status(below, stream, status); });
}

FAKE_CUDART_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                        cudaStreamCaptureStatus* status,
                                                        unsigned long long* id, cudaGraph_t* graph,
                                                        const cudaGraphNode_t** nodes,
                                                        const cudaGraphEdgeData** edges,
                                                        size_t* node_count) {
  if (id != nullptr) *id = 0;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (node_count != nullptr) *node_count = 0;
  return call([&](const Below& below) { return capture_status(below, stream, status); });
}

FAKE_CUDART_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}

// --- Events -------------------------------------------------------------------------------------

FAKE_CUDART_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&](const Below& below) {
    Event created = nullptr;
    const Code code = below.driver().event_create.code(&created, flags);
    *event = reinterpret_cast<cudaEvent_t>(created);
    return code;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

FAKE_CUDART_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call(
      [&](const Below& below) { return below.driver().event_destroy.code(driver_event(event)); });
}

FAKE_CUDART_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&](const Below& below) { return record(below, event, stream); });
}

FAKE_CUDART_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                        unsigned flags) {
  return call([&](const Below& below) {
    // The only flag there is makes the record a node of a graph.
    return flags == cudaEventRecordDefault ? record(below, event, stream) : Code::kNotSupported;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call(
      [&](const Below& below) { return below.driver().event_query.code(driver_event(event)); });
}

FAKE_CUDART_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&](const Below& below) {
    return below.driver().event_synchronize.code(driver_event(event));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                                    cudaEvent_t end) {
  return call([&](const Below& below) {
    return below.event_elapsed_time(milliseconds, driver_event(start), driver_event(end));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle,
                                                     cudaEvent_t event) {
  static_assert(sizeof(*handle) == sizeof(IpcEventHandle));
  return call([&](const Below& below) {
    return below.ipc_get_event_handle(reinterpret_cast<IpcEventHandle*>(handle),
                                      driver_event(event));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event,
                                                      cudaIpcEventHandle_t handle) {
  return call([&](const Below& below) {
    IpcEventHandle copied;
    std::memcpy(&copied, &handle, sizeof(copied));
    Event opened = nullptr;
    const Code code = below.ipc_open_event_handle(&opened, copied);
    *event = reinterpret_cast<cudaEvent_t>(opened);
    return code;
  });
}
