// Both ends of a chunk lane over memory that another process writes to: the reader must not be led
// out of the slots by a filled entry, nor the writer by a returned one.

#include "cpp/transport/shm/chunk_lane.h"
#include "tests/fuzz/hostile_memory.h"

namespace freescale::fuzz {
namespace {

class Reads : public LinkSink {
 public:
  void on_record(std::span<const std::byte>) override { require(false); }
  void on_chunk(const ChunkTag&, std::span<const std::byte> data) override { read_all(data); }
};

class Lane {
 public:
  explicit Lane(uint32_t chunks) : geometry_{.chunk_bytes = 4096, .chunks = chunks} {}

  void act(Input& input) {
    switch (input.below(6)) {
      case 0:
        return memory_.poke(input, queue_bytes());
      case 1:
        static_cast<void>(writer_.can_put(level(input)));
        return;
      case 2:
        return put(input);
      case 3:
        static_cast<void>(reader_.take_writer_waits());
        return;
      default:
        static_cast<void>(reader_.poll(level(input), sink_));
    }
  }

 private:
  // What lies before the slots.
  size_t queue_bytes() const {
    return ChunkLaneMemory::bytes_needed(geometry_) - geometry_.chunk_bytes * geometry_.chunks;
  }
  static int level(Input& input) { return static_cast<int>(input.below(kPriorityLevels)); }
  void put(Input& input) {
    const int at = level(input);
    std::vector<std::byte> chunk(input.below(2) == 0 ? geometry_.chunk_bytes : input.below(256));
    const Segment piece{chunk.data(), chunk.size()};
    static_cast<void>(writer_.try_put(at, {}, std::span(&piece, 1)));
  }

  ChunkGeometry geometry_;
  HostileMemory memory_{ChunkLaneMemory::bytes_needed(geometry_)};
  ChunkLaneWriter writer_{memory_.data(), geometry_};
  ChunkLaneReader reader_{memory_.data(), geometry_};
  Reads sink_;
};

}  // namespace
}  // namespace freescale::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace freescale;
  fuzz::Input input(data, size);
  constexpr uint32_t kFewest = ChunkLaneMemory::kReserved + 1;
  const auto more = static_cast<uint32_t>(input.below(ChunkLaneMemory::kMaxChunks + 1 - kFewest));
  fuzz::Lane lane(kFewest + more);
  while (!input.empty()) lane.act(input);
  return 0;
}
