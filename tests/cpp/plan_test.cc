// What the plan builders make, and how an operation cuts and spreads bytes.

#include "cpp/collectives/collectives.h"
#include "cpp/scheduler/operation.h"
#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

std::vector<int> peers_of(const std::vector<Message>& messages) {
  std::vector<int> peers;
  for (const Message& message : messages) peers.push_back(message.peer);
  return peers;
}

TEST(plan_all_to_all_starts_with_the_next_rank) {
  const std::vector<Pieces> nothing(4);
  const Plan plan = plan_all_to_all(2, nothing, nothing);
  CHECK_EQ(peers_of(plan.sends), (std::vector<int>{2, 3, 0, 1}));
  CHECK_EQ(peers_of(plan.receives), (std::vector<int>{2, 3, 0, 1}));
}

TEST(plan_rooted_collectives_exchange_with_the_root) {
  std::byte byte[4];
  const Pieces one{Segment{byte, 1}};
  const std::vector<Pieces> four(4, one);
  const std::vector<int> others{2, 3, 0};
  const Plan broadcast_root = plan_broadcast(1, 4, 1, one);
  CHECK_EQ(peers_of(broadcast_root.sends), others);
  CHECK_EQ(peers_of(broadcast_root.receives), others);
  CHECK_EQ(broadcast_root.receives[0].bytes(), 0u);
  const Plan scatter_root = plan_scatter(1, 1, four, one);
  CHECK_EQ(peers_of(scatter_root.sends), (std::vector<int>{1, 2, 3, 0}));
  CHECK_EQ(peers_of(scatter_root.receives), (std::vector<int>{1, 2, 3, 0}));
  CHECK_EQ(scatter_root.receives[1].bytes(), 0u);
  const Plan gather_root = plan_gather(1, 1, one, four);
  CHECK_EQ(peers_of(gather_root.receives), (std::vector<int>{1, 2, 3, 0}));
  CHECK_EQ(peers_of(gather_root.sends), (std::vector<int>{1, 2, 3, 0}));
  CHECK_EQ(gather_root.sends[1].bytes(), 0u);
  for (const Plan& plan : {plan_broadcast(3, 4, 1, one), plan_scatter(3, 1, {}, one)}) {
    CHECK_EQ(peers_of(plan.receives), std::vector<int>{1});
    CHECK_EQ(peers_of(plan.sends), std::vector<int>{1});
    CHECK_EQ(plan.sends[0].bytes(), 0u);
  }
  const Plan gather_other = plan_gather(3, 1, one, {});
  CHECK_EQ(gather_other.sends[0].bytes(), 1u);
  CHECK_EQ(gather_other.receives[0].bytes(), 0u);
}

TEST(plan_splits_a_buffer_in_order) {
  std::byte buffer[100];
  const size_t sizes[] = {10, 0, 90};
  const std::vector<Pieces> pieces = split_buffer(buffer, sizes);
  CHECK_EQ(pieces.size(), 3u);
  CHECK(pieces[0][0].data == buffer);
  CHECK(pieces[1][0].data == buffer + 10);
  CHECK_EQ(pieces[1][0].bytes, 0u);
  CHECK(pieces[2][0].data == buffer + 10);
  CHECK_EQ(pieces[2][0].bytes, 90u);
}

// Every cut of a message made of segments, empty ones among them.
TEST(operation_slices_and_scatters_at_every_offset) {
  std::vector<std::byte> memory = pattern_bytes(1, 2, 60);
  const std::vector<Segment> segments = {
      {memory.data() + 40, 20}, {memory.data(), 0}, {memory.data(), 7}, {memory.data() + 10, 30}};
  std::vector<std::byte> message;
  for (const Segment& one : segments) {
    message.insert(message.end(), one.data, one.data + one.bytes);
  }
  for (size_t offset = 0; offset <= message.size(); ++offset) {
    for (size_t bytes = 0; offset + bytes <= message.size(); ++bytes) {
      std::vector<Segment> pieces;
      slice_segments(segments, offset, bytes, &pieces);
      std::vector<std::byte> cut;
      for (const Segment& one : pieces) cut.insert(cut.end(), one.data, one.data + one.bytes);
      CHECK(std::equal(cut.begin(), cut.end(), message.begin() + offset,
                       message.begin() + offset + bytes));

      const std::vector<std::byte> before = memory;
      const std::vector<std::byte> fresh(bytes, std::byte{0xee});
      scatter_bytes(segments, offset, fresh, CopyMode::kCached);
      std::vector<std::byte> expected = message;
      std::fill_n(expected.begin() + offset, bytes, std::byte{0xee});
      std::vector<std::byte> now;
      for (const Segment& one : segments) now.insert(now.end(), one.data, one.data + one.bytes);
      CHECK(now == expected);
      CHECK(std::equal(memory.begin() + 7, memory.begin() + 10, before.begin() + 7));
      memory = before;
    }
  }
}

TEST(operation_names_survive_unknown_numbers) {
  CHECK_EQ(op_name(OpKind::kAllToAllSingle), std::string_view("all_to_all_single"));
  CHECK_EQ(op_name(static_cast<OpKind>(200)), std::string_view("an unknown operation"));
}

}  // namespace
}  // namespace freescale::testing
