#include "cpp/device/driver_stream.h"

#include <utility>
#include <vector>

namespace freescale::cuda {
namespace {

// From this driver on a batch gives copies within a device to copy engines. Before, and always
// without a batch, they take SMs (rapidsai/cudf#23674).
constexpr int kEnginesWithinDevice = 13010;

}  // namespace

Result<DriverStream> DriverStream::create(const PrimaryContext& context) {
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  // No priority: that of a stream orders kernels, not copies (pytorch/torchrec#4303).
  Stream stream = nullptr;
  if (Status status = context.driver().stream_create_with_priority(&stream, kStreamNonBlocking, 0);
      !status.ok()) {
    return status;
  }
  return DriverStream(context, stream);
}

DriverStream::DriverStream(DriverStream&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)), stream_(other.stream_) {}

DriverStream::~DriverStream() {
  if (context_ == nullptr) return;
  const CurrentContext current(*context_);
  // Fails only with a context that is lost, and its streams with it.
  context_->driver().stream_destroy.code(stream_);
}

Status DriverStream::wait(WordValue until) const {
  return context_->driver().stream_wait_value32(stream_, until.word.device, until.value,
                                                kWaitGreaterOrEqual);
}

Status DriverStream::copy(std::span<const CopyPiece> pieces, bool within_device) const {
  const Driver& driver = context_->driver();
  const bool batch_helps =
      pieces.size() > 1 || (within_device && driver.version() >= kEnginesWithinDevice);
  if (batch_helps && driver.has_copy_batch()) return driver.copy_batch(pieces, stream_);
  for (const CopyPiece& piece : pieces) {
    if (Status status = driver.memcpy_async(piece.to, piece.from, piece.bytes, stream_);
        !status.ok()) {
      return status;
    }
  }
  return {};
}

Status DriverStream::write(std::span<const WordValue> words) const {
  std::vector<MemoryOperation> operations;
  for (const WordValue& word : words) {
    MemoryOperation operation;
    operation.kind = MemoryOperationKind::kWriteValue32;
    operation.address = word.word.device;
    operation.value = word.value;
    operation.flags = kWriteDefault;
    operations.push_back(operation);
  }
  return context_->driver().stream_batch_mem_op(stream_, static_cast<unsigned>(operations.size()),
                                                operations.data(), 0);
}

Status DriverStream::check() const {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  const Driver& driver = context_->driver();
  const Code code = driver.stream_query.code(stream_);
  return code == Code::kNotReady ? Status() : driver.stream_query.status(code);
}

Status DriverStream::synchronize() const {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  return context_->driver().stream_synchronize(stream_);
}

}  // namespace freescale::cuda
