#include "cpp/device/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>
#include <vector>

namespace freescale::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
// Only tests set it: the path of a stand-in driver.
constexpr const char* kPathVariable = "FREESCALE_CUDA_DRIVER";

std::string library_path() {
  const char* path = std::getenv(kPathVariable);
  return path != nullptr && *path != '\0' ? path : kLibrary;
}

// Null where the driver has no such call for that version; drivers differ in whether that is an
// error.
void* find(GetProcAddress* get_proc_address, const char* name, int version) {
  void* entry = nullptr;
  ProcAddressStatus status = ProcAddressStatus::kSuccess;
  const Code code = get_proc_address(name, &entry, version, kProcAddressLegacyStream, &status);
  return code == Code::kSuccess && status == ProcAddressStatus::kSuccess ? entry : nullptr;
}

Result<GetProcAddress*> open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Status::system("no CUDA driver on this machine: " +
                          std::string(reason != nullptr ? reason : path));
  }
  void* entry = dlsym(library, "cuGetProcAddress_v2");
  if (entry == nullptr) {
    return Status::system("the CUDA driver " + path +
                          " is older than 12.0: no cuGetProcAddress_v2");
  }
  return reinterpret_cast<GetProcAddress*>(entry);
}

}  // namespace

Status failure(GetErrorName* names, std::string_view call, Code code) {
  const char* name = nullptr;
  if (names(code, &name) != Code::kSuccess || name == nullptr) name = "unknown error";
  return Status::system(std::string(call) + ": " + name + " (" +
                        std::to_string(static_cast<int>(code)) + ")");
}

std::string Driver::version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Result<const Driver*> Driver::get() {
  // Leaked on purpose: threads may still make calls while the process ends.
  static const Result<const Driver*>* const shared = [] {
    Result<std::unique_ptr<const Driver>> loaded = load(library_path());
    return loaded.ok() ? new Result<const Driver*>(loaded.value().release())
                       : new Result<const Driver*>(loaded.status());
  }();
  return *shared;
}

Result<std::unique_ptr<const Driver>> Driver::load(const std::string& path) {
  Result<GetProcAddress*> opened = open(path);
  if (!opened.ok()) return opened.status();
  std::unique_ptr<Driver> driver(new Driver());
  if (Status status = driver->resolve(opened.value()); !status.ok()) return status;

  // The version may be asked before cuInit, which then can tell why it fails.
  if (Status status = driver->driver_get_version(&driver->version_); !status.ok()) return status;
  if (driver->version_ < kOldestVersion) {
    return Status::system("the CUDA driver supports CUDA " + version_text(driver->version_) +
                          ", but " + version_text(kOldestVersion) + " is needed");
  }
  driver->resolve_batch(opened.value());
  if (Status status = driver->init(0); !status.ok()) return status;
  return std::unique_ptr<const Driver>(std::move(driver));
}

Status Driver::resolve(GetProcAddress* get_proc_address) {
  names_ = reinterpret_cast<GetErrorName*>(find(get_proc_address, "cuGetErrorName", 6000));
  if (names_ == nullptr) return Status::system("the CUDA driver has no cuGetErrorName");

  std::string missing;
  const auto resolve_one = [&](auto& call, int version) {
    void* entry = find(get_proc_address, call.name_, version);
    if (entry == nullptr) {
      missing +=
          std::string(missing.empty() ? "" : ", ") + call.name_ + " of " + version_text(version);
    }
    call.entry_ = reinterpret_cast<decltype(call.entry_)>(entry);
    call.names_ = names_;
  };
#define FREESCALE_CUDA_RESOLVE(member, name, version, arguments) resolve_one(member, version);
  FREESCALE_CUDA_CALLS(FREESCALE_CUDA_RESOLVE)
#undef FREESCALE_CUDA_RESOLVE
  return missing.empty() ? Status() : Status::system("the CUDA driver lacks " + missing);
}

void Driver::resolve_batch(GetProcAddress* get_proc_address) {
  constexpr const char* kName = "cuMemcpyBatchAsync";
  if (version_ >= kBatchCopy) {
    batch_ = reinterpret_cast<BatchCopy*>(find(get_proc_address, kName, kBatchCopy));
  } else if (version_ >= kBatchCopyWithFailIndex) {
    batch_with_fail_index_ = reinterpret_cast<BatchCopyWithFailIndex*>(
        find(get_proc_address, kName, kBatchCopyWithFailIndex));
  }
}

Status Driver::copy_batch(std::span<const CopyPiece> pieces, Stream stream) const {
  if (!has_copy_batch()) {
    return Status::invalid_argument("cuMemcpyBatchAsync needs a CUDA driver of 12.8, this one is " +
                                    version_text(version_));
  }
  if (pieces.empty()) return {};

  // The driver takes arrays of each field, and not as const.
  std::vector<DevicePtr> to, from;
  std::vector<size_t> bytes;
  for (const CopyPiece& piece : pieces) {
    to.push_back(piece.to);
    from.push_back(piece.from);
    bytes.push_back(piece.bytes);
  }
  CopyAttributes attributes;
  attributes.flags = kCopyPreferOverlapWithCompute;
  size_t attributes_start = 0;
  size_t failed = pieces.size();  // stays so where the driver does not tell
  const Code code = batch_ != nullptr ? batch_(to.data(), from.data(), bytes.data(), pieces.size(),
                                               &attributes, &attributes_start, 1, stream)
                                      : batch_with_fail_index_(
                                            to.data(), from.data(), bytes.data(), pieces.size(),
                                            &attributes, &attributes_start, 1, &failed, stream);
  if (code == Code::kSuccess) return {};
  const std::string which = failed < pieces.size() ? ", copy " + std::to_string(failed) : "";
  return failure(names_, "cuMemcpyBatchAsync of " + std::to_string(pieces.size()) + which, code);
}

}  // namespace freescale::cuda
