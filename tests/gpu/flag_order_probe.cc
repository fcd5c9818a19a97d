// Whether bytes are there when the word is that follows them on the stream: copies of ragged sizes
// into another process's memory, many thousand rounds. With two devices, from one to the other.

#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_device.h"
#include "tests/gpu/shared_words.h"

namespace freescale::probe {
namespace {

using cuda::DevicePtr;

constexpr size_t kWords = 16 << 10;  // of 32 bits: 64 KiB
constexpr size_t kBytes = kWords * sizeof(uint32_t);

enum : size_t { kFull, kEmpty, kFlags };  // the shared words

// Both processes know what a round sends without being told.
struct Round {
  explicit Round(uint32_t number) : number(number) {
    const uint32_t mixed = number * 2654435761u;
    words = 1 + (mixed >> 7) % (kWords / 2);
    offset = (mixed >> 19) % (kWords / 2);
  }
  size_t bytes() const { return words * sizeof(uint32_t); }
  DevicePtr within(DevicePtr base) const { return base + offset * sizeof(uint32_t); }
  uint32_t value(size_t index) const { return number * 40503u + static_cast<uint32_t>(index); }

  uint32_t number;
  size_t words;
  size_t offset;
};

void send_rounds(const Channel& receiver, const SharedWords& shared, uint32_t rounds) {
  const ProbeDevice device;
  const cuda::PinnedWords flags = shared.register_words(device.context());
  DevicePtr to = 0;
  require(device.driver().ipc_open_mem_handle(&to, receiver.receive<cuda::IpcMemoryHandle>(),
                                              cuda::kIpcLazyEnablePeerAccess));
  const DevicePtr from = device.allocate(kBytes);
  const ProbeDevice::Host pattern = device.allocate_host(kBytes);
  auto* const values = reinterpret_cast<uint32_t*>(pattern.host);
  const cuda::PinnedWord uploaded = device.word();
  const cuda::DriverStream stream = device.stream();
  for (uint32_t number = 1; number <= rounds; ++number) {
    const Round round(number);
    await(uploaded, number - 1);
    await(flags[kEmpty], number - 1);
    for (size_t i = 0; i < round.words; ++i) values[i] = round.value(i);
    copy(stream, from, reinterpret_cast<DevicePtr>(pattern.host), round.bytes());
    write(stream, uploaded, number);
    copy(stream, round.within(to), from, round.bytes());
    write(stream, flags[kFull], number);
  }
  require(stream.synchronize());
}

// Values that were not there although their word was.
size_t receive_rounds(const Channel& sender, const SharedWords& shared, uint32_t rounds,
                      int ordinal) {
  const ProbeDevice device(ordinal);
  const cuda::PinnedWords flags = shared.register_words(device.context());
  const DevicePtr landing = device.allocate(kBytes);
  cuda::IpcMemoryHandle handle;
  require(device.driver().ipc_get_mem_handle(&handle, landing));
  sender.send(handle);
  const ProbeDevice::Host seen = device.allocate_host(kBytes);
  const auto* const values = reinterpret_cast<const uint32_t*>(seen.host);
  const cuda::PinnedWord copied = device.word();
  const cuda::DriverStream stream = device.stream();
  size_t wrong = 0;
  for (uint32_t number = 1; number <= rounds; ++number) {
    const Round round(number);
    require(stream.wait({flags[kFull], number}));
    copy(stream, reinterpret_cast<DevicePtr>(seen.host), round.within(landing), round.bytes());
    write(stream, copied, number);
    await(copied, number);
    for (size_t i = 0; i < round.words; ++i) wrong += values[i] != round.value(i);
    store(flags[kEmpty], number);
  }
  return wrong;
}

void run(bool brief) {
  const uint32_t rounds = brief ? 100 : 10'000;
  const SharedWords shared(kFlags);
  // The sender is the child, as the devices may be counted only once the driver is loaded.
  PeerProcess sender([&](const Channel& receiver) { send_rounds(receiver, shared, rounds); });
  int devices = 0;
  require(require(cuda::Driver::get())->device_get_count(&devices));
  const size_t wrong = receive_rounds(sender.channel(), shared, rounds, devices > 1 ? 1 : 0);
  sender.join();
  fact("between", devices > 1 ? "two devices" : "two processes of one device");
  fact("rounds", rounds, "");
  fact("values that were not there", static_cast<double>(wrong), "");
  expect("bytes are there when their word is", wrong == 0);
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) { freescale::probe::run(freescale::probe::is_short(argc, argv)); }
