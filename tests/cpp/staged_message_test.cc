// One end of a ring, with a queue of copies that moves nothing.

#include "cpp/transport/cuda_ipc/staged_message.h"

#include <memory>

#include "tests/cpp/check.h"
#include "tests/cpp/copy_lane.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::on_stand_in;
using testing::StandIn;
using testing::WordPool;

// Takes everything; it is over when the test says so.
class IdleQueue : public CopyQueue {
 public:
  bool has_room() const override { return true; }
  Result<uint32_t> submit(CopyRequest) override { return ++last; }
  Result<bool> drive() override { return false; }
  bool is_over(uint32_t chunk) const override { return has_reached(over, chunk); }
  uint32_t releasable() override { return 0; }
  void release(uint32_t) override {}
  uint32_t in_flight() override { return 0; }
  bool drained() const override { return over == last; }
  void abandon(uint32_t) override { ++abandoned; }
  void abort() override {}

  uint32_t last = 0;
  uint32_t over = 0;
  uint32_t abandoned = 0;
};

// Where its queue drops what is abandoned, nobody else counts it; where not, the messages behind it
// may have been counted by then.
TEST(a_count_of_moved_chunks_never_goes_back) {
  on_stand_in({}, [](StandIn& on) {
    WordPool words(on.context());
    Result<std::unique_ptr<StagingRing>> ring = StagingRing::create(on.context());
    CHECK_OK(ring);
    const PinnedWord emptied = words.next(), filled = words.next();
    for (uint32_t counted : {0u, 5u}) {
      constexpr uint32_t kChunks = 3;
      IdleQueue queue;
      const StageEnd end{
          ring.value().get(), true, {emptied, 0u - StagingRing::kSlots}, {filled, 1}};
      StagedMessage message(queue, end, {{nullptr, kChunks * StagingRing::kSlotBytes}}, 0,
                            {words.next(), 0}, {words.next(), 1});
      const Result<bool> submitted = message.submit();
      CHECK_OK(submitted);
      CHECK(submitted.value());
      filled.host->store(counted);

      Result<bool> closed = message.close(/*peer_lost=*/false);
      CHECK_OK(closed);
      CHECK(!closed.value());
      CHECK_EQ(queue.abandoned, kChunks);
      CHECK_EQ(filled.host->load(), counted);
      queue.over = queue.last;
      closed = message.close(/*peer_lost=*/false);
      CHECK_OK(closed);
      CHECK(closed.value());
      CHECK_EQ(filled.host->load(), counted == 0 ? kChunks : counted);
    }
  });
}

}  // namespace
}  // namespace freescale::cuda
