// What single operations of a stream cost, by the host's clock.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::DevicePtr;
using cuda::DriverStream;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double microseconds_of(const std::function<void()>& action) {
  const Nanoseconds begin = now_ns();
  action();
  return static_cast<double>(now_ns() - begin) / 1e3;
}

// A stream with memory at both ends, and the times of what it does.
class Bench {
 public:
  Bench(const ProbeDevice& device, int rounds, size_t largest)
      : rounds_(rounds),
        stream_(device.stream()),
        from_(device.allocate(largest)),
        to_(device.allocate(largest)),
        host_(reinterpret_cast<DevicePtr>(device.allocate_host(largest).host)),
        gate_(device.word()),
        arrived_(device.word()) {}

  void tell_calls() {
    tell("call of a copy to the host, 4 KiB", [&] { copy(stream_, host_, from_, 4 << 10); });
    tell("call of a write of a word", [&] { write(stream_, arrived_, 0); });
    tell("call of a wait for a word that is reached", [&] { require(stream_.wait({gate_, 0})); });
  }

  void tell_release() {
    std::vector<double> times;
    for (int i = 0; i < rounds_; ++i) {
      const uint32_t number = load(gate_) + 1;
      require(stream_.wait({gate_, number}));
      write(stream_, arrived_, number);
      // The stream is to be at the wait already; if not, one of many rounds is off.
      const Deadline settled = Deadline::after(std::chrono::microseconds(100));
      while (!settled.passed(now_ns())) {
      }
      times.push_back(microseconds_of([&] {
        store(gate_, number);
        await(arrived_, number);
      }));
    }
    fact("host's store, wait, write, host's load", median(times), "us");
    store(arrived_, 0);
    store(gate_, 0);
  }

  void tell_copies(size_t bytes) {
    tell_copy("to the host", host_, from_, bytes, false);
    tell_copy("from the host", to_, host_, bytes, false);
    tell_copy("within the device", to_, from_, bytes, true);
  }

 private:
  void tell(const std::string& name, const std::function<void()>& call) {
    std::vector<double> times;
    for (int i = 0; i < rounds_; ++i) {
      times.push_back(microseconds_of(call));
      // The queue never gets full.
      require(stream_.synchronize());
    }
    fact(name, median(times), "us");
  }

  void tell_copy(const std::string& where, DevicePtr to, DevicePtr from, size_t bytes,
                 bool within_device) {
    std::vector<double> times;
    for (int i = 0; i < std::min(rounds_, 20); ++i) {
      const uint32_t number = load(arrived_) + 1;
      times.push_back(microseconds_of([&] {
        copy(stream_, to, from, bytes, within_device);
        write(stream_, arrived_, number);
        await(arrived_, number);
      }));
    }
    const std::string name = "copy " + where + ", " + std::to_string(bytes >> 10) + " KiB";
    fact(name, median(times), "us");
    fact(name + ", rate", static_cast<double>(bytes) / median(times) / 1e3, "GB/s");
  }

  const int rounds_;
  const DriverStream stream_;
  const DevicePtr from_;
  const DevicePtr to_;
  const DevicePtr host_;
  const cuda::PinnedWord gate_;
  const cuda::PinnedWord arrived_;
};

void run(bool brief) {
  const size_t largest = brief ? 1 << 20 : 256 << 20;
  const ProbeDevice device;
  Bench bench(device, brief ? 10 : 200, largest);
  bench.tell_calls();
  bench.tell_release();
  for (size_t bytes = 4 << 10; bytes <= largest; bytes *= 4) bench.tell_copies(bytes);
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) { freescale::probe::run(freescale::probe::is_short(argc, argv)); }
