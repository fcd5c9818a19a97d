#include "tests/fakes/cuda_driver/shared_event.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace fake_cuda {

using freescale::UniqueFd;

SharedEvent::SharedEvent(UniqueFd fd, Words* words) : fd_(std::move(fd)), words_(words) {}

SharedEvent::~SharedEvent() { munmap(words_, sizeof(Words)); }

std::shared_ptr<SharedEvent> SharedEvent::map(UniqueFd fd) {
  void* words = mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (words == MAP_FAILED) return nullptr;
  return std::shared_ptr<SharedEvent>(new SharedEvent(std::move(fd), static_cast<Words*>(words)));
}

std::shared_ptr<SharedEvent> SharedEvent::create() {
  UniqueFd fd(memfd_create("event", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), sizeof(Words)) != 0) return nullptr;
  std::shared_ptr<SharedEvent> event = map(std::move(fd));
  if (event != nullptr) event->words_->magic = kMagic;
  return event;
}

std::shared_ptr<SharedEvent> SharedEvent::adopt(UniqueFd fd) {
  struct stat about{};
  if (fstat(fd.get(), &about) != 0 || about.st_size != sizeof(Words)) return nullptr;
  std::shared_ptr<SharedEvent> event = map(std::move(fd));
  return event != nullptr && event->words_->magic == kMagic ? event : nullptr;
}

uint64_t SharedEvent::record() { return ++words_->recorded; }

uint64_t SharedEvent::latest() const { return words_->recorded; }

void SharedEvent::finish(uint64_t number) {
  // Recordings of several streams may end in another order.
  uint64_t before = words_->finished;
  while (before < number && !words_->finished.compare_exchange_weak(before, number)) {
  }
}

bool SharedEvent::finished(uint64_t number) const { return words_->finished >= number; }

}  // namespace fake_cuda
