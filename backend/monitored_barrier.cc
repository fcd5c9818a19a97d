// A barrier that tells who is missing. Rank 0 hears from everyone, then answers everyone with the
// list of those it did not hear from, and why if it knows.

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "backend/backend.h"
#include "backend/plain_dispatch.h"
#include "cpp/base/text.h"

namespace freescale {
namespace {

// Tags of users are not negative as int, so those with the highest bit are free.
constexpr uint32_t kReservedTags = uint32_t{1} << 31;
// Rank 0 answers when its own time is up, so the others wait a little longer for the answer.
constexpr std::chrono::milliseconds kAnswerGrace{1000};

// Rank 0's answer, one tensor: a flag for each rank that did not come, then what is known of why,
// filled up with zeros. An empty text: they were only late.
constexpr int64_t kReasonBytes = 512;

at::Tensor empty_answer(int size) {
  return at::zeros({size + kReasonBytes}, at::TensorOptions(at::kByte));
}

void note_missing(at::Tensor& answer, int rank, const std::string& reason) {
  const int64_t size = answer.numel() - kReasonBytes;
  auto* bytes = answer.mutable_data_ptr<uint8_t>();
  bytes[rank] = 1;
  uint8_t* text = bytes + size;
  if (*text == 0)
    std::copy_n(reason.data(), std::min<size_t>(reason.size(), kReasonBytes - 1), text);
}

std::vector<int> missing_ranks(const at::Tensor& answer) {
  const auto* flags = answer.const_data_ptr<uint8_t>();
  std::vector<int> ranks;
  for (int rank = 0; rank < answer.numel() - kReasonBytes; ++rank) {
    if (flags[rank] != 0) ranks.push_back(rank);
  }
  return ranks;
}

std::string reason_of(const at::Tensor& answer) {
  const auto* end =
      reinterpret_cast<const char*>(answer.const_data_ptr<uint8_t>()) + answer.numel();
  const char* text = end - kReasonBytes;
  return readable({text, std::find(text, end, char{0})});
}

// Notes in the answer that the rank did not come, if so; returns whether it came.
bool await_arrival(Work& work, int rank, at::Tensor& answer) {
  const Status status = work.outcome();
  if (status.ok()) return true;
  const bool late = status.code() == StatusCode::kTimedOut;
  note_missing(answer, rank, late ? std::string() : status.message());
  return false;
}

Call point_to_point(const Call& barrier, OpKind op) {
  Call call = barrier;
  call.site.op = op;
  call.site.sequence = 0;
  return call;
}

}  // namespace

at::Tensor Backend::collect_missing(const Call& call, uint32_t tag, bool wait_all_ranks) {
  at::Tensor answer = empty_answer(size_);
  const at::Tensor nothing = at::empty({0}, at::TensorOptions(at::kByte));
  std::vector<c10::intrusive_ptr<Work>> arrivals;
  for (int rank = 1; rank < size_; ++rank) {
    arrivals.push_back(start_receive(point_to_point(call, OpKind::kRecv), rank, tag, nothing));
  }
  for (int rank = 1; rank < size_; ++rank) {
    if (!await_arrival(*arrivals[rank - 1], rank, answer) && !wait_all_ranks) break;
  }
  // The answer gets time of its own: what the barrier had may be used up.
  Call reply = point_to_point(call, OpKind::kSend);
  reply.deadline = Deadline::after(kAnswerGrace);
  for (int rank = 1; rank < size_; ++rank) start_send(reply, rank, tag, answer);
  return answer;
}

at::Tensor Backend::ask_for_missing(const Call& call, uint32_t tag) {
  at::Tensor answer = empty_answer(size_);
  const at::Tensor nothing = at::empty({0}, at::TensorOptions(at::kByte));
  start_send(point_to_point(call, OpKind::kSend), 0, tag, nothing);
  Call question = point_to_point(call, OpKind::kRecv);
  question.deadline = Deadline::after(call.timeout + kAnswerGrace);
  const auto received = start_receive(question, 0, tag, answer);
  await_arrival(*received, 0, answer);
  return answer;
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Call call = begin(OpKind::kBarrier, at::kByte, options.timeout, /*async_op=*/true,
                          /*numbered=*/true);
  const PlainDispatch guard;
  const uint32_t tag = kReservedTags | static_cast<uint32_t>(call.site.sequence);
  const at::Tensor answer =
      rank_ == 0 ? collect_missing(call, tag, wait_all_ranks) : ask_for_missing(call, tag);
  const std::vector<int> missing = missing_ranks(answer);
  if (missing.empty()) return;
  const std::string who = c10::str("rank ", c10::Join(", ", missing), " did not arrive");
  const std::string reason = reason_of(answer);
  if (!reason.empty()) {
    throw_status(Status::peer_lost(c10::str(
        call.site, "Rank ", rank_, " failed to pass monitoredBarrier: ", who, ": ", reason)));
  }
  throw_status(Status::timed_out(c10::str(call.site, "Rank ", rank_,
                                          " timed out in monitoredBarrier: Timed out after ",
                                          call.timeout.count(), " ms: ", who)));
}

}  // namespace freescale
