// Whether the host can end a stream's waiting, whoever holds the driver's lock.

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "cpp/device/ahead_copy_queue.h"
#include "tests/gpu/kernels.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::CurrentContext;
using cuda::DevicePtr;

// As far beyond what anybody waits for as a cyclic word can be.
constexpr uint32_t kPoison = 1u << 30;

// Long enough for a launch to get to the lock. If it does not, the round shows less, and no error.
void let_others_begin() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

double release_idle(const ProbeDevice& device) {
  const cuda::PinnedWord never = device.word();
  const cuda::PinnedWord passed = device.word();
  const cuda::DriverStream stream = device.stream();
  require(stream.wait({never, 7}));
  write(stream, passed, 1);
  let_others_begin();
  expect("a stream waits until its word is written", load(passed) == 0);
  const Nanoseconds begin = now_ns();
  store(never, 7 + kPoison);
  await(passed, 1);
  const double time = static_cast<double>(now_ns() - begin);
  require(stream.synchronize());
  return time;
}

// A launch of a new kernel may hold the lock until the device is idle, which it is not.
double release_locked(const ProbeDevice& device, Kernels& kernels) {
  const cuda::PinnedWord never = device.word();
  const cuda::PinnedWord passed = device.word();
  const cuda::DriverStream stream = device.stream();
  const cuda::Stream other = device.plain_stream();
  require(stream.wait({never, 7}));
  write(stream, passed, 1);
  std::thread launcher([&] {
    const CurrentContext current(device.context());
    require(current.status());
    kernels.launch_new(other);
  });
  let_others_begin();
  const Nanoseconds begin = now_ns();
  store(never, 7 + kPoison);
  await(passed, 1);
  const double time = static_cast<double>(now_ns() - begin);
  launcher.join();
  return time;
}

// The queue of copies as the engine uses it, aborted while nothing was let go.
void abort_queue(const ProbeDevice& device) {
  constexpr size_t kBytes = 8 << 20;
  const std::unique_ptr<cuda::AheadCopyQueue> queue = require(
      cuda::AheadCopyQueue::create(device.context(), device.word(), device.word(), {1 << 20, 0}));
  cuda::CopyRequest request;
  request.pieces = {{reinterpret_cast<DevicePtr>(device.allocate_host(kBytes).host),
                     device.allocate(kBytes), kBytes}};
  require(queue->submit(request));
  expect("no copy moves before it is let go", !queue->drained());
  queue->abort();
  while (!queue->drained()) std::this_thread::yield();
}

void run() {
  const ProbeDevice device;
  const std::unique_ptr<Kernels> kernels = Kernels::create(device);
  fact("from the host's store to what is behind the wait", release_idle(device) / 1e3, "us");
  fact("the same during the first launch of a kernel", release_locked(device, *kernels) / 1e3,
       "us");
  abort_queue(device);
  // What is not released hangs, until the time limit of the row.
  expect("the host ends a stream's waiting, and an aborted queue drains", true);
}

}  // namespace
}  // namespace freescale::probe

int main() { freescale::probe::run(); }
