// Every collective's plan, run by real engines over real links between ranks that are threads.

#include "cpp/transport/emulated_nic.h"
#include "cpp/transport/paced_link.h"
#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

// Sizes on both sides of every threshold: empty, inline, one chunk, several, with a rest.
const size_t kSizes[] = {0, 1, 64, 8192, 8193, 131072, 131073, 3 << 20};

struct Exchange {
  std::vector<std::vector<std::byte>> input;
  std::vector<std::vector<std::byte>> output;

  Exchange(int rank, int size, const std::function<size_t(int, int)>& bytes) {
    for (int peer = 0; peer < size; ++peer) {
      input.push_back(pattern_bytes(rank, peer, bytes(rank, peer)));
      output.emplace_back(bytes(peer, rank), std::byte{0xee});
    }
  }
  Plan plan(int rank) {
    std::vector<Pieces> in;
    std::vector<Pieces> out;
    for (auto& buffer : input) in.push_back(piece(buffer));
    for (auto& buffer : output) out.push_back(piece(buffer));
    return signed_plan(plan_all_to_all(rank, in, out), OpKind::kAllToAll);
  }
  void check(int rank) {
    for (size_t peer = 0; peer < output.size(); ++peer) {
      CHECK(output[peer] == pattern_bytes(static_cast<int>(peer), rank, output[peer].size()));
    }
  }
};

void all_to_all(Rank& self, const std::function<size_t(int, int)>& bytes) {
  Exchange exchange(self.rank(), self.size(), bytes);
  CHECK_OK(self.run(exchange.plan(self.rank())));
  exchange.check(self.rank());
}

TEST_WITHIN(all_to_all_equal, 60) {
  for (int size = 1; size <= 5; ++size) {
    run_ranks(size, [](Rank& self) {
      for (size_t bytes : kSizes) all_to_all(self, [bytes](int, int) { return bytes; });
    });
  }
}

TEST_WITHIN(all_to_all_ragged, 60) {
  for (int size = 2; size <= 4; ++size) {
    run_ranks(size, [](Rank& self) {
      all_to_all(self, [](int from, int to) { return kSizes[(from * 3 + to * 5) % 8]; });
    });
  }
}

TEST_WITHIN(all_to_all_by_direct_reads, 60) {
  run_ranks(
      3,
      [](Rank& self) {
        for (size_t bytes : kSizes) all_to_all(self, [bytes](int, int) { return bytes; });
      },
      EngineOptions{.oversubscribed = true});
}

TEST_WITHIN(many_in_flight_complete_in_any_order, 60) {
  run_ranks(3, [](Rank& self) {
    std::vector<Exchange> exchanges;
    std::vector<std::shared_ptr<Rank::Handle>> handles;
    for (int i = 0; i < 60; ++i) {
      exchanges.emplace_back(self.rank(), self.size(),
                             [i](int from, int to) { return kSizes[(from + to + i) % 8]; });
    }
    for (int i = 0; i < 60; ++i) {
      handles.push_back(self.start(exchanges[i].plan(self.rank()), priority_of_level(i % 5)));
    }
    for (int i = 59; i >= 0; --i) CHECK_OK(self.finish(*handles[i]));
    for (Exchange& exchange : exchanges) exchange.check(self.rank());
  });
}

TEST(broadcast_scatter_gather) {
  run_ranks(4, [](Rank& self) {
    for (size_t bytes : kSizes) {
      for (int root = 0; root < self.size(); ++root) {
        std::vector<std::byte> buffer(bytes, std::byte{0xee});
        if (self.rank() == root) buffer = pattern_bytes(root, 0, bytes);
        CHECK_OK(self.run(signed_plan(plan_broadcast(self.rank(), self.size(), root, piece(buffer)),
                                      OpKind::kBroadcast)));
        CHECK(buffer == pattern_bytes(root, 0, bytes));
      }
    }
    const int root = 2;
    std::vector<std::vector<std::byte>> parts;
    std::vector<Pieces> pieces;
    for (int peer = 0; peer < self.size(); ++peer) parts.push_back(pattern_bytes(root, peer, 9000));
    if (self.rank() == root) {
      for (auto& part : parts) pieces.push_back(piece(part));
    }
    std::vector<std::byte> mine(9000);
    CHECK_OK(self.run(
        signed_plan(plan_scatter(self.rank(), root, pieces, piece(mine)), OpKind::kScatter)));
    CHECK(mine == pattern_bytes(root, self.rank(), 9000));
    for (auto& part : parts) std::fill(part.begin(), part.end(), std::byte{0xee});
    CHECK_OK(self.run(
        signed_plan(plan_gather(self.rank(), root, piece(mine), pieces), OpKind::kGather)));
    if (self.rank() == root) {
      for (int peer = 0; peer < self.size(); ++peer) {
        CHECK(parts[peer] == pattern_bytes(root, peer, 9000));
      }
    }
  });
}

TEST(send_and_receive_by_tag_and_from_anyone) {
  run_ranks(3, [](Rank& self) {
    for (size_t bytes : {size_t{100}, size_t{300000}}) {
      if (self.rank() == 0) {
        for (int expected = 1; expected < 3; ++expected) {
          std::vector<std::byte> buffer(bytes);
          auto handle =
              self.start(signed_plan(plan_receive(kAnySource, piece(buffer)), OpKind::kRecv),
                         Priority::kNormal, nullptr, 7);
          CHECK_OK(self.finish(*handle));
          CHECK(buffer == pattern_bytes(handle->result.source, 0, bytes));
        }
        std::vector<std::byte> first(bytes);
        std::vector<std::byte> second(bytes);
        auto late = self.start(signed_plan(plan_receive(1, piece(second)), OpKind::kRecv),
                               Priority::kNormal, nullptr, 9);
        auto early = self.start(signed_plan(plan_receive(1, piece(first)), OpKind::kRecv),
                                Priority::kNormal, nullptr, 8);
        CHECK_OK(self.finish(*late));
        CHECK_OK(self.finish(*early));
        CHECK(first == pattern_bytes(1, 8, bytes));
        CHECK(second == pattern_bytes(1, 9, bytes));
      } else {
        std::vector<std::byte> buffer = pattern_bytes(self.rank(), 0, bytes);
        CHECK_OK(self.finish(*self.start(signed_plan(plan_send(0, piece(buffer)), OpKind::kSend),
                                         Priority::kNormal, nullptr, 7)));
        if (self.rank() == 1) {
          for (uint32_t tag : {8u, 9u}) {
            std::vector<std::byte> tagged = pattern_bytes(1, static_cast<int>(tag), bytes);
            auto handle = self.start(signed_plan(plan_send(0, piece(tagged)), OpKind::kSend),
                                     Priority::kNormal, nullptr, tag);
            CHECK_OK(self.finish(*handle));
          }
        }
      }
      CHECK_OK(self.barrier());
    }
  });
}

// Nobody rings when a chunk's time has come: the engines wake by themselves.
TEST(exchange_on_links_of_a_given_rate) {
  const auto make_wrapper = [] {
    const auto nic = std::make_shared<EmulatedNic>(uint64_t{50'000'000});
    return [nic](std::shared_ptr<Link> link) {
      return std::make_shared<PacedLink>(std::move(link), nic);
    };
  };
  constexpr size_t kBytes = 300'000;
  for (const EngineOptions& mode : kModes) {
    run_ranks(
        3,
        [](Rank& self) {
          Buffers bulk(self.rank(), self.size(), kBytes);
          Buffers urgent(self.rank(), self.size(), kBytes / 10);
          const Nanoseconds start = now_ns();
          const auto one = self.start(bulk.plan(self.rank()), Priority::kBackground);
          const auto other = self.start(urgent.plan(self.rank()), Priority::kUrgent);
          CHECK_OK(self.finish(*other));
          CHECK_OK(self.finish(*one));
          CHECK_GE(now_ns() - start, Nanoseconds{2 * kBytes * 20});
          for (int peer = 0; peer < self.size(); ++peer) {
            CHECK(bulk.in[peer] == pattern_bytes(peer, 0, kBytes));
            CHECK(urgent.in[peer] == pattern_bytes(peer, 0, kBytes / 10));
          }
          CHECK_OK(self.barrier());
        },
        mode, make_wrapper);
  }
}

}  // namespace
}  // namespace freescale::testing
