#pragma once

#include <mutex>
#include <vector>

#include "backend/work.h"

namespace freescale {

// One handle on several works that were started together. Done when all of them are; fails when one
// does, with the failure of the first in the order in which they were started.
class BatchWork final : public c10d::Work {
 public:
  BatchWork(int rank, std::vector<c10::intrusive_ptr<freescale::Work>> works);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // The outputs of all, in order.
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  void blockCurrentStream() override { wait(); }
  void abort() override;
  uint64_t getSequencenumber() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<freescale::Work>> works_;
  std::once_flag future_made_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace freescale
