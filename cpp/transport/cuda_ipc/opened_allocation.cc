#include "cpp/transport/cuda_ipc/opened_allocation.h"

#include <string>
#include <utility>

#include "cpp/transport/cuda_ipc/owned_handle.h"

namespace freescale::cuda {
namespace {

using Kind = AllocationNotice::Kind;

// For the first call that the system may forbid.
Status refused(const Status& status) {
  return Status(status.code(),
                status.message() +
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
  const Result<bool> has_access =
      notice.kind == Kind::kLegacy ? opened.open_legacy(notice.legacy) : opened.map(fd);
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

Result<bool> OpenedAllocation::map(int fd) {
  const Driver& driver = context_->driver();
  AllocationHandle handle = 0;
  // The descriptor takes the place of a pointer.
  if (Status status = driver.mem_import_from_shareable_handle(
          &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
          HandleType::kPosixFileDescriptor);
      !status.ok()) {
    return refused(status);
  }
  const OwnedHandle owned(driver, handle);  // the mapping will keep the memory
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
