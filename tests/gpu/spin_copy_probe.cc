// Which ways of moving bytes go on while a kernel fills every SM, in this process or (argument
// "other") in another one on the same device.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/kernels.h"
#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::DevicePtr;
using cuda::DriverStream;

enum class Command : char { kFill, kStop, kEnd };

// The kernel that fills the device, wherever it is.
class Filler {
 public:
  virtual ~Filler() = default;
  virtual void start() = 0;
  // Whether it was still there: it ends by itself after a while, as when a call hung because of it.
  virtual bool stop() = 0;
};

class OwnFiller : public Filler {
 public:
  OwnFiller(const ProbeDevice& device, Kernels& kernels)
      : device_(device), kernels_(kernels), stream_(device.plain_stream()), until_(device.word()) {}
  void start() override {
    store(until_, 0);
    kernels_.fill(stream_, until_);
  }
  bool stop() override {
    const bool there = device_.driver().stream_query.code(stream_) == cuda::Code::kNotReady;
    store(until_, 1);
    require(device_.driver().stream_synchronize(stream_));
    return there;
  }

 private:
  const ProbeDevice& device_;
  Kernels& kernels_;
  const cuda::Stream stream_;
  const cuda::PinnedWord until_;
};

class PeerFiller : public Filler {
 public:
  explicit PeerFiller(const Channel& peer) : peer_(peer) {}
  void start() override { ask(Command::kFill); }
  bool stop() override { return ask(Command::kStop); }

 private:
  bool ask(Command command) {
    peer_.send(command);
    return peer_.receive<bool>();
  }
  const Channel& peer_;
};

// Memory for the probe to open, and kernels when it asks for them.
void serve(const Channel& probe, size_t bytes) {
  const ProbeDevice device;
  const std::unique_ptr<Kernels> kernels = Kernels::create(device);
  OwnFiller filler(device, *kernels);
  cuda::IpcMemoryHandle handle;
  require(device.driver().ipc_get_mem_handle(&handle, device.allocate(bytes)));
  probe.send(handle);
  while (true) {
    const auto command = probe.receive<Command>();
    if (command == Command::kEnd) return;
    bool there = true;
    if (command == Command::kFill) {
      filler.start();
    } else {
      there = filler.stop();
    }
    probe.send(there);
  }
}

struct Way {
  std::string name;
  // The design relies on it; of the others it asks.
  bool required;
  std::function<void(const DriverStream&)> enqueue;
};

std::string size_text(size_t bytes) {
  return bytes >= 1 << 20 ? std::to_string(bytes >> 20) + " MiB"
                          : std::to_string(bytes >> 10) + " KiB";
}

class Ways {
 public:
  Ways(const ProbeDevice& device, const cuda::IpcMemoryHandle& peers, size_t bytes)
      : device_(device),
        from_(device.allocate(bytes)),
        to_(device.allocate(bytes)),
        host_(device.allocate_host(bytes)),
        gate_(device.word()) {
    require(device.driver().ipc_open_mem_handle(&peers_, peers, cuda::kIpcLazyEnablePeerAccess));
    int devices = 0;
    require(device.driver().device_get_count(&devices));
    if (devices > 1) {
      second_.emplace(1);
      far_ = second_->allocate(bytes);
      // Back to the first device for this thread.
      first_again_.emplace(device.context());
      require(first_again_->status());
    }
  }

  std::vector<Way> of_size(size_t bytes) const {
    const std::string size = size_text(bytes);
    const DevicePtr host = reinterpret_cast<DevicePtr>(host_.host);
    std::vector<Way> ways = {
        copies("to the host, " + size, true, host, from_, bytes),
        copies("from the host, " + size, true, to_, host, bytes),
        copies("within the device, " + size, false, to_, from_, bytes),
        copies("within the device, asking for copy engines, " + size, false, to_, from_, bytes,
               true),
        copies("to another process's memory on the device, " + size, false, peers_, from_, bytes),
        copies("to another process's memory on the device, asking for copy engines, " + size, false,
               peers_, from_, bytes, true),
    };
    if (second_) {
      ways.push_back(copies("to another device, " + size, true, far_, from_, bytes));
    }
    return ways;
  }

  Way words() const {
    return {"a wait for a word that the host writes, and a write of one", true,
            [this](const DriverStream& stream) {
              store(gate_, 0);
              require(stream.wait({gate_, 1}));
              store(gate_, 1);
            }};
  }

 private:
  static Way copies(std::string name, bool required, DevicePtr to, DevicePtr from, size_t bytes,
                    bool within_device = false) {
    return {"copy " + std::move(name), required,
            [=](const DriverStream& stream) { copy(stream, to, from, bytes, within_device); }};
  }

  const ProbeDevice& device_;
  const DevicePtr from_;
  const DevicePtr to_;
  const ProbeDevice::Host host_;
  const cuda::PinnedWord gate_;
  DevicePtr peers_ = 0;
  std::optional<ProbeDevice> second_;
  DevicePtr far_ = 0;
  std::optional<cuda::CurrentContext> first_again_;
};

class Trial {
 public:
  Trial(const ProbeDevice& device, Filler& filler, std::chrono::nanoseconds patience)
      : filler_(filler), patience_(patience), stream_(device.stream()), arrived_(device.word()) {}

  // Once while the device is idle, as the first use of a call may load a kernel, and once while it
  // is full. Whether the second came to its end before the kernel did.
  bool run(const Way& way) {
    begin(way);
    require(stream_.synchronize());
    filler_.start();
    begin(way);
    // What the design relies on gets as long as the kernel lives. The others are given up sooner.
    const bool arrived = await(arrived_, round_, Deadline::after(way.required ? kLong : patience_));
    const bool there = filler_.stop();
    require(stream_.synchronize());
    return arrived && there;
  }

 private:
  static constexpr std::chrono::nanoseconds kLong =
      std::chrono::seconds(Kernels::kLongestSeconds / 2);

  void begin(const Way& way) {
    way.enqueue(stream_);
    write(stream_, arrived_, ++round_);
  }

  Filler& filler_;
  const std::chrono::nanoseconds patience_;
  const DriverStream stream_;
  const cuda::PinnedWord arrived_;
  uint32_t round_ = 0;
};

void tell(const Way& way, bool arrived) {
  if (way.required) {
    expect(way.name, arrived);
  } else {
    fact(way.name, arrived ? "goes on" : "waits for the kernel");
  }
}

// If a kernel went on as well, the device was not full, and nothing follows from the rest.
void try_control(const ProbeDevice& device, Kernels& kernels, Filler& filler,
                 std::chrono::nanoseconds patience) {
  const cuda::Stream stream = device.plain_stream();
  filler.start();
  kernels.launch(stream);
  const Deadline deadline = Deadline::after(patience);
  bool waits = true;
  while (waits && !deadline.passed(now_ns())) {
    waits = device.driver().stream_query.code(stream) == cuda::Code::kNotReady;
  }
  const bool there = filler.stop();
  require(device.driver().stream_synchronize(stream));
  expect("control: a kernel waits", waits && there);
}

void run(bool elsewhere, bool brief) {
  const size_t largest = brief ? 1 << 20 : 64 << 20;
  PeerProcess peer([largest](const Channel& probe) { serve(probe, largest); });
  const ProbeDevice device;
  const std::unique_ptr<Kernels> kernels = Kernels::create(device);
  OwnFiller own(device, *kernels);
  PeerFiller others(peer.channel());
  Filler& filler = elsewhere ? static_cast<Filler&>(others) : own;
  const auto patience = std::chrono::milliseconds(brief ? 50 : 1000);

  // Kernels of two processes take turns: there is no control then.
  if (!elsewhere && kernels->exclude_each_other()) {
    try_control(device, *kernels, filler, patience);
  }
  const Ways ways(device, peer.channel().receive<cuda::IpcMemoryHandle>(), largest);
  Trial trial(device, filler, patience);
  tell(ways.words(), trial.run(ways.words()));
  for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{64} << 20}) {
    if (bytes > largest) continue;
    for (const Way& way : ways.of_size(bytes)) tell(way, trial.run(way));
  }
  peer.channel().send(Command::kEnd);
  peer.join();
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) {
  freescale::probe::run(freescale::probe::has_argument(argc, argv, "other"),
                        freescale::probe::is_short(argc, argv));
}
