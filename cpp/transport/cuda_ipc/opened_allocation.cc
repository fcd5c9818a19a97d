#include "cpp/transport/cuda_ipc/opened_allocation.h"

#include <string>
#include <utility>

#include "cpp/transport/cuda_ipc/owned_handle.h"

namespace freescale::cuda {
namespace {

using Kind = AllocationNotice::Kind;

Status with_hint(const Status& status, const char* hint) {
  return {status.code(), status.message() + hint};
}

// For the first call that the system may forbid.
Status refused(const Status& status) {
  return with_hint(status,
                   " on opening a peer's memory: both processes must run as one user, in one "
                   "container or in containers that share the IPC and PID namespaces "
                   "(--ipc=host --pid=host)");
}

}  // namespace

Result<std::optional<OpenedAllocation>> OpenedAllocation::open(const PrimaryContext& context,
                                                               const AllocationNotice& notice,
                                                               int fd) {
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  // Closes what there is of it if the rest fails.
  OpenedAllocation opened(context, notice);
  const Result<bool> has_access = opened.open_as(notice, fd);
  if (!has_access.ok()) return has_access.status();
  if (!has_access.value()) return std::optional<OpenedAllocation>();
  return std::optional(std::move(opened));
}

OpenedAllocation::OpenedAllocation(OpenedAllocation&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      kind_(other.kind_),
      bytes_(other.bytes_),
      base_(other.base_),
      mapped_(other.mapped_) {}

OpenedAllocation::~OpenedAllocation() {
  if (context_ == nullptr || base_ == 0) return;
  const CurrentContext current(*context_);
  const Driver& driver = context_->driver();
  // All fail only with a context that is lost, and then nothing is open any more.
  if (kind_ == Kind::kLegacy) {
    driver.ipc_close_mem_handle.code(base_);
    return;
  }
  if (mapped_) driver.mem_unmap.code(base_, bytes_);
  driver.mem_address_free.code(base_, bytes_);
}

Result<bool> OpenedAllocation::open_as(const AllocationNotice& notice, int fd) {
  switch (notice.kind) {
    case Kind::kLegacy:
      return open_legacy(notice.legacy);
    case Kind::kDescriptor:
      return open_descriptor(fd);
    case Kind::kFabric:
      return open_fabric(notice.fabric);
  }
  return Status::invalid_argument("memory of an unknown kind");
}

Result<bool> OpenedAllocation::open_legacy(const IpcMemoryHandle& handle) {
  const Driver& driver = context_->driver();
  const Code code = driver.ipc_open_mem_handle.code(&base_, handle, kIpcLazyEnablePeerAccess);
  if (code == Code::kPeerAccessUnsupported) return false;
  if (code != Code::kSuccess) return refused(driver.ipc_open_mem_handle.status(code));
  // A copy beyond the end would end the context, so the peer's word is not enough.
  DevicePtr start = 0;
  size_t bytes = 0;
  if (Status status = driver.mem_get_address_range(&start, &bytes, base_); !status.ok()) {
    return status;
  }
  if (bytes >= bytes_) return true;
  return Status::invalid_argument("the peer's memory has " + std::to_string(bytes) +
                                  " bytes, but was said to have " + std::to_string(bytes_));
}

Result<bool> OpenedAllocation::open_descriptor(int fd) {
  const Driver& driver = context_->driver();
  AllocationHandle handle = 0;
  // The descriptor takes the place of a pointer.
  if (Status status = driver.mem_import_from_shareable_handle(
          &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
          HandleType::kPosixFileDescriptor);
      !status.ok()) {
    return refused(status);
  }
  return map(handle);
}

Result<bool> OpenedAllocation::open_fabric(FabricHandle fabric) {
  const Driver& driver = context_->driver();
  AllocationHandle handle = 0;
  const Code code =
      driver.mem_import_from_shareable_handle.code(&handle, &fabric, HandleType::kFabric);
  // The container of this process has no channel of IMEX, or not the peer's device
  // (kubernetes-sigs/dra-driver-nvidia-gpu#294), and its driver no other way to the memory.
  if (code == Code::kNotPermitted || code == Code::kNotSupported || code == Code::kInvalidDevice) {
    return false;
  }
  if (code != Code::kSuccess) {
    return with_hint(
        driver.mem_import_from_shareable_handle.status(code),
        " on opening a peer's memory by its fabric handle: the service that knows such "
        "handles (nvidia-imex) must run");
  }
  return map(handle);
}

// Takes the handle, which is closed once the mapping keeps the memory.
Result<bool> OpenedAllocation::map(AllocationHandle handle) {
  const Driver& driver = context_->driver();
  const OwnedHandle owned(driver, handle);
  if (Status status = driver.mem_address_reserve(&base_, bytes_, 0, 0, 0); !status.ok()) {
    return status;
  }
  if (Status status = driver.mem_map(base_, bytes_, 0, owned.get(), 0); !status.ok()) {
    return status;
  }
  mapped_ = true;
  return allow_access();
}

Result<bool> OpenedAllocation::allow_access() {
  const Driver& driver = context_->driver();
  AccessDescription access;
  access.location.id = context_->device();
  const Code code = driver.mem_set_access.code(base_, bytes_, &access, 1);
  // The first is what drivers say where there is no peer access (pytorch/pytorch#174030).
  if (code == Code::kInvalidDevice || code == Code::kPeerAccessUnsupported) return false;
  if (code != Code::kSuccess) return driver.mem_set_access.status(code);
  return true;
}

}  // namespace freescale::cuda
