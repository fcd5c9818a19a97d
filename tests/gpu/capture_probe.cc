// Which of the operations that an exchange consists of can be captured into a graph.

#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/driver_entry.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::Code;
using cuda::DevicePtr;
using Graph = struct GraphObject*;
using BeginCapture = Code(cuda::Stream stream, int mode);
using EndCapture = Code(cuda::Stream stream, Graph* graph);

constexpr int kCaptureRelaxed = 2;  // forbids nothing that other threads and streams do
constexpr size_t kBytes = 1 << 20;

struct Operation {
  std::string name;
  std::function<Status(cuda::Stream)> enqueue;
};

std::vector<Operation> operations(const ProbeDevice& device) {
  const cuda::Driver& driver = device.driver();
  const DevicePtr from = device.allocate(kBytes);
  const auto to = reinterpret_cast<DevicePtr>(device.allocate_host(kBytes).host);
  const cuda::PinnedWord word = device.word();
  const auto copied = [=](DevicePtr part) { return cuda::CopyPiece{to + part, from + part, 4096}; };
  return {
      {"a copy",
       [&driver, from, to](cuda::Stream on) { return driver.memcpy_async(to, from, kBytes, on); }},
      {"a batch of copies",
       [&driver, copied](cuda::Stream on) {
         const cuda::CopyPiece pieces[] = {copied(0), copied(8192)};
         return driver.copy_batch(pieces, on);
       }},
      {"a write of a word",
       [&driver, word](cuda::Stream on) {
         return driver.stream_write_value32(on, word.device, 1, cuda::kWriteDefault);
       }},
      {"a wait for a word",
       [&driver, word](cuda::Stream on) {
         return driver.stream_wait_value32(on, word.device, 0, cuda::kWaitGreaterOrEqual);
       }},
  };
}

void run() {
  if (is_stand_in()) unavailable("needs a GPU: the stand-in driver captures no graphs");
  const ProbeDevice device;
  auto* const begin = driver_entry<BeginCapture>("cuStreamBeginCapture_v2");
  auto* const end = driver_entry<EndCapture>("cuStreamEndCapture");
  for (const Operation& operation : operations(device)) {
    const cuda::Stream stream = device.plain_stream();
    check("cuStreamBeginCapture", begin(stream, kCaptureRelaxed));
    const Status status = operation.enqueue(stream);
    Graph graph = nullptr;
    const Code ended = end(stream, &graph);
    fact("capture of " + operation.name,
         !status.ok()              ? status.message()
         : ended == Code::kSuccess ? "works"
                                   : "ends with error " + std::to_string(static_cast<int>(ended)));
  }
}

}  // namespace
}  // namespace freescale::probe

int main() { freescale::probe::run(); }
