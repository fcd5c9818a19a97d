#include "backend/batch_work.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include <ATen/core/jit_type.h>

namespace freescale {
namespace {

// Completes `future` once, behind the last of `works`.
void complete_after_all(const c10::intrusive_ptr<c10::ivalue::Future>& future,
                        const std::vector<c10::intrusive_ptr<Work>>& works,
                        std::vector<at::Tensor> outputs) {
  struct Progress {
    std::atomic<size_t> left;
    std::mutex mutex;  // guards failure
    std::exception_ptr failure;
  };
  auto progress = std::make_shared<Progress>();
  progress->left = works.size();
  const auto one_done = [future, progress, outputs](c10::ivalue::Future& one) {
    if (one.hasError()) {
      std::lock_guard<std::mutex> lock(progress->mutex);
      if (!progress->failure) progress->failure = one.exception_ptr();
    }
    if (progress->left.fetch_sub(1) > 1) return;
    if (progress->failure) {
      future->setError(progress->failure);
    } else {
      future->markCompleted(c10::IValue(outputs));
    }
  };
  for (const auto& work : works) work->getFuture()->addCallback(one_done);
}

}  // namespace

BatchWork::BatchWork(int rank, std::vector<c10::intrusive_ptr<freescale::Work>> works)
    : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool BatchWork::wait(std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (const auto& work : works_) {
    auto left = kNoTimeout;
    if (timeout != kNoTimeout) {
      left = std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline.left()),
                      std::chrono::milliseconds(1));
    }
    work->wait(left);
  }
  return true;
}

bool BatchWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->isCompleted(); });
}

bool BatchWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->isSuccess(); });
}

std::exception_ptr BatchWork::exception() const {
  for (const auto& work : works_) {
    if (std::exception_ptr failure = work->exception()) return failure;
  }
  return nullptr;
}

std::vector<at::Tensor> BatchWork::result() {
  std::vector<at::Tensor> outputs;
  for (const auto& work : works_) {
    const std::vector<at::Tensor> of_one = work->result();
    outputs.insert(outputs.end(), of_one.begin(), of_one.end());
  }
  return outputs;
}

void BatchWork::abort() {
  if (!works_.empty()) works_.front()->abort();  // which closes the group of all
}

uint64_t BatchWork::getSequencenumber() const {
  return works_.empty() ? 0 : works_.front()->getSequencenumber();
}

c10::intrusive_ptr<c10::ivalue::Future> BatchWork::getFuture() {
  std::call_once(future_made_, [this] {
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (works_.empty()) {
      future_->markCompleted(c10::IValue(std::vector<at::Tensor>()));
    } else {
      complete_after_all(future_, works_, result());
    }
  });
  return future_;
}

}  // namespace freescale
