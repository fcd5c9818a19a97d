// What a hostile rank sends to another one: records and chunks that fit nothing, or nearly fit.
// Rank 1 is under test, rank 0 is the hostile one and rank 2 an honest one. Nothing may reach
// beyond the buffers of an operation, and whatever was said, closing the groups ends all of them.

#include <deque>

#include "cpp/scheduler/wire.h"
#include "tests/cpp/stage.h"
#include "tests/fuzz/input.h"

namespace freescale::fuzz {
namespace {

using testing::Buffer;
using testing::FakeLink;
using testing::Stage;

constexpr int kHostile = 0;
constexpr int kSelf = 1;
constexpr int kHonest = 2;
constexpr size_t kGroups = 2;
constexpr uint64_t kFirstGroupId = 1000;  // as Stage numbers them
// Empty, inline, the largest inline, announced and sent in chunks.
constexpr size_t kSizes[] = {0, 100, Peer::kInlineBytes, Peer::kInlineBytes + 1};

class Ignores : public LinkSink {
 public:
  void on_record(std::span<const std::byte>) override {}
  void on_chunk(const ChunkTag&, std::span<const std::byte>) override {}
};

class Scene {
 public:
  Scene() {
    stage_.add_group();
    FakeLink& link = stage_.link(kSelf, kHostile);
    link.pullable = true;
    // No address of the hostile rank is real here.
    link.pulls_from = [this](uint64_t, std::byte* to, size_t bytes) {
      std::memset(to, 7, bytes);
      return pull_fails_ ? Status::system("no such memory") : Status();
    };
  }

  void act(Input& input) {
    switch (input.below(16)) {
      case 0:
        return post_collective(kSelf, input);
      case 1:
        return post_collective(kHonest, input);
      case 2:
        return post_send(input);
      case 3:
        return post_receive(input);
      case 4:
        static_cast<void>(stage_.step(kHonest));
        return;
      case 5:
        return send_chunk(input);
      case 6:
        return stage_.protocol(kSelf).check_deadlines(now_ns());
      case 7:
        return trouble(input);
      case 8:
        return send_noise(input);
      case 9:
        return take_all();
      case 10:
      case 11:
        static_cast<void>(stage_.step(kSelf));
        return;
      default:
        return send_record(input);
    }
  }

  void end() {
    stage_.link(kSelf, kHostile).fail(Status::peer_lost("the end"));
    while (stage_.step(kSelf)) {
    }
    for (size_t group = 0; group < kGroups; ++group) stage_.close_group(kSelf, group, "the end");
    require(stage_.protocol(kSelf).idle());
    for (const Stage::Handle& handle : posted_) require(handle->done);
  }

 private:
  Buffer& buffer(Input& input) {
    return buffers_.emplace_back(kSizes[input.below(std::size(kSizes))]);
  }

  Stage::Call call(OpKind op, Input& input) {
    Stage::Call call;
    const uint8_t bits = input.take<uint8_t>();
    call.op = op;
    call.group = bits & 1;
    call.tag = bits >> 1 & 1;
    call.priority = priority_of_level((bits >> 2) % kPriorityLevels);
    call.part = bits >> 5 & 1;
    call.deadline = (bits & 0x40) != 0 ? Deadline::at(0) : Deadline::never();
    call.layout = bits >> 7;
    return call;
  }

  void post(int rank, Plan plan, const Stage::Call& call) {
    const Stage::Handle handle = stage_.post(rank, std::move(plan), call);
    if (rank == kSelf) posted_.push_back(handle);
  }

  // An exchange among all, or a broadcast.
  void post_collective(int rank, Input& input) {
    if (input.below(2) == 0) {
      const int root = static_cast<int>(input.below(3));
      Plan plan = plan_broadcast(rank, 3, root, buffer(input).pieces());
      return post(rank, std::move(plan), call(OpKind::kBroadcast, input));
    }
    std::vector<Pieces> out;
    std::vector<Pieces> in;
    for (int peer = 0; peer < 3; ++peer) {
      out.push_back(buffer(input).pieces());
      in.push_back(peer == rank ? out.back() : buffer(input).pieces());
    }
    post(rank, plan_all_to_all(rank, out, in), call(OpKind::kAllToAll, input));
  }

  void post_send(Input& input) {
    const int peer = input.below(2) == 0 ? kHostile : kHonest;
    Plan plan = plan_send(peer, buffer(input).pieces());  // before call() reads on
    post(kSelf, std::move(plan), call(OpKind::kSend, input));
  }

  void post_receive(Input& input) {
    constexpr int kSources[] = {kHostile, kHonest, kAnySource};
    const int source = kSources[input.below(std::size(kSources))];
    Plan plan = plan_receive(source, buffer(input).pieces());
    post(kSelf, std::move(plan), call(OpKind::kRecv, input));
  }

  void trouble(Input& input) {
    switch (input.below(5)) {
      case 0:
        return stage_.close_group(kSelf, input.below(kGroups), "closed");
      case 1:
        return stage_.close_group(kHonest, input.below(kGroups), "closed");
      case 2:
        stage_.link(kSelf, kHostile).fail(Status::peer_lost("lost"));
        return;
      case 3:
        return stage_.reject(kSelf, stage_.group(kSelf).next_sequence(), OpKind::kAllToAll, "no");
      default:
        pull_fails_ = !pull_fails_;
    }
  }

  // The hostile rank makes room, or nothing sent to it would ever be complete.
  void take_all() {
    FakeLink& link = stage_.link(kHostile, kSelf);
    Ignores sink;
    while (link.poll_record(sink)) {
    }
    for (int level = 0; level < kPriorityLevels; ++level) {
      while (link.poll_chunk(level, sink)) {
      }
    }
  }

  void send(std::span<const std::byte> record) {
    static_cast<void>(stage_.link(kHostile, kSelf).try_send(record, {}));
  }

  void send_noise(Input& input) {
    std::vector<std::byte> record(input.below(sizeof(WireHeader) + 8));
    for (std::byte& byte : record) byte = static_cast<std::byte>(input.take<uint8_t>());
    send(record);
  }

  // A header that may fit an operation, but for the fields whose bits are set.
  static WireHeader forged_header(Input& input) {
    WireHeader header;
    const auto bits = input.take<uint32_t>();
    const auto chosen = [&](int bit) { return (bits >> bit & 1) != 0; };
    header.kind = static_cast<RecordKind>(bits >> 28 & 7);
    header.point_to_point = bits >> 31;
    header.group = kFirstGroupId;
    header.bytes = kSizes[bits >> 26 & 3];
    header.bytes_back = header.bytes;
    header.op = static_cast<uint8_t>(OpKind::kAllToAll);
    std::memcpy(header.dtype.data(), "uint8", sizeof("uint8"));
    header.sequence = chosen(0) ? input.number() : 1;
    header.token = chosen(1) ? input.number() : 1;
    header.peer_token = chosen(2) ? input.number() : 1;
    if (chosen(3)) header.group += input.number();
    if (chosen(4)) header.bytes = input.number();
    if (chosen(5)) header.bytes_back = input.number();
    if (chosen(6)) header.op = input.take<uint8_t>();
    if (chosen(7)) header.priority = input.take<int8_t>();
    if (chosen(8)) header.part = static_cast<uint32_t>(input.number());
    if (chosen(9)) header.tag = static_cast<uint32_t>(input.number());
    if (chosen(10)) header.layout = input.number();
    if (chosen(11)) header.address = input.number();
    if (chosen(12)) header.inline_taken = static_cast<uint32_t>(input.number());
    if (chosen(13)) header.sender = static_cast<int32_t>(input.number());
    if (chosen(14)) header.revocations = input.number();
    if (chosen(15)) header.dtype.fill(static_cast<char>(input.take<uint8_t>()));
    if (chosen(16)) header.magic = input.take<uint32_t>();
    return header;
  }

  void send_record(Input& input) {
    const WireHeader header = forged_header(input);
    const auto head = std::as_bytes(std::span(&header, 1));
    std::vector<std::byte> record(head.begin(), head.end());
    const bool honest_length = header.bytes <= Peer::kInlineBytes && input.below(4) != 0;
    record.resize(record.size() + (honest_length ? header.bytes : input.below(256)));
    send(record);
  }

  void send_chunk(Input& input) {
    const int level = static_cast<int>(input.below(kPriorityLevels));
    const ChunkTag tag{input.number(), input.number()};
    std::vector<std::byte> data(input.below(1001));  // to the chunk size of a FakeLink
    const Segment piece{data.data(), data.size()};
    static_cast<void>(stage_.link(kHostile, kSelf).try_put(level, tag, std::span(&piece, 1)));
  }

  std::deque<Buffer> buffers_;  // outlive the operations in stage_
  bool pull_fails_ = false;
  Stage stage_{3};
  std::vector<Stage::Handle> posted_;
};

}  // namespace
}  // namespace freescale::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  freescale::fuzz::Input input(data, size);
  freescale::fuzz::Scene scene;
  while (!input.empty()) scene.act(input);
  scene.end();
  return 0;
}
