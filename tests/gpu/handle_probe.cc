// Whether a process can have more than 1000 allocations of another one open, and what opening
// costs.

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "cpp/transport/cuda_ipc/exported_memory.h"
#include "cpp/transport/cuda_ipc/imported_memory.h"
#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::AllocationNotice;
using cuda::DevicePtr;
using cuda::ExportedPiece;

// Allocations that no driver puts into one.
constexpr size_t kBytes = 2 << 20;

void raise_descriptor_limit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) require(Status::from_errno("getrlimit", errno));
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) require(Status::from_errno("setrlimit", errno));
}

void export_all(const Channel& importer, uint32_t count) {
  const ProbeDevice device;
  cuda::ExportedMemory exported(device.context());
  for (uint32_t i = 0; i < count; ++i) {
    const DevicePtr memory = device.allocate(kBytes);
    device.upload(memory, std::as_bytes(std::span(&i, 1)));
    const std::vector<ExportedPiece> pieces = require(exported.export_range(memory, kBytes));
    UniqueFd fd;
    const AllocationNotice notice = require(exported.notice(pieces[0].allocation, &fd));
    const int raw = fd.get();
    importer.send(notice, std::span(&raw, fd.valid() ? 1 : 0));
    importer.send(pieces[0]);
  }
  importer.hear();
}

class Importer {
 public:
  explicit Importer(const ProbeDevice& device) : device_(device), imported_(device.context()) {}

  // The time it took, in nanoseconds.
  double open_next(const Channel& exporter) {
    UniqueFd fd;
    const auto notice = exporter.receive<AllocationNotice>(&fd);
    require(imported_.add(notice, std::move(fd)));
    const auto piece = exporter.receive<ExportedPiece>();
    const Nanoseconds begin = now_ns();
    const std::optional<DevicePtr> address = require(imported_.acquire(piece, Deadline::never()));
    const double time = static_cast<double>(now_ns() - begin);
    if (!address) give_up("the device has no access to its own memory in another process");
    opened_.push_back(*address);
    return time;
  }

  // Read only when all are open.
  size_t count_right() const {
    size_t right = 0;
    for (uint32_t i = 0; i < opened_.size(); ++i) {
      uint32_t value = ~i;
      device_.download(std::as_writable_bytes(std::span(&value, 1)), opened_[i]);
      right += value == i;
    }
    return right;
  }

 private:
  const ProbeDevice& device_;
  cuda::ImportedMemory imported_;
  std::vector<DevicePtr> opened_;
};

void run(bool brief) {
  raise_descriptor_limit();
  const uint32_t count = brief ? 40 : 1100;
  PeerProcess exporter([count](const Channel& importer) { export_all(importer, count); });
  const ProbeDevice device;
  Importer importer(device);
  std::vector<double> times;
  for (uint32_t i = 0; i < count; ++i) times.push_back(importer.open_next(exporter.channel()));
  const size_t right = importer.count_right();
  exporter.channel().tell();
  exporter.join();

  fact("allocations open at the same time", static_cast<double>(times.size()), "");
  fact("opening the first", times.front() / 1e3, "us");
  fact("opening the last", times.back() / 1e3, "us");
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  fact("opening one, median", times[times.size() / 2] / 1e3, "us");
  expect("all of them show the right bytes", right == count);
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) { freescale::probe::run(freescale::probe::is_short(argc, argv)); }
