#include "tests/gpu/probe_device.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cpp/base/cpu_relax.h"

namespace freescale::probe {
namespace {

constexpr size_t kCacheLine = 64;

const cuda::Driver& loaded_driver() { return *require(cuda::Driver::get()); }

}  // namespace

bool has_argument(int argc, char** argv, std::string_view argument) {
  return std::any_of(argv + 1, argv + argc, [&](const char* each) { return argument == each; });
}

bool is_short(int argc, char** argv) { return has_argument(argc, argv, "--short"); }

ProbeDevice::ProbeDevice(int ordinal)
    : context_(require(cuda::PrimaryContext::retain(loaded_driver(), ordinal))),
      current_(context_) {
  require(current_.status());
}

cuda::DevicePtr ProbeDevice::allocate(size_t bytes) const {
  cuda::DevicePtr address = 0;
  require(driver().mem_alloc(&address, bytes));
  return address;
}

ProbeDevice::Host ProbeDevice::allocate_host(size_t bytes) const {
  void* host = nullptr;
  require(driver().mem_host_alloc(&host, bytes, cuda::kHostPortable | cuda::kHostDeviceMap));
  std::memset(host, 0, bytes);
  cuda::DevicePtr device = 0;
  require(driver().mem_host_get_device_pointer(&device, host, 0));
  return {static_cast<std::byte*>(host), device};
}

cuda::PinnedWord ProbeDevice::word() const {
  const Host memory = allocate_host(kCacheLine);
  return {new (memory.host) std::atomic<uint32_t>(0), memory.device};
}

cuda::Stream ProbeDevice::plain_stream() const {
  cuda::Stream stream = nullptr;
  require(driver().stream_create_with_priority(&stream, cuda::kStreamNonBlocking, 0));
  return stream;
}

void ProbeDevice::upload(cuda::DevicePtr to, std::span<const std::byte> bytes) const {
  const cuda::DriverStream through = stream();
  copy(through, to, reinterpret_cast<cuda::DevicePtr>(bytes.data()), bytes.size());
  require(through.synchronize());
}

void ProbeDevice::download(std::span<std::byte> to, cuda::DevicePtr from) const {
  const cuda::DriverStream through = stream();
  copy(through, reinterpret_cast<cuda::DevicePtr>(to.data()), from, to.size());
  require(through.synchronize());
}

void copy(const cuda::DriverStream& stream, cuda::DevicePtr to, cuda::DevicePtr from, size_t bytes,
          bool within_device) {
  const cuda::CopyPiece piece{to, from, bytes};
  require(stream.copy({&piece, 1}, within_device));
}

void write(const cuda::DriverStream& stream, cuda::PinnedWord word, uint32_t value) {
  const cuda::WordValue target{word, value};
  require(stream.write({&target, 1}));
}

bool await(cuda::PinnedWord word, uint32_t value, Deadline deadline) {
  const cuda::WordValue target{word, value};
  while (!target.reached()) {
    if (deadline.passed(now_ns())) return target.reached();
    cpu_relax();
  }
  return true;
}

}  // namespace freescale::probe
