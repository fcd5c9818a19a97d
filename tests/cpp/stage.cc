#include "tests/cpp/stage.h"

#include <utility>

#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {

Stage::Stage(int size, std::chrono::nanoseconds aging) {
  for (int rank = 0; rank < size; ++rank) {
    ranks_.push_back(std::make_unique<OneRank>(aging));
    for (int peer = 0; peer < size; ++peer) {
      ranks_[rank]->links.push_back(peer == rank ? nullptr : std::make_shared<FakeLink>());
    }
  }
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) FakeLink::connect(link(a, b), link(b, a));
  }
  add_group();
}

size_t Stage::add_group() {
  const size_t number = ranks_[0]->groups.size();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    OneRank& one = *ranks_[rank];
    const std::vector<std::shared_ptr<Link>> links(one.links.begin(), one.links.end());
    one.groups.push_back(std::make_shared<Group>(1000 + number, "g" + std::to_string(number),
                                                 static_cast<int>(rank), links));
    one.protocol.add_group(one.groups.back());
  }
  return number;
}

Stage::Handle Stage::post(int rank, Plan plan, const Call& call) {
  OneRank& one = *ranks_[rank];
  auto outcome = std::make_shared<Outcome>();
  auto operation = std::make_unique<Operation>();
  Request& request = operation->request;
  request.group = one.groups[call.group];
  request.plan = signed_plan(std::move(plan), call.op, call.dtype);
  request.plan.signature.layout = call.layout;
  const bool point_to_point = call.op == OpKind::kSend || call.op == OpKind::kRecv;
  request.sequence = call.sequence;
  if (!point_to_point && call.sequence == 0) request.sequence = request.group->next_sequence();
  request.part = call.part;
  request.tag = call.tag;
  request.priority = call.priority;
  request.deadline = call.deadline;
  if (call.device != nullptr) request.device = *call.device;
  if (call.memory != nullptr) request.keep_memory = [memory = *call.memory] { return memory; };
  request.on_done = [outcome](const OpResult& result) {
    outcome->done = true;
    outcome->result = result;
  };
  one.protocol.post(std::move(operation));
  report_finished(rank);
  return outcome;
}

void Stage::reject(int rank, uint64_t sequence, OpKind op, const std::string& reason) {
  protocol(rank).reject(group(rank), sequence, op, reason);
}

void Stage::close_group(int rank, size_t number, const std::string& reason) {
  protocol(rank).close_group(group(rank, number), reason);
  report_finished(rank);
}

void Stage::report_finished(int rank) {
  for (Protocol::Finished& one : protocol(rank).take_finished()) one.on_done(one.result);
}

bool Stage::step(int rank) {
  const bool records = protocol(rank).poll_records();
  const bool chunks = protocol(rank).move_chunks();
  const bool devices = protocol(rank).poll_devices();
  report_finished(rank);
  return records || chunks || devices;
}

void Stage::exchange_records() {
  bool any = true;
  while (any) {
    any = false;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      any = ranks_[rank]->protocol.poll_records() || any;
      report_finished(static_cast<int>(rank));
    }
  }
}

void Stage::run() {
  bool any = true;
  while (any) {
    any = false;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) any = step(static_cast<int>(rank)) || any;
  }
}

Buffer::Buffer(size_t size, int seed) : bytes(pattern_bytes(seed, 0, size)) {}

Plan exchange(int self, Buffer& out, Buffer& in) {
  std::vector<Pieces> input(2);
  std::vector<Pieces> output(2);
  input[1 - self] = out.pieces();
  output[1 - self] = in.pieces();
  return plan_all_to_all(self, input, output);
}

Plan one_way(int self, int size, int root, Buffer& buffer) {
  Plan plan;
  if (self != root) {
    plan.receives.push_back({root, buffer.pieces()});
    return plan;
  }
  for (int to = 0; to < size; ++to) {
    if (to != root) plan.sends.push_back({to, buffer.pieces()});
  }
  return plan;
}

void expect_works(Stage& stage, size_t group) {
  constexpr size_t kBytes = 50'000;  // in chunks
  Buffer out0(kBytes, 1), in0(kBytes), out1(kBytes, 2), in1(kBytes);
  const auto a = stage.post(0, exchange(0, out0, in0), {.group = group});
  const auto b = stage.post(1, exchange(1, out1, in1), {.group = group});
  stage.run();
  CHECK(a->done && b->done);
  CHECK_OK(a->result.status);
  CHECK_OK(b->result.status);
  CHECK(in0.bytes == out1.bytes);
  CHECK(in1.bytes == out0.bytes);
}

}  // namespace freescale::testing
