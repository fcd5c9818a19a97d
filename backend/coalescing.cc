// Batches, as of batch_isend_irecv(): every operation starts at once, and one Work stands for all.

#include <utility>

#include <c10/util/Exception.h>

#include "backend/backend.h"
#include "backend/batch_work.h"

namespace freescale {

bool Backend::is_coalescing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return coalescing_thread_ == std::this_thread::get_id();
}

void Backend::note_coalesced(const c10::intrusive_ptr<Work>& work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (coalescing_thread_ == std::this_thread::get_id()) coalesced_.push_back(work);
}

void Backend::startCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(coalescing_thread_ == std::thread::id(), "freescale: rank ", rank_,
              ": a batch is open already, and batches cannot be nested");
  coalescing_thread_ = std::this_thread::get_id();
}

c10::intrusive_ptr<c10d::Work> Backend::endCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(coalescing_thread_ == std::this_thread::get_id(), "freescale: rank ", rank_,
              ": this thread has no open batch");
  coalescing_thread_ = {};
  return c10::make_intrusive<BatchWork>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace freescale
