#include "backend/backward_futures.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "cpp/base/clock.h"
#include "cpp/scheduler/event_log.h"

namespace freescale {
namespace {

constexpr int kNoPass = -1;

using Works = std::vector<c10::intrusive_ptr<Work>>;

// By the number of the pass, the works whose futures were asked for in those that are under way. A
// pass keeps its own, in its callback, and lets go of them if it raises. What it computes on a
// device another thread computes than the one that ends it.
struct Passes {
  std::mutex mutex;  // guards the next one, and the works
  std::map<int, std::weak_ptr<Works>> works;
};

// Never destroyed: works may be in flight after the destructors of static objects have run.
Passes& passes() {
  static auto* const instance = new Passes();
  return *instance;
}

// What the end of a pass waits for, from its beginning on.
struct Wait {
  Works works;  // as they were started, which is DDP's order
  Nanoseconds begin = 0;
  StreamWait on_stream;

  explicit Wait(Works awaited)
      : works(std::move(awaited)),
        begin(now_ns()),
        on_stream(std::any_of(works.begin(), works.end(),
                              [](const auto& work) { return work->on_device(); })) {}

  void over() {
    ProfilerRange::end_those_over();
    const Nanoseconds end = now_ns();
    std::vector<AwaitedCall> calls;
    for (const auto& work : works) {
      begin = work->note_awaited(begin, end);
      calls.push_back(work->awaited_call());
    }
    on_stream.over(calls);
  }
};

// Runs before the callbacks that were queued behind it, DDP's among them.
void begin_end_of_pass(Works& works) {
  Works taken;
  {
    const std::lock_guard lock(passes().mutex);
    taken = std::exchange(works, {});
  }
  auto wait = std::make_shared<Wait>(std::move(taken));
  torch::autograd::Engine::get_default_engine().queue_callback([wait] { wait->over(); });
}

}  // namespace

void note_future_in_backward(const c10::intrusive_ptr<Work>& work) {
  const int number = torch::autograd::get_current_graph_task_id();
  if (number == kNoPass) return;
  if (!EventLogs::of_process().want(EventKind::kWait) && !StreamWait::any_meter()) return;
  std::shared_ptr<Works> works;
  bool first = false;
  {
    const std::lock_guard lock(passes().mutex);
    std::erase_if(passes().works, [](const auto& known) { return known.second.expired(); });
    std::weak_ptr<Works>& known = passes().works[number];
    works = known.lock();
    first = works == nullptr;
    if (first) known = works = std::make_shared<Works>();
    works->push_back(work);
  }
  if (!first) return;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [works] { begin_end_of_pass(*works); });
}

}  // namespace freescale
