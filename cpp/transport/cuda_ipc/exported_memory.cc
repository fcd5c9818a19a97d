#include "cpp/transport/cuda_ipc/exported_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpp/transport/cuda_ipc/owned_handle.h"

namespace freescale::cuda {
namespace {

using Kind = AllocationNotice::Kind;

Status gone(uint64_t id) {
  return Status::invalid_argument("allocation " + std::to_string(id) +
                                  " is gone: its memory was freed");
}

Status beyond(size_t bytes, size_t inside, const std::string& why) {
  return Status::invalid_argument("a range of " + std::to_string(bytes) + " bytes leaves its " +
                                  "allocation after " + std::to_string(inside) + ": " + why);
}

Status export_fabric(const Driver& driver, const OwnedHandle& memory, FabricHandle* handle) {
  const Status status =
      driver.mem_export_to_shareable_handle(handle, memory.get(), HandleType::kFabric, 0);
  if (status.ok()) return status;
  // Drivers make such memory also on devices that have no fabric (pytorch/pytorch#173606).
  return {status.code(), status.message() +
                             " for memory that can be shared by fabric handle alone: set "
                             "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"};
}

}  // namespace

Result<std::vector<ExportedPiece>> ExportedMemory::export_range(DevicePtr address, size_t bytes) {
  std::vector<ExportedPiece> pieces;
  if (bytes == 0) return pieces;
  const CurrentContext current(context_);
  if (!current.status().ok()) return current.status();
  bool swept = false;
  for (size_t done = 0; done < bytes;) {
    std::optional<Named> named = find_known(address + done);
    if (!named.has_value()) {
      if (!std::exchange(swept, true)) sweep_in_context();
      const Result<Named> met = meet(address + done);
      if (!met.ok()) return done == 0 ? met.status() : beyond(bytes, done, met.status().message());
      named = met.value();
    }
    const DeviceAllocation& allocation = named->allocation;
    const uint64_t offset = address + done - allocation.base;
    const size_t here = std::min<size_t>(bytes - done, allocation.bytes - offset);
    // Mappings are put side by side on purpose, others by chance.
    if (here < bytes && !is_mapped(allocation.kind)) {
      return beyond(bytes, done == 0 ? here : done, "the next one has nothing to do with it");
    }
    pieces.push_back({named->id, offset, here});
    done += here;
  }
  return pieces;
}

std::optional<ExportedMemory::Named> ExportedMemory::find_known(DevicePtr address) const {
  Named named;
  {
    const std::lock_guard lock(mutex_);
    const auto next = by_base_.upper_bound(address);
    if (next == by_base_.begin()) return std::nullopt;
    named.id = std::prev(next)->second;
    named.allocation = known_.at(named.id).allocation;
  }
  const bool holds =
      named.allocation.contains(address) && still_exists(context_.driver(), named.allocation);
  return holds ? std::optional(named) : std::nullopt;
}

Result<ExportedMemory::Named> ExportedMemory::meet(DevicePtr address) {
  Result<DeviceAllocation> found = find_allocation(context_, address);
  if (!found.ok()) return found.status();
  Exported exported{found.value()};
  if (exported.allocation.kind == Kind::kLegacy) {
    if (Status status = context_.driver().ipc_get_mem_handle(&exported.legacy, address);
        !status.ok()) {
      return status;
    }
  }
  return Named{remember(exported), exported.allocation};
}

uint64_t ExportedMemory::remember(const Exported& exported) {
  const std::lock_guard lock(mutex_);
  const auto at_base = by_base_.find(exported.allocation.base);
  // Another thread may have met it meanwhile.
  if (at_base != by_base_.end() &&
      known_.at(at_base->second).allocation.buffer_id == exported.allocation.buffer_id) {
    return at_base->second;
  }
  known_.emplace(++last_id_, exported);
  by_base_[exported.allocation.base] = last_id_;
  return last_id_;
}

Result<AllocationNotice> ExportedMemory::notice(uint64_t id, UniqueFd* fd) const {
  Exported exported;
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(id);
    if (found == known_.end()) return gone(id);
    exported = found->second;
  }
  const CurrentContext current(context_);
  if (!current.status().ok()) return current.status();
  const DeviceAllocation& allocation = exported.allocation;
  AllocationNotice notice{id, allocation.kind, allocation.bytes, exported.legacy};
  UniqueFd made;
  const Status status =
      is_mapped(allocation.kind) ? export_mapping(allocation.base, &notice, &made) : Status();
  // If it is there now, what was made is its: the address leads elsewhere only once it is gone.
  if (!still_exists(context_.driver(), allocation)) return gone(id);
  if (!status.ok()) return status;
  *fd = std::move(made);
  return notice;
}

// As the notice's kind says: into it, or as a descriptor.
Status ExportedMemory::export_mapping(DevicePtr mapping, AllocationNotice* notice,
                                      UniqueFd* fd) const {
  const Driver& driver = context_.driver();
  AllocationHandle handle = 0;
  if (Status status =
          driver.mem_retain_allocation_handle(&handle, reinterpret_cast<void*>(mapping));
      !status.ok()) {
    return status;
  }
  const OwnedHandle owned(driver, handle);
  if (notice->kind == Kind::kFabric) return export_fabric(driver, owned, &notice->fabric);
  int raw = -1;
  Status status =
      driver.mem_export_to_shareable_handle(&raw, owned.get(), HandleType::kPosixFileDescriptor, 0);
  if (status.ok()) *fd = UniqueFd(raw);
  return status;
}

void ExportedMemory::sweep() {
  const CurrentContext current(context_);
  if (current.status().ok()) sweep_in_context();
}

void ExportedMemory::sweep_in_context() {
  std::vector<Named> missing;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, exported] : known_) missing.push_back({id, exported.allocation});
  }
  std::erase_if(missing, [&](const Named& named) {
    return still_exists(context_.driver(), named.allocation);
  });
  const std::lock_guard lock(mutex_);
  for (const auto& [id, allocation] : missing) {
    if (known_.erase(id) == 0) continue;  // another thread was faster
    const auto at_base = by_base_.find(allocation.base);
    if (at_base != by_base_.end() && at_base->second == id) by_base_.erase(at_base);
    gone_.push_back(id);
  }
}

std::vector<uint64_t> ExportedMemory::take_gone() {
  const std::lock_guard lock(mutex_);
  return std::exchange(gone_, {});
}

}  // namespace freescale::cuda
