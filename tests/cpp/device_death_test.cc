// Collectives between device memories when a process ends: killed at each stage of a message, or
// because it is done. And when the driver refuses or fails.

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/check.h"
#include "tests/cpp/device_ranks.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Far beyond the limit of a test: what ends before is not ended by it.
constexpr auto kNever = std::chrono::hours(1);

[[noreturn]] void wait_for_the_end() {
  while (true) pause();
}

// ---- Killed -------------------------------------------------------------------------------------

enum class Stage { kBeforeTheCall, kBehindItsStream, kMidCopy };

// The two that are left go on without rank 2, over the links that they have.
void expect_survivors_go_on(DeviceRank& self) {
  const int other = 1 - self.rank.rank();
  std::vector<std::shared_ptr<Link>> links(2);
  links[other] = self.rank.group()->shared_link(other);
  const auto group = std::make_shared<Group>(4711, "survivors", self.rank.rank(), links);
  self.rank.engine().add_group(group);
  expect_works(self, group);
}

// Its copies wait for multiprocessors, or, where they need none, take hours.
void hold_copies(DeviceRank& self) {
  const StandIn::Word until = self.stand_in.word();
  fill_multiprocessors(self, until);
  for (int nth = 1; nth <= 100; ++nth) self.stand_in.inject("copy_slow", nth, 3'600'000);
}

void be_victim(DeviceRank& self, Stage stage) {
  DeviceExchange exchange(self, some_chunks);
  exchange.fill(0, self.stream);
  synchronize(self, self.stream);
  const auto copies = self.stand_in.state().copies_done;
  if (stage == Stage::kBehindItsStream) self.stand_in.wait(self.stream, self.stand_in.word(), 1);
  if (stage == Stage::kMidCopy) hold_copies(self);
  std::shared_ptr<DeviceRank::Handle> handle;
  if (stage != Stage::kBeforeTheCall) {
    handle = self.start(exchange.plan(), self.stream, {.timeout = kNever});
    CHECK(self.rank.engine().wait(handle->submitted, Deadline::after(seconds(15))));
  }
  CHECK_EQ(self.stand_in.state().copies_done, copies);
  self.events.announce("victim is there");
  wait_for_the_end();
}

void survive(DeviceRank& self, Stage stage) {
  DeviceExchange exchange(self, some_chunks);
  exchange.fill(0, self.stream);
  const auto handle = self.start(exchange.plan(), self.stream, {.timeout = kNever});
  if (stage != Stage::kBeforeTheCall) CHECK_OK(self.order(*handle, self.stream));
  self.events.announce("survivor " + std::to_string(self.rank.rank()));
  const Status status = end(self, *handle);
  CHECK(!status.ok());
  expect_text(status.message(), {"rank 2", "all_to_all_single #1"});
  synchronize(self, self.stream);
  expect_survivors_go_on(self);
}

void kill_rank_2(const DeviceWay& way, Stage stage) {
  DeviceRankProcesses ranks(setup_for(way, 3), [stage](DeviceRank& self) {
    self.rank.rank() == 2 ? be_victim(self, stage) : survive(self, stage);
  });
  ranks.events().await("victim is there");
  for (int rank : {0, 1}) ranks.events().await("survivor " + std::to_string(rank));
  ranks[2].signal(SIGKILL);
  ranks[2].expect_killed_by(SIGKILL);
  ranks.expect_success({2});
}

TEST_WITHIN(a_rank_is_killed_before_it_calls, 60) {
  for (const DeviceWay& way : kDeviceWays) kill_rank_2(way, Stage::kBeforeTheCall);
}

TEST_WITHIN(a_rank_is_killed_before_its_stream_gets_there, 60) {
  for (const DeviceWay& way : kDeviceWays) kill_rank_2(way, Stage::kBehindItsStream);
}

TEST_WITHIN(a_rank_is_killed_in_the_middle_of_its_copies, 60) {
  for (const DeviceWay& way : kDeviceWays) kill_rank_2(way, Stage::kMidCopy);
}

// Nothing comes back from it that its sender would miss.
TEST_WITHIN(a_receiver_is_killed_before_its_stream_gets_there, 60) {
  for (const DeviceWay& way : kDeviceWays) {
    DeviceRankProcesses ranks(setup_for(way, 2), [](DeviceRank& self) {
      const bool receives = self.rank.rank() == 1;
      DeviceExchange exchange(self, [](int from, int to) {
        return from == 0 && to == 1 ? size_t{6} << 20 : size_t{0};  // more than a ring holds
      });
      exchange.fill(0, self.stream);
      if (receives) self.stand_in.wait(self.stream, self.stand_in.word(), 1);
      const auto handle = self.start(exchange.plan(), self.stream, {.timeout = kNever});
      CHECK(self.rank.engine().wait(handle->submitted, Deadline::after(seconds(15))));
      if (receives) {
        self.events.announce("receiver");
        wait_for_the_end();
      }
      self.events.announce("sender");
      expect_text(end(self, *handle).message(), {"rank 1", "all_to_all_single #1"});
      synchronize(self, self.stream);
    });
    ranks.events().await("receiver");
    ranks.events().await("sender");
    ranks[1].signal(SIGKILL);
    ranks[1].expect_killed_by(SIGKILL);
    ranks.expect_success({1});
  }
}

// ---- Done ---------------------------------------------------------------------------------------

// Rank 0 has sent and ends; rank 1 learns of both at once, or of the end before it has come to the
// message.
TEST_WITHIN(a_sender_ends_that_is_done, 60) {
  for (bool stopped : {true, false}) {
    for (const DeviceWay& way : kDeviceWays) {
      DeviceRankProcesses ranks(setup_for(way, 2), [stopped](DeviceRank& self) {
        DeviceExchange exchange(self, [](int from, int to) {
          return from == 0 && to == 1 ? size_t{150'000} : size_t{0};
        });
        exchange.fill(0, self.stream);
        const auto handle = self.start(exchange.plan(), self.stream, {.timeout = kNever});
        if (self.rank.rank() == 1) {
          CHECK(self.rank.engine().wait(handle->submitted, Deadline::after(seconds(15))));
          synchronize(self, self.stream);  // its memory is ready
          if (stopped) self.events.announce("receiver is there");
          CHECK_OK(self.order(*handle, self.stream));
          exchange.fetch(self.stream);
          synchronize(self, self.stream);
          exchange.check(0);
        } else if (stopped) {
          self.events.await("receiver is stopped");
        }
        CHECK_OK(end(self, *handle));
      });
      if (stopped) {
        ranks.events().await("receiver is there");
        ranks[1].signal(SIGSTOP);
        ranks.events().announce("receiver is stopped");
        ranks[0].expect_success();
        ranks[1].signal(SIGCONT);
      } else {
        ranks[0].expect_success();
      }
      ranks[1].expect_success();
    }
  }
}

// One of three is done early, and gone, while the others still copy.
TEST_WITHIN(a_rank_ends_while_others_go_on, 60) {
  for (const DeviceWay& way : kDeviceWays) {
    run_device_ranks(setup_for(way, 3), [](DeviceRank& self) {
      for (int nth = 1; nth <= 20; ++nth) self.stand_in.inject("copy_slow", nth, 5);
      DeviceExchange exchange(self, [](int from, int to) {
        return from == 0 || to == 0 ? size_t{1000} : size_t{900'000};
      });
      exchange.fill(0, self.stream);
      const auto handle = self.start(exchange.plan(), self.stream);
      CHECK_OK(self.order(*handle, self.stream));
      exchange.fetch(self.stream);
      synchronize(self, self.stream);
      exchange.check(0);
      CHECK_OK(end(self, *handle));
    });
  }
}

// ---- The driver ---------------------------------------------------------------------------------

// An exchange during which rank 0's driver fails at something; another one waits for rank 1's
// stream meanwhile. Both fail on both ranks, for the reason that rank 0 has.
void fail_on_rank_0(DeviceRank& self, const char* fault, int code, std::string_view call) {
  const auto other = self.rank.new_group("other");
  const bool faulty = self.rank.rank() == 0;
  const StandIn::Word held = self.stand_in.word();
  const cuda::Stream streams[] = {self.stand_in.stream(), self.stream};
  std::vector<std::unique_ptr<DeviceExchange>> exchanges;
  std::vector<std::shared_ptr<DeviceRank::Handle>> handles;
  for (int i : {0, 1}) {
    exchanges.push_back(std::make_unique<DeviceExchange>(self, some_chunks));
    exchanges[i]->fill(i, streams[i]);
    synchronize(self, streams[i]);
    if (i == 0 && !faulty) self.stand_in.wait(streams[0], held, 1);
    const DeviceRank::Call how{.group = i == 0 ? other : nullptr, .timeout = kNever};
    auto begun = self.begin(exchanges[i]->plan(), streams[i], how);
    CHECK_OK(begun);
    // Not before: a copy of the first exchange may be the one that fails, and then no call begins.
    if (i == 1 && faulty) self.stand_in.inject(fault, 1, code);
    handles.push_back(self.submit(std::move(begun.value()), exchanges[i]->plan(), how));
    static_cast<void>(self.order(*handles[i], streams[i]));
  }
  for (int i : {0, 1}) {
    const Status status = end(self, *handles[i]);
    CHECK(!status.ok());
    expect_text(status.message(), {"all_to_all_single", "rank 0", call});
  }
  held.store(1);
  for (const cuda::Stream stream : streams) {
    const Status drained = self.stand_in.driver().stream_synchronize(stream);
    CHECK(drained.ok() || faulty);
  }
  // No call begins on the device that is lost.
  if (faulty) CHECK(!self.begin(exchanges[0]->plan(), self.stream, {}).ok());
}

TEST_WITHIN(a_copy_is_refused, 60) {
  for (const DeviceWay& way : kDeviceWays) {
    run_device_ranks(setup_for(way), [](DeviceRank& self) {
      fail_on_rank_0(self, "copy_refused", 999, "cuMemcpy");
      // No stream waits for ever: this waits for them all.
      CHECK(self.stand_in.launch_kernel(self.stream, "later", nullptr) == cuda::Code::kSuccess);
      synchronize(self, self.stream);
    });
  }
}

TEST_WITHIN(a_copy_fails_and_its_context_with_it, 60) {
  for (const DeviceWay& way : kDeviceWays) {
    run_device_ranks(setup_for(way), [](DeviceRank& self) {
      fail_on_rank_0(self, "copy_fails", 700, "CUDA_ERROR_ILLEGAL_ADDRESS");
    });
  }
}

TEST_WITHIN(memory_of_a_peer_cannot_be_opened, 60) {
  for (cuda::SubmissionMode mode : {cuda::SubmissionMode::kAhead, cuda::SubmissionMode::kProxy}) {
    run_device_ranks(setup_for({mode, true}), [](DeviceRank& self) {
      if (self.rank.rank() == 0) self.stand_in.inject("ipc_denied", 1, 304);
      DeviceExchange exchange(self, some_chunks);
      exchange.fill(0, self.stream);
      const auto handle = self.start(exchange.plan(), self.stream, {.timeout = kNever});
      static_cast<void>(self.order(*handle, self.stream));
      expect_text(end(self, *handle).message(),
                  {"rank 0", "all_to_all_single #1", "cuIpcOpenMemHandle"});
      synchronize(self, self.stream);
      // That was once.
      expect_works(self);
    });
  }
}

// The stream of its user never says that it is there, as far as anybody can see.
TEST_WITHIN(the_write_of_a_word_is_lost, 60) {
  for (const DeviceWay& way : kDeviceWays) {
    run_device_ranks(setup_for(way), [](DeviceRank& self) {
      DeviceExchange exchange(self, some_chunks);
      exchange.fill(0, self.stream);
      synchronize(self, self.stream);
      if (self.rank.rank() == 0) self.stand_in.inject("write_lost", 1);
      const auto handle = self.start(exchange.plan(), self.stream, {.timeout = milliseconds(300)});
      static_cast<void>(self.order(*handle, self.stream));
      expect_text(end(self, *handle).message(), {"all_to_all_single #1", "Timed out"});
      synchronize(self, self.stream);
      expect_works(self);
    });
  }
}

// The stream of a lane stops for good: what was asked of it fails, and the process ends.
TEST_WITHIN(a_wait_hangs, 60) {
  for (bool direct : {true, false}) {
    run_device_ranks(setup_for({cuda::SubmissionMode::kAhead, direct}), [](DeviceRank& self) {
      DeviceExchange exchange(
          self, [](int from, int to) { return from == to ? size_t{0} : some_chunks(from, to); });
      exchange.fill(0, self.stream);
      synchronize(self, self.stream);
      if (self.rank.rank() == 0) self.stand_in.inject("wait_hung", 1);
      const auto handle = self.start(exchange.plan(), self.stream, {.timeout = milliseconds(300)});
      static_cast<void>(self.order(*handle, self.stream));
      expect_text(end(self, *handle).message(), {"all_to_all_single #1", "Timed out"});
      synchronize(self, self.stream);
    });
  }
}

}  // namespace
}  // namespace freescale::testing
