#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/base/unique_fd.h"
#include "cpp/device/cuda_context.h"
#include "cpp/transport/cuda_ipc/allocation_notice.h"
#include "cpp/transport/cuda_ipc/opened_allocation.h"

namespace freescale::cuda {

// The allocations of a peer's device as a device of this process sees them: opened when they are
// first used, and open until the peer has freed them and nobody uses them any more. One for each
// peer process and device.
//
// acquire(), close_removed() and the destructor call the driver, need no current context, and are
// for one thread at a time. Everything else never calls the driver, and is for any thread: it goes
// on while the driver's lock is held.
class ImportedMemory {
 public:
  // `context` must outlive this object.
  explicit ImportedMemory(const PrimaryContext& context) : context_(context) {}
  // Closes everything: the device's work on it must be over.
  ~ImportedMemory() = default;
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  // What the peer tells of an allocation before, or soon after, it names a piece of it. A
  // descriptor is kept until the allocation is first opened, or removed. An error if the notice
  // makes no sense, or the id was there before.
  Status add(const AllocationNotice& notice, UniqueFd fd);

  // The peer has freed the allocation: no further acquire() gets it, and close_removed() closes it
  // once it is not in use. An error if there was no notice of it.
  Status remove(uint64_t id);

  // Where a piece lies for the device of this process. Waits for the notice if need be, until the
  // deadline. The allocation is in use until release() was called as often as this gave an address.
  //
  // No address: the device has no access to the peer's, or the process may not open its memory, and
  // neither will change (the peer is to be served through host memory). Errors: kTimedOut;
  // kCancelled after interrupt(); kInvalidArgument if the peer names what it has not, a piece
  // outside of an allocation or an allocation that it has freed; kSystem if the driver refuses.
  Result<std::optional<DevicePtr>> acquire(const ExportedPiece& piece, Deadline deadline);
  void release(uint64_t id);

  void close_removed();

  // The peer is lost: from now on no acquire() waits. One that does, or would, is cancelled.
  void interrupt();

 private:
  struct Allocation {
    AllocationNotice notice;
    UniqueFd fd;
    std::optional<OpenedAllocation> opened;
    size_t users = 0;
  };

  // Under the lock, which is open while it waits.
  Result<Allocation*> await(std::unique_lock<std::mutex>& lock, uint64_t id, Deadline deadline);
  void give_up_access();

  const PrimaryContext& context_;

  std::mutex mutex_;  // never held during a call of the driver
  std::condition_variable changed_;
  std::unordered_map<uint64_t, Allocation> allocations_;
  std::unordered_set<uint64_t> removed_;  // may still be in allocations_, until closed
  bool has_access_ = true;                // until the driver says no
  bool interrupted_ = false;
};

}  // namespace freescale::cuda
