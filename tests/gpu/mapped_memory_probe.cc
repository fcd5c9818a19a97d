// Whether memory of expandable segments, several mappings in one range, can be shared: named by the
// project's classes, opened in another process, read and written there.

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cpp/transport/cuda_ipc/exported_memory.h"
#include "cpp/transport/cuda_ipc/imported_memory.h"
#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::AccessDescription;
using cuda::AllocationHandle;
using cuda::AllocationNotice;
using cuda::AllocationProperties;
using cuda::DevicePtr;
using cuda::Driver;
using cuda::ExportedPiece;

constexpr size_t kMappings = 3;

size_t page_bytes(const Driver& driver, const AllocationProperties& properties) {
  size_t bytes = 0;
  require(driver.mem_get_allocation_granularity(&bytes, &properties, cuda::Granularity::kMinimum));
  return bytes;
}

// A range of several mappings, each of a page of its own, as torch's allocator makes it.
DevicePtr map_pages(const Driver& driver, const AllocationProperties& properties, size_t page) {
  DevicePtr range = 0;
  require(driver.mem_address_reserve(&range, kMappings * page, 0, 0, 0));
  for (size_t i = 0; i < kMappings; ++i) {
    AllocationHandle handle = 0;
    require(driver.mem_create(&handle, page, &properties, 0));
    require(driver.mem_map(range + i * page, page, 0, handle, 0));
    require(driver.mem_release(handle));
  }
  const AccessDescription access;
  require(driver.mem_set_access(range, kMappings * page, &access, 1));
  return range;
}

std::vector<uint32_t> numbers(size_t bytes, uint32_t first) {
  std::vector<uint32_t> values(bytes / sizeof(uint32_t));
  std::iota(values.begin(), values.end(), first);
  return values;
}

void own(const Channel& importer) {
  const ProbeDevice device;
  AllocationProperties properties;
  properties.requested_handle_types = cuda::HandleType::kPosixFileDescriptor;
  const size_t page = page_bytes(device.driver(), properties);
  fact("size of the smallest mapping", static_cast<double>(page >> 10), "KiB");
  const size_t bytes = kMappings * page;
  const DevicePtr range = map_pages(device.driver(), properties, page);
  const std::vector<uint32_t> content = numbers(bytes, 1);
  for (size_t at = 0; at < bytes; at += page) {
    device.upload(range + at, std::as_bytes(std::span(content)).subspan(at, page));
  }

  cuda::ExportedMemory exported(device.context());
  const std::vector<ExportedPiece> pieces = require(exported.export_range(range, bytes));
  expect("each mapping is a piece", pieces.size() == kMappings);
  importer.send(pieces.size());
  for (const ExportedPiece& piece : pieces) {
    UniqueFd fd;
    const AllocationNotice notice = require(exported.notice(piece.allocation, &fd));
    const int raw = fd.get();
    importer.send(notice, std::span(&raw, fd.valid() ? 1 : 0));
    importer.send(piece);
  }
  importer.hear();
  std::vector<uint32_t> now(bytes / sizeof(uint32_t));
  for (size_t at = 0; at < bytes; at += page) {
    device.download(std::as_writable_bytes(std::span(now)).subspan(at, page), range + at);
  }
  expect("the owner sees what the other process wrote", now == numbers(bytes, 7));
}

void run() {
  PeerProcess owner(own);
  const Channel& channel = owner.channel();
  const ProbeDevice device;
  cuda::ImportedMemory imported(device.context());
  bool right = true;
  uint32_t before = 0;  // numbers in the pieces so far
  for (auto left = channel.receive<size_t>(); left > 0; --left) {
    UniqueFd fd;
    const auto notice = channel.receive<AllocationNotice>(&fd);
    require(imported.add(notice, std::move(fd)));
    const auto piece = channel.receive<ExportedPiece>();
    const std::optional<DevicePtr> address = require(imported.acquire(piece, Deadline::never()));
    if (!address) give_up("the device has no access to its own memory in another process");
    std::vector<uint32_t> seen(piece.bytes / sizeof(uint32_t));
    device.download(std::as_writable_bytes(std::span(seen)), *address);
    right = right && seen == numbers(piece.bytes, before + 1);
    device.upload(*address,
                  std::as_bytes(std::span<const uint32_t>(numbers(piece.bytes, before + 7))));
    before += static_cast<uint32_t>(seen.size());
  }
  expect("the other process sees what the owner wrote", right);
  channel.tell();
  owner.join();
}

}  // namespace
}  // namespace freescale::probe

int main() { freescale::probe::run(); }
