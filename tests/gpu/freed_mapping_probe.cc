// What a process sees of memory that its owner has freed while it was open there, and whether the
// owner notices.

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "cpp/transport/cuda_ipc/exported_memory.h"
#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::DevicePtr;

constexpr size_t kBytes = 2 << 20;
using Text = std::array<char, 4>;
constexpr Text kOld = {'o', 'l', 'd', ' '};
constexpr Text kNew = {'n', 'e', 'w', ' '};

void own(const Channel& importer) {
  const ProbeDevice device;
  cuda::ExportedMemory exported(device.context());
  const DevicePtr memory = device.allocate(kBytes);
  device.upload(memory, std::as_bytes(std::span(kOld)));
  const uint64_t id = require(exported.export_range(memory, kBytes))[0].allocation;
  UniqueFd fd;
  importer.send(require(exported.notice(id, &fd)).legacy);
  importer.hear();

  require(device.driver().mem_free(memory));
  importer.tell();
  importer.hear();

  const DevicePtr again = device.allocate(kBytes);
  device.upload(again, std::as_bytes(std::span(kNew)));
  fact("the next allocation has the address of the freed one", again == memory ? "yes" : "no");
  exported.sweep();
  const std::vector<uint64_t> gone = exported.take_gone();
  expect("the owner notices that the memory is gone", gone == std::vector<uint64_t>{id});
  importer.tell();
  importer.hear();
}

// What is read, or the error, after which the context may be lost, and all further ones the same.
std::string look(const cuda::DriverStream& stream, const ProbeDevice::Host& host,
                 DevicePtr memory) {
  const cuda::CopyPiece piece{reinterpret_cast<DevicePtr>(host.host), memory, sizeof(Text)};
  Status status = stream.copy({&piece, 1}, false);
  if (status.ok()) status = stream.synchronize();
  if (!status.ok()) return status.message();
  if (std::memcmp(host.host, kOld.data(), sizeof(Text)) == 0) return "the old bytes";
  if (std::memcmp(host.host, kNew.data(), sizeof(Text)) == 0) return "the new allocation's bytes";
  return "other bytes";
}

void run() {
  PeerProcess owner(own);
  const Channel& channel = owner.channel();
  const ProbeDevice device;
  const ProbeDevice::Host host = device.allocate_host(sizeof(Text));
  const cuda::DriverStream stream = device.stream();
  DevicePtr memory = 0;
  require(device.driver().ipc_open_mem_handle(&memory, channel.receive<cuda::IpcMemoryHandle>(),
                                              cuda::kIpcLazyEnablePeerAccess));
  expect("before it is freed, the old bytes are seen",
         look(stream, host, memory) == "the old bytes");
  channel.tell();
  channel.hear();
  fact("seen in the open mapping after the owner has freed it", look(stream, host, memory));
  channel.tell();
  channel.hear();
  fact("seen there after the owner has allocated again", look(stream, host, memory));
  const cuda::Code closed = device.driver().ipc_close_mem_handle.code(memory);
  const Status status = device.driver().ipc_close_mem_handle.status(closed);
  fact("closing it", status.ok() ? "no error" : status.message());
  channel.tell();
  owner.join();
}

}  // namespace
}  // namespace freescale::probe

int main() { freescale::probe::run(); }
