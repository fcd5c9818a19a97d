#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cpp/base/status.h"
#include "cpp/device/cuda_calls.h"
#include "cpp/device/cuda_types.h"

namespace freescale::cuda {

// Names in an error: "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)". Codes are kSystem.
Status failure(GetErrorName* names, std::string_view call, Code code);

template <typename Signature>
class Call;

// One call of the driver.
template <typename... Args>
class Call<Code(Args...)> {
 public:
  // A failure names the call and the driver's name of the error.
  Status operator()(Args... args) const { return status(entry_(args...)); }

  // For callers that react to what is returned, as kNotReady of the queries.
  Code code(Args... args) const { return entry_(args...); }
  Status status(Code code) const {
    return code == Code::kSuccess ? Status() : failure(names_, name_, code);
  }

 private:
  friend class Driver;
  explicit Call(const char* name) : name_(name) {}

  const char* name_;
  Code (*entry_)(Args...) = nullptr;
  GetErrorName* names_ = nullptr;
};

// One copy of a batch.
struct CopyPiece {
  DevicePtr to = 0;
  DevicePtr from = 0;
  size_t bytes = 0;
};

// The CUDA driver API as functions found at run time, so that one binary runs with and without GPUs
// (docs/adr/0012-cuda-driver-at-run-time.md). Immutable once loaded: any thread may make any call,
// with the context current that the call needs (cuda_context.h).
//
// The driver does not survive a fork: in a child of a process that has loaded it, every call fails.
class Driver {
 public:
  // The driver of this process, loaded and initialised by the first call, whichever thread makes
  // it. Later calls return the same, also the same failure: there is no driver, it is older than
  // kOldestVersion, it lacks a call, or it has no device. Never unloaded.
  static Result<const Driver*> get();

  // Loads the library at `path`, which is kept for the life of the process.
  static Result<std::unique_ptr<const Driver>> load(const std::string& path);

  // Older ones have most of the calls too, but nothing here was tried on them.
  static constexpr int kOldestVersion = 12040;

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // The newest CUDA version that the driver supports, as 1000 * major + 10 * minor.
  int version() const { return version_; }

  // "12.4"
  static std::string version_text(int version);

  // Whether copy_batch works: drivers from 12.8 on.
  bool has_copy_batch() const { return batch_ != nullptr || batch_with_fail_index_ != nullptr; }

  // Copies all pieces once the stream gets there, in any order and at the same time, on copy
  // engines as far as the driver can (within one device: from 13.1 on). Sources are read in stream
  // order. So a piece must not depend on another one, nor be the signal for it. Does not block.
  // Refused on the default stream, by the driver, and while a graph is captured. No pieces are no
  // call.
  Status copy_batch(std::span<const CopyPiece> pieces, Stream stream) const;

#define FREESCALE_CUDA_MEMBER(member, name, version, arguments) Call<Code arguments> member{#name};
  FREESCALE_CUDA_CALLS(FREESCALE_CUDA_MEMBER)
#undef FREESCALE_CUDA_MEMBER

 private:
  Driver() = default;
  Status resolve(GetProcAddress* get_proc_address);
  void resolve_batch(GetProcAddress* get_proc_address);

  int version_ = 0;
  GetErrorName* names_ = nullptr;
  BatchCopy* batch_ = nullptr;
  BatchCopyWithFailIndex* batch_with_fail_index_ = nullptr;
};

}  // namespace freescale::cuda
