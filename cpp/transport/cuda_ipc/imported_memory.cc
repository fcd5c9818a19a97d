#include "cpp/transport/cuda_ipc/imported_memory.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace freescale::cuda {
namespace {

using Kind = AllocationNotice::Kind;

// More than any address space of today.
constexpr uint64_t kMostBytes = uint64_t{1} << 56;

std::string name_of(uint64_t id) { return "the peer's allocation " + std::to_string(id); }

Status nonsense(uint64_t id, const std::string& why) {
  return Status::invalid_argument(name_of(id) + " " + why);
}

Status check_notice(const AllocationNotice& notice, const UniqueFd& fd) {
  if (notice.kind < Kind::kLegacy || notice.kind > Kind::kFabric) {
    return nonsense(notice.id,
                    "is of unknown kind " + std::to_string(static_cast<uint32_t>(notice.kind)));
  }
  if (fd.valid() != (notice.kind == Kind::kDescriptor)) {
    return nonsense(notice.id, fd.valid() ? "came with a descriptor that it has no use for"
                                          : "came without its descriptor");
  }
  if (notice.bytes == 0 || notice.bytes > kMostBytes) {
    return nonsense(notice.id, "is said to have " + std::to_string(notice.bytes) + " bytes");
  }
  return {};
}

}  // namespace

Status ImportedMemory::add(const AllocationNotice& notice, UniqueFd fd) {
  if (Status status = check_notice(notice, fd); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  if (removed_.contains(notice.id) || allocations_.contains(notice.id)) {
    return nonsense(notice.id, "was there before");
  }
  Allocation& allocation = allocations_[notice.id];
  allocation.notice = notice;
  if (has_access_) allocation.fd = std::move(fd);
  changed_.notify_all();
  return {};
}

Status ImportedMemory::remove(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(id);
  if (found == allocations_.end() || !removed_.insert(id).second) {
    return nonsense(id, "was freed, but was not there");
  }
  if (found->second.users == 0 && !found->second.opened.has_value()) allocations_.erase(found);
  changed_.notify_all();
  return {};
}

Result<std::optional<DevicePtr>> ImportedMemory::acquire(const ExportedPiece& piece,
                                                         Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!has_access_) return std::optional<DevicePtr>();
  Result<Allocation*> awaited = await(lock, piece.allocation, deadline);
  if (!awaited.ok()) return awaited.status();
  Allocation& allocation = *awaited.value();
  const uint64_t bytes = allocation.notice.bytes;
  if (piece.bytes > bytes || piece.offset > bytes - piece.bytes) {
    return nonsense(piece.allocation, "has " + std::to_string(bytes) + " bytes, but " +
                                          std::to_string(piece.bytes) + " from byte " +
                                          std::to_string(piece.offset) + " on were named");
  }
  ++allocation.users;  // so that it stays while the lock is open
  if (!allocation.opened.has_value()) {
    lock.unlock();
    auto opened = OpenedAllocation::open(context_, allocation.notice, allocation.fd.get());
    lock.lock();
    if (!opened.ok() || !opened.value().has_value()) {
      --allocation.users;
      if (!opened.ok()) return opened.status();
      give_up_access();
      return std::optional<DevicePtr>();
    }
    allocation.opened.emplace(std::move(*opened.value()));
    allocation.fd.reset();
  }
  return std::optional(allocation.opened->base() + piece.offset);
}

Result<ImportedMemory::Allocation*> ImportedMemory::await(std::unique_lock<std::mutex>& lock,
                                                          uint64_t id, Deadline deadline) {
  while (true) {
    if (removed_.contains(id)) return nonsense(id, "was named after it was freed");
    if (const auto found = allocations_.find(id); found != allocations_.end()) {
      return &found->second;
    }
    if (interrupted_) return Status::cancelled("the peer is lost, and with it " + name_of(id));
    const auto left = std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::hours(1));
    if (left.count() == 0) {
      return Status::timed_out(name_of(id) + " Timed out: its owner did not tell how to open it");
    }
    changed_.wait_for(lock, left);
  }
}

// Descriptors that nobody will open would keep the peer's memory.
void ImportedMemory::give_up_access() {
  has_access_ = false;
  for (auto& [id, allocation] : allocations_) allocation.fd.reset();
}

void ImportedMemory::release(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(id);
  if (found != allocations_.end() && found->second.users > 0) --found->second.users;
}

void ImportedMemory::close_removed() {
  std::vector<OpenedAllocation> closing;  // closed when the lock is open again
  const std::lock_guard lock(mutex_);
  for (auto next = allocations_.begin(); next != allocations_.end();) {
    const auto here = next++;
    Allocation& allocation = here->second;
    if (allocation.users > 0 || !removed_.contains(here->first)) continue;
    if (allocation.opened.has_value()) closing.push_back(std::move(*allocation.opened));
    allocations_.erase(here);
  }
}

void ImportedMemory::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

}  // namespace freescale::cuda
