// A barrier that tells who is missing. Rank 0 hears from everyone, then answers everyone with the
// list of those it did not hear from in time.

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "backend/backend.h"
#include "backend/plain_dispatch.h"

namespace freescale {
namespace {

// Tags of users are not negative as int, so those with the highest bit are free.
constexpr uint32_t kReservedTags = uint32_t{1} << 31;
// Rank 0 answers when its own time is up, so the others wait a little longer for the answer.
constexpr std::chrono::milliseconds kAnswerGrace{1000};

std::vector<int> missing_ranks(const at::Tensor& missing) {
  const auto* flags = missing.const_data_ptr<uint8_t>();
  std::vector<int> ranks;
  for (int rank = 0; rank < missing.numel(); ++rank) {
    if (flags[rank] != 0) ranks.push_back(rank);
  }
  return ranks;
}

// Late or lost: missing either way.
bool has_arrived(Work& work) {
  try {
    return work.wait();
  } catch (const c10::DistBackendError&) {
    return false;
  }
}

Call point_to_point(const Call& barrier, OpKind op) {
  Call call = barrier;
  call.site.op = op;
  call.site.sequence = 0;
  return call;
}

}  // namespace

at::Tensor Backend::collect_missing(const Call& call, uint32_t tag, bool wait_all_ranks) {
  at::Tensor missing = at::zeros({size_}, at::TensorOptions(at::kByte));
  const at::Tensor nothing = at::empty({0}, at::TensorOptions(at::kByte));
  std::vector<c10::intrusive_ptr<Work>> arrivals;
  for (int rank = 1; rank < size_; ++rank) {
    arrivals.push_back(start_receive(point_to_point(call, OpKind::kRecv), rank, tag, nothing));
  }
  for (int rank = 1; rank < size_; ++rank) {
    if (has_arrived(*arrivals[rank - 1])) continue;
    missing.mutable_data_ptr<uint8_t>()[rank] = 1;
    if (!wait_all_ranks) break;
  }
  // The answer gets time of its own: what the barrier had may be used up.
  Call answer = point_to_point(call, OpKind::kSend);
  answer.deadline = Deadline::after(kAnswerGrace);
  for (int rank = 1; rank < size_; ++rank) start_send(answer, rank, tag, missing);
  return missing;
}

at::Tensor Backend::ask_for_missing(const Call& call, uint32_t tag) {
  at::Tensor missing = at::zeros({size_}, at::TensorOptions(at::kByte));
  const at::Tensor nothing = at::empty({0}, at::TensorOptions(at::kByte));
  start_send(point_to_point(call, OpKind::kSend), 0, tag, nothing);
  Call question = point_to_point(call, OpKind::kRecv);
  question.deadline = Deadline::after(call.timeout + kAnswerGrace);
  if (!has_arrived(*start_receive(question, 0, tag, missing))) {
    missing.mutable_data_ptr<uint8_t>()[0] = 1;
  }
  return missing;
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Call call = begin(OpKind::kBarrier, at::kByte, options.timeout, /*async_op=*/true,
                          /*numbered=*/true);
  const PlainDispatch guard;
  const uint32_t tag = kReservedTags | static_cast<uint32_t>(call.site.sequence);
  const at::Tensor missing =
      rank_ == 0 ? collect_missing(call, tag, wait_all_ranks) : ask_for_missing(call, tag);
  const std::vector<int> late = missing_ranks(missing);
  if (late.empty()) return;
  throw_status(Status::timed_out(
      c10::str(call.site, "Rank ", rank_, " timed out in monitoredBarrier: Timed out after ",
               call.timeout.count(), " ms: rank ", c10::Join(", ", late), " did not arrive")));
}

}  // namespace freescale
