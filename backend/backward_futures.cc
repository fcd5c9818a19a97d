#include "backend/backward_futures.h"

#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "cpp/base/clock.h"
#include "cpp/scheduler/event_log.h"

namespace freescale {
namespace {

constexpr int kNoPass = -1;

// The works whose futures were asked for in the pass that this thread is in.
struct Pass {
  int number = kNoPass;
  std::vector<c10::intrusive_ptr<Work>> works;
};
thread_local Pass pass;

// In the order in which they were started, which is that of DDP's waiting.
void note_waits(const std::vector<c10::intrusive_ptr<Work>>& works, Nanoseconds begin) {
  const Nanoseconds end = now_ns();
  for (const auto& work : works) begin = work->note_awaited(begin, end);
}

// Runs before the callbacks that were queued behind it, DDP's among them.
void begin_end_of_pass() {
  auto works = std::exchange(pass, {}).works;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [works = std::move(works), begin = now_ns()] { note_waits(works, begin); });
}

}  // namespace

void note_future_in_backward(const c10::intrusive_ptr<Work>& work) {
  const int number = torch::autograd::get_current_graph_task_id();
  if (number == kNoPass || !EventLogs::of_process().want(EventKind::kWait)) return;
  if (pass.number != number) {
    pass = {number, {}};
    torch::autograd::Engine::get_default_engine().queue_callback(begin_end_of_pass);
  }
  pass.works.push_back(work);
}

}  // namespace freescale
