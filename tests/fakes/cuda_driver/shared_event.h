#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "cpp/base/unique_fd.h"

namespace fake_cuda {

// An event that several processes know: recordings are numbered, in memory that all of them map.
// Thread-safe.
class SharedEvent {
 public:
  static constexpr uint64_t kMagic = 0x4652455345564e54;

  // Null if there is no memory.
  static std::shared_ptr<SharedEvent> create();
  // That of another process; null if the descriptor does not lead to one.
  static std::shared_ptr<SharedEvent> adopt(freescale::UniqueFd fd);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  int fd() const { return fd_.get(); }
  // The number of one more recording, from 1 on.
  uint64_t record();
  // That of the latest; 0 before the first.
  uint64_t latest() const;
  void finish(uint64_t number);
  bool finished(uint64_t number) const;

 private:
  struct Words {
    uint64_t magic;
    std::atomic<uint64_t> recorded;
    std::atomic<uint64_t> finished;
  };

  static std::shared_ptr<SharedEvent> map(freescale::UniqueFd fd);
  SharedEvent(freescale::UniqueFd fd, Words* words);

  freescale::UniqueFd fd_;
  Words* words_;
};

}  // namespace fake_cuda
