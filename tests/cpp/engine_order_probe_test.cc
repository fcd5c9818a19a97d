// The probe for copy engines that are held up by a copy that waits, on the stand-in driver.

#include "cpp/device/engine_order_probe.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::Environment;
using testing::Footprint;
using testing::on_each_version;
using testing::on_stand_in;
using testing::StandIn;
using namespace std::chrono_literals;

// A stream of the stand-in has a thread from its first work on.
Stream stream_with_thread(const StandIn& stand_in) {
  const Stream stream = stand_in.stream();
  stand_in.signal(stream, stand_in.word(), 1);
  CHECK_OK(stand_in.driver().stream_synchronize(stream));
  return stream;
}

// Descriptors are device memory here, and threads are streams. One stream there is in any case, as
// a sanitizer gets a thread of its own with the first.
Footprint footprint(const StandIn& stand_in) {
  stream_with_thread(stand_in);
  return Footprint::now();
}

void expect_nothing_left(const StandIn& stand_in, const Footprint& before) {
  expect_footprint(before);
  CHECK_EQ(stand_in.state().polling_waits, 0);
  CHECK_EQ(stand_in.state().blocked_copies, 0);
}

// With more and more time, until it is enough on this machine.
Result<bool> probe(const StandIn& stand_in, int streams) {
  for (auto patience = 200ms;; patience *= 2) {
    const Result<bool> blocked =
        blocks_at_head(stand_in.context(), Deadline::after(patience), streams);
    if (blocked.status().code() != StatusCode::kTimedOut) return blocked;
  }
}

TEST(engines_that_take_copies_as_they_become_ready_are_not_blocked) {
  on_each_version({{"FAKE_CUDA_ENGINE_ORDER", "readiness"}}, [](StandIn& stand_in) {
    const Footprint before = footprint(stand_in);
    for (int streams : {1, 8, 40}) {
      const Result<bool> blocked = blocks_at_head(stand_in.context(), Deadline::after(1h), streams);
      CHECK_OK(blocked);
      CHECK(!blocked.value());
      expect_nothing_left(stand_in, before);
    }
  });
}

TEST(engines_with_a_head_of_line_are_blocked) {
  // With engines of their own for some kinds of copies, or one for all.
  for (const char* engines : {"1", "3", "4"}) {
    const Environment environment = {{"FAKE_CUDA_ENGINE_ORDER", "head_of_line"},
                                     {"FAKE_CUDA_ENGINES", engines}};
    on_stand_in(environment, [](StandIn& stand_in) {
      const Footprint before = footprint(stand_in);
      const Result<bool> blocked = probe(stand_in, 3);
      CHECK_OK(blocked);
      CHECK(blocked.value());
      expect_nothing_left(stand_in, before);
    });
  }
}

TEST(a_device_that_is_too_busy_says_nothing_about_its_engines) {
  on_each_version({}, [](StandIn& stand_in) {
    const StandIn::Word end = stand_in.word();
    CHECK(stand_in.launch_kernel(stand_in.stream(), "spin", end.host) == Code::kSuccess);
    stand_in.await([](const FakeCudaState& state) { return state.running_kernels == 1; });
    const Footprint before = footprint(stand_in);
    const Deadline deadline = Deadline::after(50ms);
    std::thread ending([&] {
      while (!deadline.passed(now_ns())) std::this_thread::sleep_for(deadline.left());
      end.store(1);
    });
    const Result<bool> blocked = blocks_at_head(stand_in.context(), deadline);
    CHECK(blocked.status().code() == StatusCode::kTimedOut);
    ending.join();
    expect_nothing_left(stand_in, before);
  });
}

// The launch of another thread holds the lock until all streams have drained, that of the probe
// included, whose own thread then cannot let it go.
TEST(the_probe_ends_although_a_launch_holds_the_lock) {
  on_stand_in({{"FAKE_CUDA_ENGINE_ORDER", "head_of_line"}}, [](StandIn& stand_in) {
    const Stream kernels = stream_with_thread(stand_in);
    const Footprint before = footprint(stand_in);
    std::atomic<bool> launched = false;
    std::thread launching([&] {
      stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
      launched = true;
      const CurrentContext scope(stand_in.context());
      CHECK(stand_in.launch_kernel(kernels, "first", nullptr) == Code::kSuccess);
    });
    while (!launched) {
      const Result<bool> blocked = probe(stand_in, 8);
      CHECK_OK(blocked);
      CHECK(blocked.value());
    }
    launching.join();
    expect_nothing_left(stand_in, before);
  });
}

TEST(a_failure_leaves_nothing_behind) {
  // Three copies of each of three streams to warm up, then as many again, the first ones behind a
  // wait.
  for (int nth : {1, 9, 10, 13, 18}) {
    on_stand_in({}, [nth](StandIn& stand_in) {
      const Footprint before = footprint(stand_in);
      stand_in.inject("copy_refused", nth, static_cast<int>(Code::kOutOfMemory));
      const Result<bool> blocked = blocks_at_head(stand_in.context(), Deadline::after(1h), 2);
      CHECK(blocked.status().message().ends_with(": CUDA_ERROR_OUT_OF_MEMORY (2)"));
      expect_nothing_left(stand_in, before);
      CHECK_OK(blocks_at_head(stand_in.context(), Deadline::after(1h), 2));
    });
  }
}

}  // namespace
}  // namespace freescale::cuda
