#include "backend/bind_observe.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <pybind11/stl.h>

#include "backend/blocked_thread.h"
#include "backend/device_step_meter.h"
#include "cpp/scheduler/event_log.h"
#include "cpp/scheduler/step_meter.h"

namespace py = pybind11;

namespace freescale {
namespace {

// Of all that a trace shows; kept until close(), or for as long as Python holds it.
class TraceLog {
 public:
  explicit TraceLog(size_t capacity)
      : log_(std::make_shared<EventLog>(
            std::initializer_list{EventKind::kMessageOut, EventKind::kMessageIn, EventKind::kCall,
                                  EventKind::kWait, EventKind::kJoin},
            capacity)) {
    EventLogs::of_process().add(log_);
  }
  ~TraceLog() { close(); }
  TraceLog(const TraceLog&) = delete;
  TraceLog& operator=(const TraceLog&) = delete;

  void close() { EventLogs::of_process().remove(log_); }
  EventLog& log() { return *log_; }

 private:
  const std::shared_ptr<EventLog> log_;
};

const char* kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kMessageOut:
      return "message_out";
    case EventKind::kMessageIn:
      return "message_in";
    case EventKind::kCall:
      return "call";
    case EventKind::kWait:
      return "wait";
    case EventKind::kJoin:
      break;
  }
  return "join";
}

std::vector<std::string> path_names(const Event& event) {
  std::vector<std::string> names;
  for (int i = 0; i < kPaths; ++i) {
    const auto path = static_cast<Path>(i);
    if (event.paths.has(path)) names.emplace_back(path_name(path));
  }
  return names;
}

void bind_events(py::module_& module) {
  py::class_<Event>(module, "Event", "Something that took time; ns of the monotonic clock.")
      .def_property_readonly(
          "kind", [](const Event& event) { return kind_name(event.kind); },
          "\"message_out\", \"message_in\", \"call\", \"wait\" or \"join\".")
      .def_property_readonly("op", [](const Event& event) { return op_name(event.op); })
      .def_property_readonly("priority",
                             [](const Event& event) { return static_cast<int>(event.priority); })
      .def_property_readonly("paths", &path_names, "That the bytes of a call took.")
      .def_readonly("failed", &Event::failed)
      .def_readonly("rank", &Event::rank, "The own one, of all ranks.")
      .def_readonly("peer", &Event::peer, "Of a message; of all ranks.")
      .def_readonly("group", &Event::group, "Its number, the same on all ranks.")
      .def_readonly("sequence", &Event::sequence, "Of a collective in its group; else 0.")
      .def_readonly("bytes", &Event::bytes, "Of a message, or of a call's inputs.")
      .def_readonly("thread", &Event::thread, "Of a wait or join, as the system numbers it.")
      .def_readonly("joined", &Event::joined, "Of a join: the thread that it awaits.")
      .def_readonly("begin", &Event::begin)
      .def_readonly("ready", &Event::ready,
                    "Of a call or wait: when the last rank had come; 0: before this one.")
      .def_readonly("end", &Event::end);
  py::class_<TraceLog>(module, "TraceLog",
                       "The last messages, calls, waits and joins of this process.")
      .def(py::init<size_t>(), py::arg("capacity"), "Begins to keep so many of them.")
      .def("close", &TraceLog::close, "Keeps no more.")
      .def(
          "take", [](TraceLog& self) { return self.log().take(); },
          "Removes and returns them, by their ends.")
      .def_property_readonly(
          "dropped", [](TraceLog& self) { return self.log().dropped(); },
          "How many of them were too many to be kept.");
}

void bind_steps(py::module_& module) {
  py::class_<BlockedTime>(module, "BlockedTime",
                          "For how long waits for one operation at one priority took a thread.")
      .def_property_readonly("op", [](const BlockedTime& time) { return op_name(time.op); })
      .def_property_readonly(
          "priority", [](const BlockedTime& time) { return static_cast<int>(time.priority); })
      .def_readonly("stragglers", &BlockedTime::stragglers, "Until all ranks had called; ns.")
      .def_readonly("communication", &BlockedTime::communication, "From then on; ns.");
  py::class_<StepTime>(module, "StepTime", "Where the time of a step went; ns.")
      .def_readonly("number", &StepTime::number)
      .def_readonly("total", &StepTime::total)
      .def_readonly("loader", &StepTime::loader, "Of that, the loader's.")
      .def_readonly("blocked", &StepTime::blocked, "Of that, by operation and priority.");
  // It is its own context manager: nothing is made for a step.
  py::class_<StepMeter>(module, "StepMeter", "Measures the steps of a training.")
      .def(py::init<size_t>(), py::arg("keep"), "Remembers so many steps, the last ones.")
      .def("__enter__",
           [](StepMeter& self) {
             TORCH_CHECK(self.begin(), "step ", self.number(),
                         " of this BubbleMeter has not ended yet");
           })
      .def(
          "__exit__",
          [](StepMeter& self, const py::object& kind, const py::object&, const py::object&) {
            self.end(kind.is_none(), thread_number());
          },
          py::arg("kind"), py::arg("error"), py::arg("traceback"))
      .def("begin_load", &StepMeter::begin_load, "A thread waits for the loader.")
      .def(
          "end_load",
          [](StepMeter& self, Nanoseconds begin, bool well) {
            self.end_load(well, {thread_number(), begin, now_ns()});
          },
          py::arg("begin"), py::arg("well"),
          "It has waited since `begin`; that counts if it got something.")
      .def(
          "times",
          [](StepMeter& self) {
            const std::deque<StepTime>& times = self.times();
            return std::vector<StepTime>(times.begin(), times.end());
          },
          "Of the steps that are remembered, oldest first.")
      .def_property_readonly("dropped", &StepMeter::dropped,
                             "How many waits were too many to be kept.");
}

// As StepMeter in Python. Calls of the driver may take long, and need nothing of Python's.
void bind_device_steps(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<DeviceStepMeter, std::shared_ptr<DeviceStepMeter>>(
      module, "DeviceStepMeter", "Measures the steps of a training as a CUDA device takes them.")
      .def(py::init([](size_t keep, int device) {
             const auto index = static_cast<c10::DeviceIndex>(device);
             return DeviceStepMeter::create(keep, c10::Device(c10::kCUDA, index));
           }),
           py::arg("keep"), py::arg("device"),
           "Remembers so many steps, the last ones, on the device of that number.")
      .def(
          "__enter__",
          [](DeviceStepMeter& self) {
            TORCH_CHECK(self.begin(thread_number()), "step ", self.number(),
                        " of this BubbleMeter has not ended yet");
          },
          Released())
      .def(
          "__exit__",
          [](DeviceStepMeter& self, const py::object& kind, const py::object&, const py::object&) {
            const bool well = kind.is_none();
            const py::gil_scoped_release released;
            self.end(well);
          },
          py::arg("kind"), py::arg("error"), py::arg("traceback"))
      .def(
          "begin_load", [](DeviceStepMeter& self) { self.begin_load(thread_number()); }, Released(),
          "A thread waits for the loader.")
      .def(
          "end_load",
          [](DeviceStepMeter& self, Nanoseconds, bool well) {
            self.end_load(well, thread_number());
          },
          py::arg("begin"), py::arg("well"), Released(),
          "It has waited; that counts if it got something.")
      .def("times", &DeviceStepMeter::times, Released(),
           "Of the steps that are remembered, oldest first; waits until the device has taken them.")
      .def_property_readonly("dropped", &DeviceStepMeter::dropped,
                             "How many waits were too many to be kept.");
}

void bind_threads(py::module_& module) {
  module.def(
      "note_join",
      [](uint64_t joined, Nanoseconds begin) {
        EventLogs& logs = EventLogs::of_process();
        if (!logs.want(EventKind::kJoin)) return;
        Event event;
        event.kind = EventKind::kJoin;
        event.thread = thread_number();
        event.joined = joined;
        event.begin = begin;
        event.end = now_ns();
        logs.note(event);
      },
      py::arg("joined"), py::arg("begin"),
      "This thread has waited since then for the end of another: what that one waited for "
      "meanwhile, this one has waited for.");
  module.def("blocked_threads", &BlockedThread::count, "How many threads are in wait() now.");
}

}  // namespace

void bind_observe(py::module_& module) {
  bind_events(module);
  bind_steps(module);
  bind_device_steps(module);
  bind_threads(module);
}

}  // namespace freescale
