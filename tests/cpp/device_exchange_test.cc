// Collectives between device memories, by real engines, links and the stand-in driver, between
// ranks that are processes.

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/check.h"
#include "tests/cpp/device_ranks.h"

namespace freescale::testing {
namespace {

using cuda::SubmissionMode;

// Empty, one byte, below and above one chunk of the options below, with a rest.
constexpr size_t kSizes[] = {0, 1, 4096, 100'000, 65'536, 262'145, 7, 500'000};

size_t ragged(int from, int to) { return kSizes[(from * 3 + to * 5 + 1) % 8]; }

struct Variant {
  SubmissionMode mode;
  const char* order;
  int version;
};

// Each way to submit on the engines that it is for, on all ABIs.
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (int version : kDriverVersions) {
    all.push_back({SubmissionMode::kAhead, "readiness", version});
    all.push_back({SubmissionMode::kProxy, "readiness", version});
    all.push_back({SubmissionMode::kProxy, "head_of_line", version});
  }
  return all;
}

// What a user copies to the host behind a wait for the exchange holds up what goes to another host:
// docs/cuda.md.
bool holds_itself_up(const Variant& variant) {
  return over_network() && std::string(variant.order) == "head_of_line";
}

DeviceSetup setup_for(int size, const Variant& variant, int devices = 1) {
  DeviceSetup setup;
  setup.size = size;
  setup.environment = {{"FAKE_CUDA_ENGINE_ORDER", variant.order},
                       {"FAKE_CUDA_VERSION", std::to_string(variant.version)},
                       {"FAKE_CUDA_DEVICES", std::to_string(devices)}};
  setup.options.submission = variant.mode;
  setup.options.chunk_bytes = 64 << 10;
  setup.engine.oversubscribed = true;
  setup.device_of = [devices](int rank) { return rank % devices; };
  return setup;
}

// 10^4 over all nine; a tenth of that where each access to memory is watched.
#if defined(__SANITIZE_THREAD__)
constexpr int kRoundsOfVariant = 112;
#else
constexpr int kRoundsOfVariant = 1120;
#endif

// A table of sizes by rank and rank: mostly small, some of several chunks, some empty.
DeviceExchange::Sizes random_sizes(std::mt19937& random, int ranks) {
  std::vector<size_t> sizes;
  for (int i = 0; i < ranks * ranks; ++i) {
    const size_t limit = random() % 8 == 0 ? 200'000 : 2'000;
    sizes.push_back(random() % 5 == 0 ? 0 : random() % limit);
  }
  return [sizes = std::move(sizes), ranks](int from, int to) { return sizes[from * ranks + to]; };
}

// Makes the words that are taken next wrap after a few events.
void bring_words_near_wrap(DeviceRank& self) {
  std::vector<cuda::FlagWord> words;
  for (int i = 0; i < 400; ++i) {
    Result<cuda::FlagWord> word = self.device.flags().take();
    CHECK_OK(word);
    word.value().target().word.host->store(0xffffffffu - static_cast<uint32_t>(i % 7));
    words.push_back(std::move(word.value()));
  }
}

// Everything is enqueued at once, and the exchange finds its place in the stream's order.
OpResult exchange_in_order(DeviceRank& self, DeviceExchange& exchange, int round) {
  exchange.fill(round, self.stream);
  const auto handle = self.start(exchange.plan(), self.stream);
  CHECK_OK(self.order(*handle, self.stream));
  exchange.fetch(self.stream);
  synchronize(self, self.stream);
  exchange.check(round);
  CHECK_OK(self.finish(*handle));
  return handle->result;
}

TEST_WITHIN(ragged_all_to_all_between_devices, 100) {
  for (const Variant& variant : variants()) {
    if (holds_itself_up(variant)) continue;
    for (int size : {1, 2, 3}) {
      run_device_ranks(setup_for(size, variant, size), [](DeviceRank& self) {
        DeviceExchange exchange(self, ragged);
        for (int round = 0; round < 3; ++round) exchange_in_order(self, exchange, round);
      });
    }
  }
}

TEST_WITHIN(eight_ranks_on_one_device_or_on_one_each, 100) {
  for (SubmissionMode mode : {SubmissionMode::kAhead, SubmissionMode::kProxy}) {
    for (int devices : {1, 8}) {
      run_device_ranks(setup_for(8, {mode, "readiness", 13000}, devices), [](DeviceRank& self) {
        DeviceExchange exchange(self, ragged);
        for (int round = 0; round < 2; ++round) exchange_in_order(self, exchange, round);
      });
    }
  }
}

TEST_WITHIN(all_gather_between_devices, 60) {
  for (const Variant& variant : variants()) {
    run_device_ranks(setup_for(3, variant), [](DeviceRank& self) {
      // The same bytes to everybody, of ragged length.
      const auto bytes = [](int rank) { return kSizes[rank + 3]; };
      const int rank = self.rank.rank();
      const cuda::DevicePtr out = self.stand_in.allocate(bytes(rank));
      const std::vector<std::byte> data = pattern_bytes(rank, 0, bytes(rank));
      self.stand_in.write(out, {reinterpret_cast<const char*>(data.data()), data.size()});
      std::vector<cuda::DevicePtr> in;
      std::vector<Pieces> outputs;
      for (int peer = 0; peer < 3; ++peer) {
        in.push_back(self.stand_in.allocate(bytes(peer)));
        outputs.push_back({Segment{reinterpret_cast<std::byte*>(in.back()), bytes(peer)}});
      }
      const Pieces input = {Segment{reinterpret_cast<std::byte*>(out), bytes(rank)}};
      const auto handle = self.start(
          signed_plan(plan_all_gather(rank, input, outputs), OpKind::kAllGather), self.stream);
      CHECK_OK(self.order(*handle, self.stream));
      synchronize(self, self.stream);
      for (int peer = 0; peer < 3; ++peer) {
        const std::vector<std::byte> sent = pattern_bytes(peer, 0, bytes(peer));
        CHECK(self.stand_in.read(in[peer], bytes(peer)) ==
              std::string(reinterpret_cast<const char*>(sent.data()), sent.size()));
      }
      CHECK_OK(self.finish(*handle));
      CHECK(handle->result.paths.has(Path::kCopyEngine));
    });
  }
}

// Two devices without access to each other: by way of pinned memory, still by copy engines, in
// messages of several rounds of the ring.
TEST_WITHIN(devices_without_access_go_through_the_host, 100) {
  for (const Variant& variant : variants()) {
    DeviceSetup setup = setup_for(3, variant, 3);
    setup.environment.emplace_back("FAKE_CUDA_P2P", "0-1");
    run_device_ranks(setup, [](DeviceRank& self) {
      DeviceExchange exchange(self, [](int from, int to) {
        return ragged(from, to) * (from == 2 || to == 2 ? 21 : 1);
      });
      for (int round = 0; round < 4; ++round) {
        exchange.fill(round, self.stream);
        const auto handle =
            self.start(exchange.plan(), self.stream, priority_of_level(round % 2 == 0 ? 2 : 0));
        CHECK_OK(self.order(*handle, self.stream));
        synchronize(self, self.stream);
        exchange.fetch(self.stream);
        synchronize(self, self.stream);
        exchange.check(round);
        CHECK_OK(self.finish(*handle));
        CHECK(handle->result.paths.has(Path::kStaged));
      }
    });
  }
}

using cuda::HandleType;

// Memory of two mappings, as in torch's expandable segments; its bytes lie on both.
DeviceExchange::Allocate mapped_memory(DeviceRank& self, HandleType first, HandleType second) {
  return [&self, first, second](size_t bytes) {
    constexpr size_t kPage = kMappingPage;
    CHECK_LE(bytes, kPage);
    const cuda::DevicePtr memory = self.stand_in.reserve(2 * kPage);
    const int device = self.device.context()->device();
    self.stand_in.map_new(memory, kPage, first, device);
    self.stand_in.map_new(memory + kPage, kPage, second, device);
    return memory + kPage - bytes / 2;
  };
}

TEST_WITHIN(exchanges_over_mapped_memory, 100) {
  for (const Variant& variant : variants()) {
    DeviceSetup setup = setup_for(2, variant, 2);
    setup.environment.emplace_back("FAKE_CUDA_FABRIC", "yes");
    run_device_ranks(setup, [](DeviceRank& self) {
      for (const HandleType type : {HandleType::kPosixFileDescriptor, HandleType::kFabric}) {
        DeviceExchange exchange(self, some_chunks, mapped_memory(self, type, type));
        for (int round = 0; round < 2; ++round) {
          const OpResult result = exchange_in_order(self, exchange, round);
          CHECK(result.paths.has(Path::kCopyEngine));
          CHECK(!result.paths.has(Path::kStaged));
        }
      }
    });
  }
}

// One of the ranks may not open what is shared by fabric handle: found out when a part of the
// message was opened already. From then on all it sends is staged, and nothing is tried again.
TEST_WITHIN(a_rank_without_a_way_to_the_fabric_sends_through_the_host, 100) {
  for (const Variant& variant : variants()) {
    DeviceSetup setup = setup_for(2, variant, 2);
    setup.environment.emplace_back("FAKE_CUDA_FABRIC", "yes");
    run_device_ranks(setup, [](DeviceRank& self) {
      if (self.rank.rank() == 0) self.stand_in.inject("fabric_denied", 1, 800);
      const auto from_one = [](int from, int to) { return from == 0 && to == 1 ? 300'000 : 0; };
      DeviceExchange exchange(
          self, from_one,
          mapped_memory(self, HandleType::kPosixFileDescriptor, HandleType::kFabric));
      for (int round = 0; round < 2; ++round) {
        CHECK(exchange_in_order(self, exchange, round).paths.has(Path::kStaged));
      }
      expect_works(self);
    });
  }
}

// Of the two ranks one has nothing to receive, and tells the other what it has to know
// nevertheless.
TEST(the_first_message_of_all_goes_one_way) {
  for (const char* access : {"all", "none"}) {
    DeviceSetup setup = setup_for(2, variants()[0], 2);
    setup.environment.emplace_back("FAKE_CUDA_P2P", access);
    setup.proves_access = false;
    run_device_ranks(setup, [](DeviceRank& self) {
      DeviceExchange exchange(self,
                              [](int from, int to) { return from == 0 && to == 1 ? 100'000 : 0; });
      exchange_in_order(self, exchange, 0);
    });
  }
}

// Copies between devices that say they reach each other, and garble what they move: found out with
// the first message, by the first or a later one of the copies that try.
TEST_WITHIN(devices_that_garble_bytes_go_through_the_host, 60) {
  for (int garbled : {1, 2, 3}) {
    DeviceSetup setup = setup_for(2, variants()[0], 2);
    setup.proves_access = false;
    run_device_ranks(setup, [garbled](DeviceRank& self) {
      // Nothing stays on its rank: no other copy comes before those that try.
      DeviceExchange exchange(self, [](int from, int to) { return from == to ? 0 : 100'000; });
      exchange.fill(0, self.stream);
      synchronize(self, self.stream);
      CHECK_OK(self.rank.barrier());
      if (self.rank.rank() == 0) self.stand_in.inject("copy_garbled", garbled);
      const auto handle = self.start(exchange.plan(), self.stream);
      CHECK_OK(self.order(*handle, self.stream));
      exchange.fetch(self.stream);
      synchronize(self, self.stream);
      exchange.check(0);
      CHECK_OK(self.finish(*handle));
      CHECK(handle->result.paths.has(Path::kStaged));
    });
  }
}

// A rank whose stream is behind: the host of no rank waits for it, and nothing moves before.
TEST_WITHIN(an_exchange_waits_for_the_streams_of_both_ranks, 60) {
  for (const Variant& variant : variants()) {
    if (holds_itself_up(variant)) continue;
    run_device_ranks(setup_for(2, variant), [](DeviceRank& self) {
      DeviceExchange exchange(self, ragged);
      exchange.fill(0, self.stream);
      synchronize(self, self.stream);
      for (int late : {0, 1}) {
        const StandIn::Word held = self.stand_in.word();
        const bool behind = self.rank.rank() == late;
        if (behind) self.stand_in.wait(self.stream, held, 1);
        const int round = 1 + late;
        exchange.fill(round, self.stream);
        const auto handle = self.start(exchange.plan(), self.stream);
        CHECK_OK(self.order(*handle, self.stream));
        exchange.fetch(self.stream);
        // Both hosts are past their calls by now, and stay until both have looked.
        CHECK_OK(self.rank.barrier());
        CHECK(!handle->done.is_set());
        CHECK_OK(self.rank.barrier());
        if (behind) held.store(1);
        synchronize(self, self.stream);
        exchange.check(round);
        CHECK_OK(self.finish(*handle));
      }
    });
  }
}

// While the one that has exported it uses the address for other memory.
TEST(memory_that_was_freed_is_closed_by_the_peer) {
  run_device_ranks(setup_for(2, variants()[0]), [](DeviceRank& self) {
    const bool sends = self.rank.rank() == 0;
    size_t open = 0;  // descriptors: in the stand-in, those of memory
    for (int round = 0; round < 4; ++round) {
      constexpr size_t kBytes = 1000;
      const cuda::DevicePtr memory = self.stand_in.allocate(kBytes);
      std::vector<Pieces> none(2), other(2);
      other[1 - self.rank.rank()] = {Segment{reinterpret_cast<std::byte*>(memory), kBytes}};
      const auto handle = self.start(
          signed_plan(plan_all_to_all(self.rank.rank(), sends ? other : none, sends ? none : other),
                      OpKind::kAllToAllSingle),
          self.stream);
      CHECK_OK(self.finish(*handle));
      CHECK_OK(self.stand_in.driver().mem_free(memory));
      if (round == 0) open = Footprint::now().descriptors;
      // The thread that closes it is told beside the message.
      while (Footprint::now().descriptors > open) std::this_thread::yield();
    }
  });
}

// A stream that comes to its wait for a call when the words of that serve another one, which in
// turn waits for the stream.
TEST(a_stream_waits_for_no_later_call) {
  run_device_ranks(setup_for(2, variants()[0]), [](DeviceRank& self) {
    const StandIn::Word held = self.stand_in.word();
    const cuda::Stream late = self.stand_in.stream();
    self.stand_in.wait(late, held, 1);
    DeviceExchange first(self, ragged), second(self, ragged);
    first.fill(0, self.stream);
    const auto handle = self.start(first.plan(), self.stream);
    CHECK_OK(self.finish(*handle));
    CHECK_OK(handle->call->wait_on(late));
    const std::weak_ptr<cuda::CudaCall> call = handle->call;
    handle->call.reset();
    while (!call.expired()) std::this_thread::yield();

    second.fill(1, late);
    const auto next = self.start(second.plan(), late);
    held.store(1);
    CHECK_OK(self.finish(*next));
    second.fetch(late);
    synchronize(self, late);
    second.check(1);
  });
}

// Exchanges of random sizes and priorities, many in flight, on words that wrap. On engines that
// take copies in order, a copy of the user's own that waits for an exchange would hold up the
// copies of the exchange; so there each is waited for.
void random_rounds(DeviceRank& self, int rounds, int in_flight) {
  bring_words_near_wrap(self);
  std::mt19937 random(7);  // the same on all ranks
  const cuda::Stream streams[] = {self.stream, self.stand_in.stream()};
  for (int round = 0; round < rounds; round += in_flight) {
    std::vector<std::unique_ptr<DeviceExchange>> exchanges;
    std::vector<std::shared_ptr<DeviceRank::Handle>> handles;
    for (int i = 0; i < in_flight; ++i) {
      exchanges.push_back(std::make_unique<DeviceExchange>(self, random_sizes(random, 3)));
      const Priority priority = priority_of_level(static_cast<int>(random() % 5));
      const cuda::Stream stream = streams[random() % 2];
      exchanges[i]->fill(round + i, stream);
      handles.push_back(self.start(exchanges[i]->plan(), stream, priority));
      CHECK_OK(self.order(*handles[i], stream));
      if (in_flight == 1) synchronize(self, stream);
      exchanges[i]->fetch(stream);
    }
    for (const cuda::Stream stream : streams) synchronize(self, stream);
    for (int i = 0; i < in_flight; ++i) {
      CHECK_OK(self.finish(*handles[i]));
      exchanges[i]->check(round + i);
    }
  }
}

TEST_WITHIN(ten_thousand_random_exchanges, 200) {
  for (const Variant& variant : variants()) {
    const int in_flight = std::string(variant.order) == "readiness" ? 16 : 1;
    run_device_ranks(setup_for(3, variant), [in_flight](DeviceRank& self) {
      random_rounds(self, kRoundsOfVariant, in_flight);
    });
  }
}

}  // namespace
}  // namespace freescale::testing
