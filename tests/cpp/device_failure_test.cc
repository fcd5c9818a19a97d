// Collectives between device memories that fail while all ranks live: who disagrees, comes too
// late, leaves or is refused. Each time both ranks are told why, streams drain, no memory is let go
// of that a copy may touch, and the next collective works.

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpp/transport/cuda_ipc/aside_messages.h"
#include "tests/cpp/check.h"
#include "tests/cpp/device_ranks.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;

void on_each_way(int size, const DeviceBody& body) {
  for (const DeviceWay& way : kDeviceWays) run_device_ranks(setup_for(way, size), body);
}

// The next collectives, on the same group and on a new one, on all levels that were used.
void expect_goes_on(DeviceRank& self) {
  expect_works(self);
  expect_works(self, self.rank.new_group("fresh"));
}

// ---- Ranks that disagree ------------------------------------------------------------------------

// Both ranks fail, and say what they disagree about; nothing has moved.
void disagree(DeviceRank& self, const DeviceExchange::Sizes& sizes, std::string_view dtype,
              std::initializer_list<std::string_view> parts) {
  DeviceExchange exchange(self, sizes);
  exchange.fill(0, self.stream);
  Plan plan = exchange.plan();
  plan.signature.set_dtype(dtype);
  const auto handle = self.start(std::move(plan), self.stream);
  static_cast<void>(self.order(*handle, self.stream));
  exchange.fetch(self.stream);
  synchronize(self, self.stream);
  const Status status = end(self, *handle);
  CHECK(!status.ok());
  expect_text(status.message(), parts);
  expect_text(status.message(), {"rank 0", "rank 1", "all_to_all_single #1"});
  CHECK(exchange.untouched());
  expect_goes_on(self);
}

TEST_WITHIN(ranks_disagree_about_a_size, 60) {
  on_each_way(2, [](DeviceRank& self) {
    const size_t announced = self.rank.rank() == 0 ? 100'000 : 200'000;
    const auto sizes = [announced](int from, int to) {
      if (from == to) return size_t{0};  // a rank's own copy needs no peer
      return from == 0 ? announced : 300'000;
    };
    disagree(self, sizes, "uint8", {"100000 bytes", "200000 bytes"});
  });
}

TEST_WITHIN(ranks_disagree_about_a_dtype, 60) {
  on_each_way(2, [](DeviceRank& self) {
    const auto sizes = [](int from, int to) { return from == to ? 0 : some_chunks(0, 0); };
    disagree(self, sizes, self.rank.rank() == 0 ? "float32" : "int64", {"float32", "int64"});
  });
}

TEST_WITHIN(one_rank_calls_with_memory_of_the_host, 60) {
  on_each_way(2, [](DeviceRank& self) {
    const auto sizes = [](int from, int to) { return from == to ? size_t{0} : 100'000; };
    if (self.rank.rank() == 0) {
      return disagree(self, sizes, "uint8", {"CUDA memory", "memory of the host"});
    }
    std::vector<std::byte> out(100'000), in(100'000, std::byte{0xee});
    const Plan plan =
        signed_plan(plan_all_to_all(1, {piece(out), {}}, {piece(in), {}}), OpKind::kAllToAllSingle);
    const Status status = self.rank.run(plan);
    expect_text(status.message(),
                {"rank 0", "rank 1", "all_to_all_single #1", "CUDA memory", "memory of the host"});
    CHECK(in == std::vector<std::byte>(100'000, std::byte{0xee}));
    expect_goes_on(self);
  });
}

// ---- Ranks that come too late -------------------------------------------------------------------

TEST_WITHIN(a_rank_never_calls, 60) {
  on_each_way(2, [](DeviceRank& self) {
    DeviceExchange exchange(self, some_chunks);
    if (self.rank.rank() == 1) self.events.await("rank 0 has given up");
    exchange.fill(0, self.stream);
    const auto handle = self.start(exchange.plan(), self.stream, {.timeout = milliseconds(200)});
    static_cast<void>(self.order(*handle, self.stream));
    synchronize(self, self.stream);
    const Status status = end(self, *handle);
    if (self.rank.rank() == 0) {
      CHECK(status.code() == StatusCode::kTimedOut);
      expect_text(status.message(), {"Timed out", "all_to_all_single #1", "rank 1"});
      self.events.announce("rank 0 has given up");
    } else {
      expect_text(status.message(), {"rank 0", "Timed out"});
    }
    expect_goes_on(self);
  });
}

// Rank 1's stream does not get there. Its copies have been submitted; they move in the end, as the
// stream's order wants it.
TEST_WITHIN(a_rank_has_a_stream_that_is_late, 60) {
  on_each_way(2, [](DeviceRank& self) {
    const bool late = self.rank.rank() == 1;
    const StandIn::Word held = self.stand_in.word();
    for (int level : {2, 0, 4}) {
      DeviceExchange exchange(self, some_chunks);
      held.store(0);
      if (late) self.stand_in.wait(self.stream, held, 1);
      exchange.fill(0, self.stream);
      auto keep = std::make_shared<int>(0);
      const std::weak_ptr<int> kept = keep;
      const auto handle = self.start(exchange.plan(), self.stream,
                                     {.priority = priority_of_level(level),
                                      .timeout = milliseconds(late ? 10'000 : 200),
                                      .keep = std::move(keep)});
      static_cast<void>(self.order(*handle, self.stream));
      const Status status = end(self, *handle);
      expect_text(status.message(), "Timed out");
      held.store(1);
      synchronize(self, self.stream);
      while (!kept.expired()) std::this_thread::sleep_for(milliseconds(1));
      CHECK_OK(self.rank.barrier());
    }
    expect_goes_on(self);
  });
}

// While a copy may still write to it: it waits for a multiprocessor here, and has none. Rank 0 has
// the copy, rank 1 the memory.
TEST_WITHIN(memory_is_kept_while_a_copy_may_touch_it, 60) {
  for (cuda::SubmissionMode mode : {cuda::SubmissionMode::kAhead, cuda::SubmissionMode::kProxy}) {
    DeviceSetup setup = setup_for({mode, true});
    // Copies within a device need multiprocessors there.
    setup.environment.emplace_back("FAKE_CUDA_VERSION", "13000");
    run_device_ranks(setup, [](DeviceRank& self) {
      const auto other = self.rank.new_group("other");
      const bool copies = self.rank.rank() == 0;
      const StandIn::Word until = self.stand_in.word();
      DeviceExchange exchange(self, [](int from, int) { return from == 0 ? 150'000 : 0; });
      exchange.fill(0, self.stream);
      synchronize(self, self.stream);
      if (copies) {
        fill_multiprocessors(self, until);
      }
      auto keep = std::make_shared<int>(0);
      const std::weak_ptr<int> kept = keep;
      const auto handle =
          self.start(exchange.plan(), self.stream, {.group = other, .keep = std::move(keep)});
      if (copies) {
        // The own copy, and that to rank 1.
        self.stand_in.await([](const FakeCudaState& now) { return now.sm_waiters == 2; });
        self.events.announce("copies wait");
      } else {
        self.events.await("copies wait");
        self.rank.engine().close_group(*other, "enough of it");
      }
      CHECK(!end(self, *handle).ok());
      for (int round = 0; round < 10; ++round) CHECK_OK(self.rank.barrier());
      CHECK(!kept.expired());
      CHECK_OK(self.rank.barrier());
      until.store(1);
      while (!kept.expired()) std::this_thread::sleep_for(milliseconds(1));
      CHECK_OK(self.rank.barrier());
      expect_goes_on(self);
    });
  }
}

// A message through the host that is given up while it waits for slots of the ring that hold the
// message before: that one arrives as it was sent, and so does the one behind.
TEST_WITHIN(an_abandoned_message_leaves_the_others_in_the_ring_alone, 100) {
  for (cuda::SubmissionMode mode : {cuda::SubmissionMode::kAhead, cuda::SubmissionMode::kProxy}) {
    for (int late : {0, 1}) {
      run_device_ranks(setup_for({mode, false}), [late](DeviceRank& self) {
        const auto other = self.rank.new_group("other");
        const auto sizes = [](int from, int to) {
          return from == 0 && to == 1 ? (size_t{9} << 19) : size_t{0};  // of 4.5 slots
        };
        // The first waits for rank 1's stream, the second for that of `late`.
        const StandIn::Word first_held = self.stand_in.word(), second_held = self.stand_in.word();
        const cuda::Stream streams[] = {self.stream, self.stand_in.stream(),
                                        self.stand_in.stream()};
        if (self.rank.rank() == 1) self.stand_in.wait(streams[0], first_held, 1);
        if (self.rank.rank() == late) self.stand_in.wait(streams[1], second_held, 1);
        std::vector<std::unique_ptr<DeviceExchange>> exchanges;
        std::vector<std::shared_ptr<DeviceRank::Handle>> handles;
        for (int i = 0; i < 3; ++i) {
          exchanges.push_back(std::make_unique<DeviceExchange>(self, sizes));
          exchanges[i]->fill(i, streams[i]);
          handles.push_back(self.start(
              exchanges[i]->plan(), streams[i],
              {.group = i == 1 ? other : nullptr, .timeout = milliseconds(i == 1 ? 400 : 15'000)}));
        }
        CHECK(!end(self, *handles[1]).ok());
        for (int round = 0; round < 10; ++round) CHECK_OK(self.rank.barrier());
        first_held.store(1);
        second_held.store(1);
        for (int i : {0, 2}) {
          CHECK_OK(self.finish(*handles[i]));
          exchanges[i]->fetch(streams[i]);
          synchronize(self, streams[i]);
          exchanges[i]->check(i);
        }
        expect_goes_on(self);
      });
    }
  }
}

// What the stream writes of the first call, late, is not taken for the second one.
TEST_WITHIN(a_late_stream_is_not_taken_for_that_of_the_next_call, 60) {
  on_each_way(2, [](DeviceRank& self) {
    const auto other = self.rank.new_group("other");
    const bool late = self.rank.rank() == 1;
    const StandIn::Word held[] = {self.stand_in.word(), self.stand_in.word()};
    const cuda::Stream streams[] = {self.stream, self.stand_in.stream()};
    std::vector<std::unique_ptr<DeviceExchange>> exchanges;
    for (int i : {0, 1}) {
      exchanges.push_back(std::make_unique<DeviceExchange>(self, some_chunks));
      if (late) self.stand_in.wait(streams[i], held[i], 1);
      exchanges[i]->fill(i, streams[i]);
    }
    const auto first = self.start(exchanges[0]->plan(), streams[0], {.group = other});
    CHECK_OK(self.rank.barrier());
    if (!late) self.rank.engine().close_group(*other, "enough of it");
    CHECK(!end(self, *first).ok());
    for (int round = 0; round < 20; ++round) CHECK_OK(self.rank.barrier());
    const auto second = self.start(exchanges[1]->plan(), streams[1]);
    held[0].store(1);
    synchronize(self, streams[0]);
    for (int round = 0; round < 20; ++round) CHECK_OK(self.rank.barrier());
    CHECK(!second->done.is_set());
    CHECK_OK(self.rank.barrier());
    held[1].store(1);
    CHECK_OK(self.finish(*second));
    exchanges[1]->fetch(streams[1]);
    synchronize(self, streams[1]);
    exchanges[1]->check(1);
  });
}

// ---- Ranks that leave ---------------------------------------------------------------------------

TEST_WITHIN(a_group_is_closed_in_the_middle, 60) {
  on_each_way(2, [](DeviceRank& self) {
    const auto other = self.rank.new_group("other");
    const bool late = self.rank.rank() == 1;
    const StandIn::Word held = self.stand_in.word();
    if (late) self.stand_in.wait(self.stream, held, 1);
    DeviceExchange exchange(self, some_chunks);
    exchange.fill(0, self.stream);
    const auto handle = self.start(exchange.plan(), self.stream, {.group = other});
    CHECK_OK(self.order(*handle, self.stream));
    CHECK_OK(self.rank.barrier());
    if (!late) self.rank.engine().close_group(*other, "enough of it");
    expect_text(end(self, *handle).message(), "enough of it");
    held.store(1);
    synchronize(self, self.stream);
    expect_goes_on(self);
  });
}

// Their engine and device end with an operation in flight, or with what a failed one has left.
TEST_WITHIN(ranks_end_with_copies_that_wait, 60) {
  for (bool has_failed : {false, true}) {
    on_each_way(2, [has_failed](DeviceRank& self) {
      const StandIn::Word held = self.stand_in.word();  // for ever
      self.stand_in.wait(self.stream, held, 1);
      DeviceExchange exchange(self, some_chunks);
      exchange.fill(0, self.stream);
      const auto handle = self.start(exchange.plan(), self.stream,
                                     {.timeout = milliseconds(has_failed ? 100 : 15'000)});
      CHECK_OK(self.rank.barrier());  // nobody ends before all have called
      static_cast<void>(self.order(*handle, self.stand_in.stream()));
      if (has_failed) CHECK(!end(self, *handle).ok());
    });
  }
}

// ---- Ranks that send nonsense -------------------------------------------------------------------

template <typename T>
std::vector<std::byte> bytes_of(const T& message) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  return {bytes.begin(), bytes.end()};
}

// About its device, beside the records. Some of it makes sense once, or with a descriptor.
std::vector<std::vector<std::byte>> nonsense_about_a_device() {
  using Notice = cuda::AllocationNotice;
  cuda::AsideHello hello;
  hello.emptied[3].index = cuda::FlagSegment::kWords;
  cuda::AsideRing ring;
  ring.level = kPriorityLevels;
  cuda::AsideNotice unknown, without_descriptor;
  unknown.notice = {7, static_cast<Notice::Kind>(9), 4096, {}};
  without_descriptor.notice = {8, Notice::Kind::kDescriptor, 4096, {}};
  std::vector<std::byte> long_hello = bytes_of(cuda::AsideHello());
  long_hello.push_back({});
  return {std::vector<std::byte>(3),
          bytes_of(uint32_t{99}),
          bytes_of(cuda::AsideHello()),
          bytes_of(hello),
          long_hello,
          bytes_of(cuda::AsideRing()),
          bytes_of(ring),
          bytes_of(unknown),
          bytes_of(without_descriptor),
          bytes_of(cuda::AsideGone())};
}

TEST_WITHIN(nonsense_about_a_device_costs_the_link, 60) {
  for (const std::vector<std::byte>& nonsense : nonsense_about_a_device()) {
    run_device_ranks(setup_for({cuda::SubmissionMode::kAhead, true}), [&](DeviceRank& self) {
      if (self.rank.rank() == 1) {
        const std::shared_ptr<Link>& link = self.rank.group()->shared_link(0);
        self.events.await("rank 0 has called");
        CHECK_OK(link->send_aside(nonsense, {}));
        while (!link->failed()) std::this_thread::sleep_for(milliseconds(1));
        return self.events.await("rank 0 has failed");
      }
      DeviceExchange exchange(self, some_chunks);
      exchange.fill(0, self.stream);
      const auto handle = self.start(exchange.plan(), self.stream);
      self.events.announce("rank 0 has called");
      expect_text(end(self, *handle).message(), {"rank 1", "sent nonsense about its device"});
      self.events.announce("rank 0 has failed");
      synchronize(self, self.stream);
    });
  }
}

// ---- Calls that are refused ---------------------------------------------------------------------

// What a caller does whose call could not begin.
void reject(DeviceRank& self, const Status& why) {
  const uint64_t sequence = self.rank.group()->next_sequence();
  self.rank.engine().reject(*self.rank.group(), sequence, OpKind::kAllToAllSingle, why.message());
}

void expect_refused_on_rank_0(DeviceRank& self, const DeviceExchange& exchange,
                              std::string_view why) {
  if (self.rank.rank() == 0) {
    const auto begun = self.begin(exchange.plan(), self.stream, {});
    CHECK(!begun.ok());
    expect_text(begun.status().message(), why);
    return reject(self, begun.status());
  }
  const auto handle = self.start(exchange.plan(), self.stream);
  static_cast<void>(self.order(*handle, self.stream));
  expect_text(end(self, *handle).message(), {"rank 0", why});
  synchronize(self, self.stream);
}

TEST_WITHIN(a_stream_that_is_captured_is_refused, 60) {
  on_each_way(2, [](DeviceRank& self) {
    DeviceExchange exchange(self, some_chunks);
    exchange.fill(0, self.stream);
    self.stand_in.set_capturing(self.stream, self.rank.rank() == 0);
    expect_refused_on_rank_0(self, exchange, "CUDA graph is being captured");
    self.stand_in.set_capturing(self.stream, false);
    expect_goes_on(self);
  });
}

std::vector<cuda::FlagWord> take_all_words(cuda::FlagSegment& segment) {
  std::vector<cuda::FlagWord> words;
  while (true) {
    Result<cuda::FlagWord> word = segment.take();
    if (!word.ok()) return words;
    words.push_back(std::move(word.value()));
  }
}

TEST_WITHIN(all_words_are_in_use, 60) {
  on_each_way(2, [](DeviceRank& self) {
    expect_works(self);
    const bool full = self.rank.rank() == 0;
    std::vector<cuda::FlagWord> words;
    if (full) words = take_all_words(self.device.flags());
    const size_t all = words.size();
    DeviceExchange exchange(self, some_chunks);
    exchange.fill(0, self.stream);
    for (bool one_left : {false, true, true}) {
      if (full && one_left) words.pop_back();
      expect_refused_on_rank_0(self, exchange, "too many messages");
      if (!full) continue;
      // A call that was refused has kept none.
      for (cuda::FlagWord& word : take_all_words(self.device.flags())) {
        words.push_back(std::move(word));
      }
      CHECK_EQ(words.size(), all);
    }
    words.clear();
    expect_goes_on(self);
  });
}

}  // namespace
}  // namespace freescale::testing
