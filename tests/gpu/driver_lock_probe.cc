// Which calls of the driver return while another thread is in a call that may hold the driver's
// lock. A stream waits for a word all the time, so that the device is not idle.

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/kernels.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::CurrentContext;
using cuda::DevicePtr;
using cuda::Stream;

constexpr size_t kBytes = 1 << 20;
// More than any driver's queue of a stream holds.
constexpr int kManyLaunches = 5000;

// What the first thread does, and what it needs for it.
struct Scene {
  const ProbeDevice& device;
  Kernels& kernels;
  Stream waiting;  // it waits for the word
  Stream free;
  DevicePtr memory;
  std::vector<std::byte>& pageable;
};

struct Holder {
  std::string name;
  std::function<void(const Scene&)> act;
};

std::vector<Holder> holders() {
  return {
      {"nothing", [](const Scene&) {}},
      {"cuStreamSynchronize of the waiting stream",
       [](const Scene& on) { require(on.device.driver().stream_synchronize(on.waiting)); }},
      {"cuMemAlloc", [](const Scene& on) { on.device.allocate(kBytes); }},
      {"cuMemFree", [](const Scene& on) { require(on.device.driver().mem_free(on.memory)); }},
      {"cuMemHostAlloc", [](const Scene& on) { on.device.allocate_host(kBytes); }},
      {"a copy to pageable memory",
       [](const Scene& on) {
         const auto to = reinterpret_cast<DevicePtr>(on.pageable.data());
         require(on.device.driver().memcpy_async(to, on.memory, kBytes, on.free));
       }},
      {"the first launch of a kernel", [](const Scene& on) { on.kernels.launch_new(on.free); }},
      {"5000 launches behind the wait",
       [](const Scene& on) {
         for (int i = 0; i < kManyLaunches; ++i) on.kernels.launch(on.waiting);
       }},
  };
}

struct Call {
  const char* name;
  std::function<void()> make;
};

// What the second thread calls, on a stream and memory of its own.
class Calls {
 public:
  explicit Calls(const ProbeDevice& device)
      : driver_(device.driver()),
        stream_(device.plain_stream()),
        memory_(device.allocate(kBytes)),
        host_(device.allocate_host(kBytes)),
        word_(device.word()) {
    require(driver_.event_create(&event_, cuda::kEventDisableTiming));
    // Each once, so that nothing is new.
    for (const Call& call : list()) call.make();
    require(driver_.stream_synchronize(stream_));
  }

  std::array<Call, 5> list() const {
    return {{
        {"copy",
         [this] {
           const auto host = reinterpret_cast<DevicePtr>(host_.host);
           require(driver_.memcpy_async(memory_, host, kBytes, stream_));
         }},
        {"write of a word",
         [this] {
           require(driver_.stream_write_value32(stream_, word_.device, 1, cuda::kWriteDefault));
         }},
        {"wait for a word",
         [this] {
           require(
               driver_.stream_wait_value32(stream_, word_.device, 1, cuda::kWaitGreaterOrEqual));
         }},
        {"event record", [this] { require(driver_.event_record(event_, stream_)); }},
        // Busy or not: what counts is that it returns.
        {"stream query", [this] { static_cast<void>(driver_.stream_query.code(stream_)); }},
    }};
  }

 private:
  const cuda::Driver& driver_;
  const Stream stream_;
  const DevicePtr memory_;
  const ProbeDevice::Host host_;
  const cuda::PinnedWord word_;
  cuda::Event event_ = nullptr;
};

// A thread of the probe with the context current, and how far it is.
class Actor {
 public:
  Actor(const ProbeDevice& device, std::vector<std::function<void()>> steps)
      : thread_([this, &device, steps = std::move(steps)] {
          const CurrentContext current(device.context());
          require(current.status());
          begun_ = true;
          for (const auto& step : steps) {
            step();
            ++done_;
          }
        }) {}
  ~Actor() { thread_.join(); }
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  bool has_begun() const { return begun_; }
  size_t done() const { return done_; }

 private:
  std::atomic<bool> begun_ = false;
  std::atomic<size_t> done_ = 0;
  std::thread thread_;  // last: it uses the others
};

template <typename Condition>
void await_until(Deadline deadline, Condition condition) {
  while (!condition() && !deadline.passed(now_ns())) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void try_holder(const ProbeDevice& device, Kernels& kernels, const Holder& holder,
                std::chrono::nanoseconds patience) {
  const Calls calls(device);
  const cuda::PinnedWord go = device.word();
  std::vector<std::byte> pageable(kBytes);
  const Scene scene{
      device,  kernels, device.plain_stream(), device.plain_stream(), device.allocate(kBytes),
      pageable};
  require(
      device.driver().stream_wait_value32(scene.waiting, go.device, 1, cuda::kWaitGreaterOrEqual));
  std::string blocked;
  bool first_returned = false;
  {
    const Actor first(device, {[&] { holder.act(scene); }});
    await_until(Deadline::never(), [&] { return first.has_begun(); });
    await_until(Deadline::after(patience), [&] { return first.done() == 1; });
    std::vector<std::function<void()>> steps;
    for (const Call& call : calls.list()) steps.push_back(call.make);
    const Actor second(device, steps);
    await_until(Deadline::after(patience), [&] { return second.done() == steps.size(); });
    const size_t returned = second.done();
    if (returned < steps.size()) blocked = calls.list()[returned].name;
    first_returned = first.done() == 1;
    // Never a call of the driver: this is what must always end a wait.
    store(go, 1);
  }
  require(device.driver().stream_synchronize(scene.waiting));
  fact("while a thread does: " + holder.name,
       std::string(blocked.empty() ? "others' calls return"
                                   : "another thread hangs in: " + blocked) +
           (first_returned ? "" : "; the thread itself hangs"));
}

void run(bool brief) {
  const ProbeDevice device;
  const std::unique_ptr<Kernels> kernels = Kernels::create(device);
  const auto patience = std::chrono::milliseconds(brief ? 50 : 500);
  for (const Holder& holder : holders()) try_holder(device, *kernels, holder, patience);
  // Nobody comes here who has waited for ever.
  expect("the host's store of a word ends all of these", true);
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) { freescale::probe::run(freescale::probe::is_short(argc, argv)); }
