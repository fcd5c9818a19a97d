// The Python module freescale_pg._C. Only this file and bind_*.cc know pybind11.

#include <chrono>
#include <thread>
#include <tuple>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/backend.h"
#include "backend/bind_balance.h"
#include "backend/bind_observe.h"
#include "backend/device_reducer.h"
#include "backend/flight_dump.h"
#include "backend/interpreter.h"
#include "backend/options.h"
#include "backend/priority.h"
#include "backend/process_engine.h"

namespace py = pybind11;

namespace freescale {
namespace {

Priority priority_from(int value) {
  TORCH_CHECK_VALUE(is_priority(value), "freescale: priority ", value,
                    " does not exist; priorities are -2 (urgent) to 2 (background)");
  return static_cast<Priority>(value);
}

std::optional<int> number_of(std::optional<Priority> priority) {
  if (!priority) return std::nullopt;
  return static_cast<int>(*priority);
}

using Microseconds = std::chrono::microseconds;

std::optional<Microseconds> checked_aging(std::optional<Microseconds> aging) {
  TORCH_CHECK_VALUE(!aging || aging->count() > 0, "freescale: aging must be longer than zero, got ",
                    aging->count(), " us");
  return aging;
}

constexpr double kSecond = 1e9;  // in nanoseconds

void bind_options(py::module_& module) {
  using Options = BackendOptions;
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(
      module, "Options", "Settings of one process group.")
      .def(py::init([](int priority, std::chrono::milliseconds timeout,
                       std::optional<Microseconds> aging, std::optional<std::string> reductions,
                       bool eager) {
             return c10::make_intrusive<Options>(priority_from(priority), timeout,
                                                 checked_aging(aging), std::move(reductions),
                                                 eager);
           }),
           py::arg("priority") = 0, py::arg("timeout") = kBackendDefaultTimeout,
           py::arg("aging") = py::none(), py::arg("reductions") = py::none(),
           py::arg("eager") = true)
      .def_property(
          "priority", [](const Options& self) { return static_cast<int>(self.priority); },
          [](Options& self, int priority) { self.priority = priority_from(priority); },
          "Of the group's collectives where the calling thread sets none, -2 to 2.")
      .def_property(
          "aging", [](const Options& self) { return self.aging; },
          [](Options& self, std::optional<Microseconds> aging) {
            self.aging = checked_aging(aging);
          },
          "How long an operation waits before it climbs one priority level. None: whatever the "
          "process has.")
      .def_readwrite("reductions", &Options::reductions,
                     "Who combines CUDA tensors, \"nccl\" or \"exchange\". None: NCCL where there "
                     "is one.")
      .def_readwrite(
          "eager", &Options::eager,
          "Whether a group's members are connected when it is made, or by the first call "
          "that each makes on it.")
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def(
          "__deepcopy__",
          [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); },
          py::arg("memo"));
}

void bind_backend(py::module_& module) {
  using Links = std::vector<std::tuple<int, std::string, std::string>>;
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(
      module, "Backend", "One rank's end of a process group.")
      .def(py::init<const c10::intrusive_ptr<c10d::Store>&, int, int,
                    const c10::intrusive_ptr<BackendOptions>&>(),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
           py::call_guard<py::gil_scoped_release>(),
           "Connects to the other members, now or with the first call; blocks until all are there "
           "or "
           "the options' timeout has passed.")
      .def_property_readonly("options", &Backend::live_options, "The group's settings.")
      .def("get_error", &Backend::getError, "What went wrong first on this group, if anything.")
      .def(
          "_set_default_timeout",
          [](Backend& self, std::chrono::milliseconds timeout) { self.setTimeout(timeout); },
          py::arg("timeout"), "Sets the timeout of later operations.")
      .def(
          "perform_nocolor_split", [](Backend&, const py::object&) {}, py::arg("device"),
          "Does nothing: ranks outside a split need not take part in it.")
      .def("comm_split_count", &Backend::split_count, "How many groups were split off this one.")
      .def(
          "links",
          [](const Backend& self) {
            Links links;
            for (const LinkReport& link : self.links()) {
              links.emplace_back(link.rank, link.transport, link.reason);
            }
            return links;
          },
          "(rank, transport, why) for every member; empty before they are connected.");

  module.def("_set_ucx_candidates", &ProcessEngine::set_ucx_candidates, py::arg("paths"),
             "Sets where else UCX may be: paths of libucp.so.0.");
  module.def(
      "_set_device_reducer_factory",
      // Not as a std::function, whose annotation allows neither None nor plain int.
      [](const py::function& factory) {
        set_device_reducer_factory(factory.cast<DeviceReducerFactory>());
      },
      py::arg("factory"),
      "Sets what makes the backend that combines a new group's CUDA tensors, of store, rank, "
      "size and options; it returns None where the group's exchanges are to do it.");
}

void bind_statistics(py::module_& module) {
  py::class_<OpStatistics>(module, "OpStatistics", "Totals of one operation at one priority.")
      .def_property_readonly("op", [](const OpStatistics& row) { return op_name(row.op); })
      .def_property_readonly("priority",
                             [](const OpStatistics& row) { return static_cast<int>(row.priority); })
      .def_readonly("calls", &OpStatistics::calls)
      .def_readonly("bytes_sent", &OpStatistics::bytes_sent)
      .def_readonly("bytes_received", &OpStatistics::bytes_received)
      .def_property_readonly(
          "blocked_seconds",
          [](const OpStatistics& row) { return static_cast<double>(row.blocked) / kSecond; })
      .def_property_readonly("in_flight_seconds", [](const OpStatistics& row) {
        return static_cast<double>(row.in_flight) / kSecond;
      });
  module.def("statistics", &ProcessEngine::statistics,
             "Totals of this process by operation and priority.",
             py::call_guard<py::gil_scoped_release>());
  py::class_<LinkStatistics>(module, "LinkStatistics",
                             "What has travelled between this rank and another one.")
      .def_readonly("peer", &LinkStatistics::peer, "Of all ranks.")
      .def_readonly("bytes_sent", &LinkStatistics::bytes_sent)
      .def_readonly("bytes_received", &LinkStatistics::bytes_received);
  module.def("link_statistics", &ProcessEngine::link_statistics,
             "Totals of this process by the other rank.", py::call_guard<py::gil_scoped_release>());
  module.def("reset_statistics", &ProcessEngine::reset_statistics, "Sets all totals to zero.",
             py::call_guard<py::gil_scoped_release>());
}

void bind_flight_recorder(py::module_& module) {
  module.def("flight_dump", &flight_dump,
             "The recorded calls of this process as JSON (see freescale_pg.debug).",
             py::call_guard<py::gil_scoped_release>());
}

void bind_priority(py::module_& module) {
  module.def(
      "set_thread_priority",
      [](std::optional<int> priority) {
        std::optional<Priority> chosen;
        if (priority) chosen = priority_from(*priority);
        return number_of(set_thread_priority(chosen));
      },
      py::arg("priority"),
      "Sets the priority of this thread's calls, or with None takes it back. Returns the previous "
      "one.");
}

// At the end of the program nothing may call into Python any more, and no peer should wait for this
// process: groups that the program did not destroy are closed before the interpreter goes.
void close_groups_at_exit() {
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const auto threads = py::module_::import("threading").attr("active_count")().cast<int>();
    const py::gil_scoped_release release;
    ProcessEngine::close_all_groups("the process exits without destroy_process_group()");
    // Daemon threads that wait, or are about to, return to Python now. One that asks for the
    // interpreter when that is already gone is ended by CPython in a way that takes the process
    // with it (std::terminate).
    if (threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }));
}

// Python's handlers run on its main thread only; others need not ask for the interpreter's lock.
unsigned long main_thread = 0;

void run_signal_handlers() {
  if (PyThread_get_thread_ident() != main_thread) return;
  const py::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void find_main_thread() {
  const py::object thread = py::module_::import("threading").attr("main_thread")();
  main_thread = thread.attr("ident").cast<unsigned long>();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "The freescale backend of torch.distributed.";
  // Defines the base classes.
  py::module_::import("torch._C._distributed_c10d");
  set_without_interpreter_lock([](const std::function<void()>& body) {
    if (PyGILState_Check() == 0) {
      body();
      return;
    }
    const py::gil_scoped_release release;
    body();
  });
  find_main_thread();
  set_signal_check(&run_signal_handlers);
  bind_options(module);
  bind_backend(module);
  bind_statistics(module);
  bind_flight_recorder(module);
  bind_priority(module);
  bind_observe(module);
  bind_balance(module);
  close_groups_at_exit();
}

}  // namespace freescale
