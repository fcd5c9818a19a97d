#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "cpp/base/clock.h"
#include "cpp/device/cuda_context.h"
#include "cpp/device/driver_stream.h"
#include "cpp/device/pinned_words.h"
#include "tests/gpu/finding.h"

namespace freescale::probe {

// Whether a probe was asked for few rounds and small sizes, as in a rehearsal.
bool is_short(int argc, char** argv);
bool has_argument(int argc, char** argv, std::string_view argument);

// A device with its context current in this thread, and memory and streams that live as long as the
// process. For the stack of main(), or of a child. What fails ends the process.
class ProbeDevice {
 public:
  explicit ProbeDevice(int ordinal = 0);

  const cuda::Driver& driver() const { return context_.driver(); }
  const cuda::PrimaryContext& context() const { return context_; }

  cuda::DevicePtr allocate(size_t bytes) const;
  // Pinned memory of the host, zero at first; `device` is where streams find it.
  struct Host {
    std::byte* host;
    cuda::DevicePtr device;
  };
  Host allocate_host(size_t bytes) const;
  // A word of its own cache line, 0 at first.
  cuda::PinnedWord word() const;
  cuda::DriverStream stream() const { return require(cuda::DriverStream::create(context_)); }
  // For calls that DriverStream does not make.
  cuda::Stream plain_stream() const;

  // Copies, and waits until they are over. Never needs an SM.
  void upload(cuda::DevicePtr to, std::span<const std::byte> bytes) const;
  void download(std::span<std::byte> to, cuda::DevicePtr from) const;

 private:
  cuda::PrimaryContext context_;
  cuda::CurrentContext current_;
};

// Enqueues one copy, or one write of a word.
void copy(const cuda::DriverStream& stream, cuda::DevicePtr to, cuda::DevicePtr from, size_t bytes,
          bool within_device = false);
void write(const cuda::DriverStream& stream, cuda::PinnedWord word, uint32_t value);

inline uint32_t load(cuda::PinnedWord word) { return word.host->load(std::memory_order_acquire); }
inline void store(cuda::PinnedWord word, uint32_t value) {
  word.host->store(value, std::memory_order_release);
}
// Polls. Whether the word reached the value before the deadline.
bool await(cuda::PinnedWord word, uint32_t value, Deadline deadline = Deadline::never());

}  // namespace freescale::probe
