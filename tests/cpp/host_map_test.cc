#include "cpp/collectives/host_map.h"

#include <cstring>

#include "cpp/collectives/collectives.h"
#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

TEST(host_map_knows_who_shares_a_host) {
  const HostMap map({0, 1, 0, 1, 1});
  CHECK_EQ(map.hosts(), 2);
  CHECK_EQ(map.host_of(3), 1);
  CHECK(map.ranks_on(0) == (std::vector<int>{0, 2}));
  CHECK(map.ranks_on(1) == (std::vector<int>{1, 3, 4}));
  // By turns, and the shorter host's ranks serve again.
  CHECK_EQ(map.entry(0, 1), 1);
  CHECK_EQ(map.entry(2, 1), 3);
  CHECK_EQ(map.entry(1, 0), 0);
  CHECK_EQ(map.entry(3, 0), 2);
  CHECK_EQ(map.entry(4, 0), 0);
  CHECK(map.served_by(0) == (std::vector<int>{1, 4}));
  CHECK(map.served_by(1) == (std::vector<int>{0}));
  CHECK(map.served_by(4).empty());
}

TEST(host_map_says_whether_it_is_of_use) {
  CHECK(!HostMap().spans_hosts_with_several());
  CHECK(!HostMap({0, 0, 0}).spans_hosts_with_several());
  CHECK(!HostMap({0, 1, 2}).spans_hosts_with_several());
  CHECK(HostMap({0, 1, 1}).spans_hosts_with_several());
}

std::vector<std::byte> joined(const Message& message) {
  std::vector<std::byte> bytes;
  for (const Segment& piece : message.segments) {
    bytes.insert(bytes.end(), piece.data, piece.data + piece.bytes);
  }
  return bytes;
}

void scatter_into(const Message& message, const std::vector<std::byte>& bytes) {
  CHECK_EQ(message.bytes(), bytes.size());
  size_t at = 0;
  for (const Segment& piece : message.segments) {
    if (piece.bytes != 0) std::memcpy(piece.data, bytes.data() + at, piece.bytes);
    at += piece.bytes;
  }
}

// What one rank has in an all-gather of pieces of different lengths.
struct Gathering {
  Gathering(int rank, const HostMap& map, int size) : input(pattern_bytes(rank, 0, bytes(rank))) {
    for (int peer = 0; peer < size; ++peer) output.emplace_back(bytes(peer));
    std::vector<Pieces> places;
    for (auto& one : output) places.push_back(piece(one));
    stages = plan_all_gather_by_host(rank, map, piece(input), places);
  }
  static size_t bytes(int rank) { return static_cast<size_t>(100 + 17 * rank) * (rank != 2); }

  std::vector<std::byte> input;
  std::vector<std::vector<std::byte>> output;
  std::vector<Plan> stages;
};

// What went between hosts.
struct Crossed {
  size_t messages = 0;
  size_t bytes = 0;
};

// Runs a stage of all ranks. Every message that one rank
// awaits is sent by the other, once, and no other.
template <typename Rank>
Crossed run_stage(std::vector<Rank>& ranks, size_t stage, const HostMap& map) {
  Crossed crossed;
  size_t sent = 0;
  size_t received = 0;
  for (size_t from = 0; from < ranks.size(); ++from) sent += ranks[from].stages[stage].sends.size();
  for (int to = 0; to < static_cast<int>(ranks.size()); ++to) {
    for (const Message& in : ranks[to].stages[stage].receives) {
      int matching = 0;
      for (const Message& out : ranks[in.peer].stages[stage].sends) {
        if (out.peer != to) continue;
        ++matching;
        scatter_into(in, joined(out));
        if (map.host_of(to) == map.host_of(in.peer)) continue;
        ++crossed.messages;
        crossed.bytes += out.bytes();
      }
      CHECK_EQ(matching, 1);
      ++received;
    }
  }
  CHECK_EQ(sent, received);
  return crossed;
}

TEST(all_gather_by_host_crosses_the_network_once_for_each_host) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 1, 1}, {0, 1, 0, 1, 1}, {0, 1, 1}, {0, 0, 0, 1, 2, 2}, {0, 1}}) {
    const HostMap map(hosts);
    const auto size = static_cast<int>(hosts.size());
    std::vector<Gathering> ranks;
    ranks.reserve(hosts.size());
    for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank, map, size);
    size_t least = 0;
    for (int rank = 0; rank < size; ++rank) least += Gathering::bytes(rank) * (map.hosts() - 1);
    CHECK_EQ(run_stage(ranks, 0, map).bytes, least);
    CHECK_EQ(run_stage(ranks, 1, map).messages, 0u);
    for (const Gathering& rank : ranks) {
      for (int peer = 0; peer < size; ++peer) CHECK(rank.output[peer] == ranks[peer].input);
    }
  }
}

// What one rank has in an all-to-all of equal parts.
struct Exchange {
  static constexpr size_t kBytes = 48;

  Exchange(int rank, const HostMap& map, int size)
      : passing(pass_through_bytes(rank, map, kBytes), std::byte{0xee}) {
    std::vector<Pieces> from, to;
    for (int peer = 0; peer < size; ++peer) {
      input.push_back(pattern_bytes(rank, peer, kBytes));
      output.emplace_back(kBytes);
    }
    for (int peer = 0; peer < size; ++peer) {
      from.push_back(piece(input[peer]));
      to.push_back(piece(output[peer]));
    }
    stages = plan_all_to_all_by_host(rank, map, from, to, kBytes, passing.data());
  }

  std::vector<std::vector<std::byte>> input;
  std::vector<std::vector<std::byte>> output;
  std::vector<std::byte> passing;
  std::vector<Plan> stages;
};

TEST(all_to_all_by_host_sends_each_rank_one_message_from_each_other_host) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 1, 1}, {0, 1, 0, 1, 1}, {0, 1, 1}, {0, 0, 0, 1, 2, 2}, {0, 1}}) {
    const HostMap map(hosts);
    const auto size = static_cast<int>(hosts.size());
    std::vector<Exchange> ranks;
    ranks.reserve(hosts.size());
    for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank, map, size);
    size_t far_pairs = 0;
    for (int rank = 0; rank < size; ++rank) {
      far_pairs += hosts.size() - map.ranks_on(map.host_of(rank)).size();
    }
    CHECK_EQ(run_stage(ranks, 0, map).messages, 0u);
    const Crossed crossed = run_stage(ranks, 1, map);
    CHECK_EQ(crossed.messages, hosts.size() * static_cast<size_t>(map.hosts() - 1));
    CHECK_EQ(crossed.bytes, far_pairs * Exchange::kBytes);
    for (int rank = 0; rank < size; ++rank) {
      for (int peer = 0; peer < size; ++peer) {
        CHECK(ranks[rank].output[peer] == ranks[peer].input[rank]);
      }
    }
  }
}

}  // namespace
}  // namespace freescale::testing
