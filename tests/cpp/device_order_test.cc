// In which order messages between device memories move, and what may wait for what: priorities,
// kernels that are loaded at the wrong moment, groups whose operations cross.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpp/transport/cuda_ipc/staging_ring.h"
#include "tests/cpp/check.h"
#include "tests/cpp/device_ranks.h"

namespace freescale::testing {
namespace {

using cuda::SubmissionMode;
using std::chrono::milliseconds;

// Launches in a thread of its own: a first launch returns once the device is idle.
class Launch {
 public:
  Launch(DeviceRank& self, cuda::Stream stream, std::string kernel)
      : thread_([&self, stream, kernel = std::move(kernel)] {
          const cuda::CurrentContext current(*self.device.context());
          CHECK(self.stand_in.launch_kernel(stream, kernel.c_str(), nullptr) ==
                cuda::Code::kSuccess);
        }) {}
  ~Launch() { thread_.join(); }

 private:
  std::thread thread_;
};

// The sender's copies have filled the ring, and its next one waits for room there.
void await_full_ring(DeviceRank& self, uint64_t copies_before) {
  const uint64_t full = copies_before + cuda::StagingRing::kSlots;
  self.stand_in.await([full](const FakeCudaState& now) {
    return now.copies_done >= full && now.polling_waits > 0;
  });
}

void await_launch(DeviceRank& self) {
  self.stand_in.await([](const FakeCudaState& now) { return now.draining_launches > 0; });
}

// ---- Priority -----------------------------------------------------------------------------------

struct Engines {
  SubmissionMode mode;
  const char* order;
};
constexpr Engines kEngines[] = {{SubmissionMode::kAhead, "readiness"},
                                {SubmissionMode::kProxy, "readiness"},
                                {SubmissionMode::kProxy, "head_of_line"}};

// One device, on which copies need multiprocessors.
DeviceSetup setup_on(const Engines& engines) {
  DeviceSetup setup = setup_for({engines.mode, true});
  setup.environment.emplace_back("FAKE_CUDA_ENGINE_ORDER", engines.order);
  setup.environment.emplace_back("FAKE_CUDA_VERSION", "13000");
  return setup;
}

DeviceExchange::Sizes one_way(size_t bytes) {
  return [bytes](int from, int to) { return from == 0 && to == 1 ? bytes : 0; };
}

// No copy gets through on rank 0. So of the bulk no more than its window is let go, and the urgent
// message is let go behind that.
TEST_WITHIN(an_urgent_message_waits_for_the_window_of_bulk_at_most, 60) {
  for (const Engines& engines : kEngines) {
    run_device_ranks(setup_on(engines), [](DeviceRank& self) {
      const bool sends = self.rank.rank() == 0;
      const StandIn::Word until = self.stand_in.word();
      DeviceExchange bulk(self, one_way(2 << 20));  // 32 chunks
      DeviceExchange urgent(self, one_way(1000));
      const cuda::Stream other = self.stand_in.stream();
      bulk.fill(0, self.stream);
      urgent.fill(1, other);
      synchronize(self, self.stream);
      synchronize(self, other);
      if (sends) {
        fill_multiprocessors(self, until);
      }
      const auto waiting = [](int copies) {
        return [copies](const FakeCudaState& now) { return now.sm_waiters == copies; };
      };
      const auto first = self.start(bulk.plan(), self.stream, Priority::kBackground);
      if (sends) self.stand_in.await(waiting(1));
      const auto second = self.start(urgent.plan(), other, Priority::kUrgent);
      if (sends) {
        self.stand_in.await(waiting(2));
        until.store(1);
      }
      CHECK_OK(self.finish(*second));
      CHECK_OK(self.finish(*first));
      bulk.fetch(self.stream);
      urgent.fetch(other);
      synchronize(self, self.stream);
      synchronize(self, other);
      bulk.check(0);
      urgent.check(1);
    });
  }
}

TEST_WITHIN(bulk_comes_to_its_end_under_a_stream_of_urgent_messages, 60) {
  for (const Engines& engines : kEngines) {
    DeviceSetup setup = setup_on(engines);
    setup.options.aging = milliseconds(5);
    run_device_ranks(setup, [](DeviceRank& self) {
      DeviceExchange bulk(self, one_way(1 << 20));
      bulk.fill(0, self.stream);
      synchronize(self, self.stream);
      const auto background = self.start(bulk.plan(), self.stream, Priority::kBackground);
      constexpr size_t kAtOnce = 3;
      const cuda::Stream other = self.stand_in.stream();
      std::vector<std::unique_ptr<DeviceExchange>> exchanges;
      for (size_t i = 0; i < kAtOnce; ++i) {
        exchanges.push_back(std::make_unique<DeviceExchange>(self, one_way(1 << 20)));
      }
      std::vector<std::shared_ptr<DeviceRank::Handle>> urgent(kAtOnce);
      // Both ranks do as many: the sender says how many there were.
      const bool sends = self.rank.rank() == 0;
      for (size_t i = 0;; ++i) {
        auto& handle = urgent[i % kAtOnce];
        if (handle != nullptr) CHECK_OK(self.finish(*handle));
        const std::string turn = "turn " + std::to_string(i);
        if (sends) {
          CHECK_OK(self.events.set(turn, background->done.is_set() || i == 100 ? "last" : "more"));
        }
        const auto said = self.events.get(turn, Deadline::after(std::chrono::seconds(15)));
        CHECK_OK(said);
        if (said.value() == "last") break;
        handle = self.start(exchanges[i % kAtOnce]->plan(), other, Priority::kUrgent);
      }
      CHECK_OK(self.finish(*background));
      for (const auto& handle : urgent) {
        if (handle != nullptr) CHECK_OK(self.finish(*handle));
      }
    });
  }
}

// From 13.1 on the driver has engines for copies within a device.
TEST(messages_between_ranks_on_one_device_need_no_multiprocessors) {
  for (SubmissionMode mode : {SubmissionMode::kAhead, SubmissionMode::kProxy}) {
    DeviceSetup setup = setup_for({mode, true});
    setup.environment.emplace_back("FAKE_CUDA_VERSION", "13010");
    run_device_ranks(setup, [](DeviceRank& self) {
      const StandIn::Word until = self.stand_in.word();
      fill_multiprocessors(self, until);
      expect_works(self);
      until.store(1);
    });
  }
}

// The stream that has called goes on once its own memory is free, received or sent.
TEST_WITHIN(a_stream_waits_until_what_it_sends_may_be_written, 60) {
  for (SubmissionMode mode : {SubmissionMode::kAhead, SubmissionMode::kProxy}) {
    run_device_ranks(setup_on({mode, "readiness"}), [](DeviceRank& self) {
      const bool sends = self.rank.rank() == 0;
      const StandIn::Word until = self.stand_in.word();
      DeviceExchange exchange(self, one_way(150'000));
      exchange.fill(0, self.stream);
      synchronize(self, self.stream);
      if (sends) fill_multiprocessors(self, until);
      const auto handle = self.start(exchange.plan(), self.stream);
      CHECK_OK(self.order(*handle, self.stream));
      if (sends) {
        const uint64_t copies = self.stand_in.state().copies_done;
        exchange.fill(1, self.stream);
        self.stand_in.await([](const FakeCudaState& now) { return now.sm_waiters == 1; });
        for (int i = 0; i < 20; ++i) CHECK_OK(self.rank.barrier());
        CHECK_EQ(self.stand_in.state().copies_done, copies);
        until.store(1);
        synchronize(self, self.stream);
      } else {
        for (int i = 0; i < 20; ++i) CHECK_OK(self.rank.barrier());
        exchange.fetch(self.stream);
        synchronize(self, self.stream);
        exchange.check(0);
      }
      CHECK_OK(self.finish(*handle));
    });
  }
}

// ---- Kernels that are loaded at the wrong moment ------------------------------------------------

// Rank 1's driver is blocked after its call has begun: rank 0 must not be told that nothing needs a
// driver any more, whichever way the bytes go. Large: more than a ring holds.
TEST_WITHIN(a_call_waits_until_both_sides_have_submitted, 60) {
  for (bool direct : {true, false}) {
    for (int sender : {0, 1}) {
      // The sender needs nothing of the receiver's driver.
      if ((direct || over_network()) && sender == 0) continue;
      run_device_ranks(setup_for({SubmissionMode::kAhead, direct}, 2), [sender](DeviceRank& self) {
        const bool blocked = self.rank.rank() == 1;
        const auto sizes = [sender](int from, int to) {
          return from == sender && to != sender ? size_t{6} << 20 : size_t{0};
        };
        expect_works(self);  // the lane is there
        DeviceExchange exchange(self, sizes);
        exchange.fill(0, self.stream);
        synchronize(self, self.stream);
        Result<std::shared_ptr<cuda::CudaCall>> call = self.begin(exchange.plan(), self.stream, {});
        CHECK_OK(call);
        const StandIn::Word held = self.stand_in.word();
        std::unique_ptr<Launch> launch;
        if (blocked) {
          const cuda::Stream stream = self.stand_in.stream();
          self.stand_in.wait(stream, held, 1);
          launch = std::make_unique<Launch>(self, stream, "loaded late");
          await_launch(self);
        }
        const uint64_t copies_before = self.stand_in.state().copies_done;
        const auto handle = self.submit(std::move(call.value()), exchange.plan(), {});
        if (self.rank.rank() == sender && !blocked) await_full_ring(self, copies_before);
        for (int round = 0; round < 20; ++round) CHECK_OK(self.rank.barrier());
        CHECK(!handle->submitted.is_set());
        CHECK_OK(self.rank.barrier());
        held.store(1);
        launch.reset();
        CHECK_OK(self.order(*handle, self.stream));
        exchange.fetch(self.stream);
        synchronize(self, self.stream);
        exchange.check(0);
        CHECK_OK(self.finish(*handle));
      });
    }
  }
}

// Each rank launches a kernel for the first time right after another group's operation.
TEST_WITHIN(kernels_are_loaded_between_operations_of_two_groups, 100) {
  for (bool direct : {true, false}) {
    run_device_ranks(setup_for({SubmissionMode::kAhead, direct}, 2), [](DeviceRank& self) {
      const std::shared_ptr<Group> groups[] = {self.rank.group(), self.rank.new_group("other")};
      const cuda::Stream streams[] = {self.stream, self.stand_in.stream()};
      for (int round = 0; round < 20; ++round) {
        std::vector<std::unique_ptr<DeviceExchange>> exchanges;
        std::vector<std::shared_ptr<DeviceRank::Handle>> handles;
        for (int i : {0, 1}) {
          exchanges.push_back(std::make_unique<DeviceExchange>(self, some_chunks));
          exchanges[i]->fill(round, streams[i]);
          handles.push_back(self.start(exchanges[i]->plan(), streams[i], {.group = groups[i]}));
        }
        for (int step : {0, 1}) {
          const int i = (step + self.rank.rank()) % 2;
          CHECK_OK(self.order(*handles[i], streams[i]));
          const std::string kernel = "kernel " + std::to_string(2 * round + step);
          CHECK(self.stand_in.launch_kernel(streams[i], kernel.c_str(), nullptr) ==
                cuda::Code::kSuccess);
        }
        for (int i : {0, 1}) {
          exchanges[i]->fetch(streams[i]);
          synchronize(self, streams[i]);
          exchanges[i]->check(round);
          CHECK_OK(self.finish(*handles[i]));
        }
      }
    });
  }
}

// Copies that are submitted when they may move cannot be, while the loading waits for them: the
// timeout ends it (docs/adr/0013-two-ways-to-submit-copies.md).
TEST_WITHIN(a_timeout_frees_a_proxy_from_a_kernel_that_is_loaded, 60) {
  for (bool direct : {true, false}) {
    run_device_ranks(setup_for({SubmissionMode::kProxy, direct}, 2), [](DeviceRank& self) {
      expect_works(self);
      const StandIn::Word held = self.stand_in.word();
      DeviceExchange exchange(self, some_chunks);
      exchange.fill(0, self.stream);
      self.stand_in.wait(self.stream, held, 1);
      const auto handle = self.start(exchange.plan(), self.stream, {.timeout = milliseconds(500)});
      CHECK_OK(self.order(*handle, self.stream));
      {
        const Launch launch(self, self.stream, "loaded late");
        await_launch(self);
        CHECK_OK(self.rank.barrier());
        held.store(1);
        expect_text(self.finish(*handle).message(), "Timed out");
      }
      synchronize(self, self.stream);
      expect_works(self);
    });
  }
}

// ---- Operations that cross ----------------------------------------------------------------------

TEST_WITHIN(two_groups_are_used_in_opposite_order, 60) {
  for (const DeviceWay& way : kDeviceWays) {
    run_device_ranks(setup_for(way), [](DeviceRank& self) {
      const std::shared_ptr<Group> groups[] = {self.rank.group(), self.rank.new_group("other")};
      const cuda::Stream streams[] = {self.stream, self.stand_in.stream()};
      for (int round = 0; round < 10; ++round) {
        std::vector<std::unique_ptr<DeviceExchange>> exchanges(2);
        std::vector<std::shared_ptr<DeviceRank::Handle>> handles(2);
        for (int step : {0, 1}) {
          const int i = (step + self.rank.rank()) % 2;
          exchanges[i] = std::make_unique<DeviceExchange>(self, some_chunks);
          exchanges[i]->fill(2 * round + i, streams[i]);
          handles[i] = self.start(
              exchanges[i]->plan(), streams[i],
              {.priority = priority_of_level(round % kPriorityLevels), .group = groups[i]});
        }
        for (int step : {0, 1}) {
          const int i = (step + self.rank.rank()) % 2;
          CHECK_OK(self.order(*handles[i], streams[i]));
          exchanges[i]->fetch(streams[i]);
        }
        for (int i : {0, 1}) {
          synchronize(self, streams[i]);
          exchanges[i]->check(2 * round + i);
          CHECK_OK(self.finish(*handles[i]));
        }
      }
    });
  }
}

// Messages both ways that exceed what a queue and a ring hold: neither side's copies wait for a
// turn behind those of the other way.
TEST_WITHIN(large_messages_go_both_ways_through_the_host, 100) {
  for (SubmissionMode mode : {SubmissionMode::kAhead, SubmissionMode::kProxy}) {
    run_device_ranks(setup_for({mode, false}), [](DeviceRank& self) {
      DeviceExchange exchange(
          self, [](int from, int to) { return from == to ? size_t{0} : size_t{30} << 20; });
      exchange.fill(0, self.stream);
      synchronize(self, self.stream);
      const auto handle = self.start(exchange.plan(), self.stream);
      CHECK_OK(self.finish(*handle));
      exchange.fetch(self.stream);
      synchronize(self, self.stream);
      exchange.check(0);
    });
  }
}

// More than one request of a queue takes.
TEST_WITHIN(a_message_of_many_pieces, 60) {
  for (const DeviceWay& way : kDeviceWays) {
    run_device_ranks(setup_for(way), [](DeviceRank& self) {
      constexpr size_t kPieces = 600, kBytes = 100;
      DeviceExchange exchange(
          self, [](int from, int to) { return from == to ? size_t{0} : kPieces * kBytes; });
      exchange.fill(0, self.stream);
      Plan plan = exchange.plan();
      for (auto* messages : {&plan.sends, &plan.receives}) {
        for (Message& message : *messages) {
          if (message.bytes() == 0) continue;
          std::byte* const base = message.segments[0].data;
          message.segments.clear();
          for (size_t i = 0; i < kPieces; ++i)
            message.segments.push_back({base + i * kBytes, kBytes});
        }
      }
      const auto handle = self.start(std::move(plan), self.stream);
      CHECK_OK(self.order(*handle, self.stream));
      exchange.fetch(self.stream);
      synchronize(self, self.stream);
      exchange.check(0);
      CHECK_OK(self.finish(*handle));
    });
  }
}

}  // namespace
}  // namespace freescale::testing
