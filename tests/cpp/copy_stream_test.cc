// Copies that are submitted at once and let go by the host, on the stand-in driver.

#include "cpp/device/copy_stream.h"

#include <sys/mman.h>

#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cpp/device/copy_pacer.h"
#include "cpp/device/pinned_words.h"
#include "tests/cpp/check.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::Environment;
using testing::on_each_version;
using testing::on_stand_in;
using testing::StandIn;

constexpr size_t kChunk = 1000;

// Words in pinned memory, given out one by one.
class WordPool {
 public:
  explicit WordPool(const PrimaryContext& context)
      : memory_(64), words_(PinnedWords::register_memory(context, memory_)) {
    CHECK_OK(words_);
  }
  PinnedWord next() { return words_.value()[used_++]; }

 private:
  std::vector<std::atomic<uint32_t>> memory_;
  Result<PinnedWords> words_;
  size_t used_ = 0;
};

// A copy stream with memory at both ends that differs in every byte.
struct Lane {
  Lane(StandIn& on, WordPool& words, size_t bytes, uint32_t first = 0)
      : stand_in(on), go(words.next()), progress(words.next()), done(words.next()) {
    for (size_t i = 0; i < bytes; ++i) content += static_cast<char>(i * 7 + i / 256);
    from = on.allocate(bytes);
    to = on.allocate(bytes);
    on.write(from, content);
    on.write(to, std::string(bytes, '\xee'));
    auto created =
        CopyStream::create(on.context(), go, progress, {.chunk_bytes = kChunk, .first = first});
    CHECK_OK(created);
    stream = std::move(created.value());
  }

  CopyRequest request(std::vector<WordValue> ready = {}) const {
    return {to, from, content.size(), std::move(ready), WordValue{done, 1}};
  }
  // The first bytes have arrived, and no others.
  void expect_arrived(size_t bytes) const {
    std::string expected = content.substr(0, bytes);
    expected.resize(content.size(), '\xee');
    CHECK(stand_in.read(to, content.size()) == expected);
  }
  void await_progress(uint32_t chunk) const {
    while (!has_reached(progress.host->load(), chunk)) std::this_thread::yield();
  }
  void await_drained() const {
    while (!stream->drained()) std::this_thread::yield();
  }

  StandIn& stand_in;
  PinnedWord go, progress, done;
  std::string content;
  DevicePtr from = 0, to = 0;
  std::unique_ptr<CopyStream> stream;
};

TEST(chunks_move_as_they_are_let_go) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 2 * kChunk + 500);
    CHECK(lane.stream->drained());
    CHECK_OK(lane.stream->submit(lane.request()));
    CHECK_EQ(lane.stream->releasable(), 3u);
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
    lane.expect_arrived(0);

    lane.stream->release(1);
    lane.await_progress(1);
    CHECK_EQ(lane.stream->releasable(), 2u);
    CHECK_EQ(lane.stream->in_flight(), 0u);
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
    lane.expect_arrived(kChunk);
    CHECK(!lane.stream->drained());
    CHECK_EQ(lane.done.host->load(), 0u);

    lane.stream->release(99);  // no more than there are
    CHECK_EQ(lane.go.host->load(), 3u);
    while (lane.done.host->load() != 1) std::this_thread::yield();
    CHECK(lane.stream->drained());
    lane.expect_arrived(lane.content.size());
    CHECK_OK(lane.stream->check());
  });
}

TEST(numbers_of_chunks_wrap) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 5 * kChunk, 0xfffffffd);
    CHECK_OK(lane.stream->submit(lane.request()));
    for (uint32_t i = 1; i <= 5; ++i) {
      CHECK_EQ(lane.stream->releasable(), 6 - i);
      lane.stream->release(1);
      lane.await_progress(0xfffffffd + i);
    }
    CHECK_EQ(lane.progress.host->load(), 2u);
    CHECK(lane.stream->drained());
    lane.expect_arrived(lane.content.size());
  });
}

TEST(a_request_without_bytes_has_its_place_in_the_order) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, kChunk);
    const PinnedWord empty = words.next();
    CHECK_OK(lane.stream->submit({0, 0, 0, {}, WordValue{empty, 5}}));
    CHECK_OK(lane.stream->submit(lane.request()));
    CHECK_EQ(lane.stream->releasable(), 2u);
    CHECK_EQ(empty.host->load(), 0u);
    lane.stream->release(1);
    while (empty.host->load() != 5) std::this_thread::yield();
    lane.expect_arrived(0);
    lane.stream->release(1);
    lane.await_drained();
  });
}

TEST(a_request_goes_when_both_ends_are_ready) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 2 * kChunk);
    const PinnedWord mine = words.next(), theirs = words.next();
    CHECK_OK(lane.stream->submit(lane.request({{mine, 3}, {theirs, 4}})));
    CHECK_OK(lane.stream->submit({0, 0, 0, {}, {}}));  // behind it
    CHECK_EQ(lane.stream->releasable(), 0u);
    theirs.host->store(4);
    CHECK_EQ(lane.stream->releasable(), 0u);
    lane.stream->release(3);
    CHECK_EQ(lane.go.host->load(), 0u);
    mine.host->store(4);  // more than enough
    CHECK_EQ(lane.stream->releasable(), 3u);
    lane.stream->release(3);
    lane.await_drained();
    lane.expect_arrived(lane.content.size());
  });
}

TEST(large_requests_have_larger_chunks_and_a_full_stream_no_room) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 128 * kChunk);
    for (uint32_t i = 1; i <= 4; ++i) {
      CHECK(lane.stream->has_room());
      CHECK_OK(lane.stream->submit(lane.request()));
      CHECK_EQ(lane.stream->releasable(), i * 64);
    }
    CHECK(!lane.stream->has_room());
    const Status status = lane.stream->submit(lane.request());
    CHECK(status.code() == StatusCode::kInvalidArgument);
    lane.stream->release(64);
    lane.await_progress(64);
    CHECK(lane.stream->has_room());
    CHECK_OK(lane.stream->submit(lane.request()));
    lane.stream->release(1000);
    lane.await_drained();
    lane.expect_arrived(lane.content.size());
  });
}

TEST(any_thread_submits_and_keeps_its_context) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, kChunk);
    std::thread([&] {
      CHECK_OK(lane.stream->submit(lane.request()));
      CHECK_OK(lane.stream->check());
      Context context = nullptr;
      CHECK_OK(stand_in.driver().ctx_get_current(&context));
      CHECK_EQ(context, nullptr);
    }).join();
    lane.stream->release(1);
    lane.await_drained();
    lane.expect_arrived(kChunk);
  });
}

TEST(an_aborted_stream_waits_for_nothing) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 3 * kChunk, 0xfffffffe);
    const PinnedWord never = words.next();
    CHECK_OK(lane.stream->submit(lane.request({{never, 1}})));
    lane.stream->abort();
    lane.await_drained();
    CHECK_EQ(lane.stream->in_flight(), 0u);
    lane.stream->release(1);  // does not take it back
    CHECK_EQ(lane.go.host->load(), 1u + (1u << 30));
    CHECK(lane.stream->submit(lane.request()).code() == StatusCode::kCancelled);
  });
}

TEST(a_refused_chunk_is_an_error_and_the_end_of_its_stream) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 3 * kChunk);
    stand_in.inject("copy_refused", 2, static_cast<int>(Code::kOutOfMemory));
    CHECK_EQ(lane.stream->submit(lane.request()).message(),
             std::string("cuMemcpyAsync: CUDA_ERROR_OUT_OF_MEMORY (2)"));
    CHECK(lane.stream->submit(lane.request()).code() == StatusCode::kCancelled);
    CHECK_EQ(lane.stream->releasable(), 0u);
    lane.stream->abort();
    // The stream ends, its memory does not count as free.
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 0; });
    lane.await_progress(1);
    CHECK(!lane.stream->drained());
  });
}

TEST(a_failed_chunk_is_found_by_the_check) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 3 * kChunk);
    stand_in.inject("copy_fails", 2, static_cast<int>(Code::kIllegalAddress));
    CHECK_OK(lane.stream->submit(lane.request()));
    CHECK_OK(lane.stream->check());
    lane.stream->release(3);
    while (lane.stream->check().ok()) std::this_thread::yield();
    CHECK_EQ(lane.stream->check().message(),
             std::string("cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    CHECK_EQ(lane.progress.host->load(), 1u);
    CHECK_EQ(lane.done.host->load(), 0u);
    CHECK(!lane.stream->drained());
  });
}

// --- Pacing ------------------------------------------------------------------------------------

// Nothing arrives while a kernel fills the SMs, which copies within a device need: so how much is
// in flight is known.
class Standstill {
 public:
  Standstill(StandIn& stand_in, WordPool& words) : end_(words.next()) {
    CHECK(stand_in.launch_kernel(stand_in.stream(), "spin",
                                 reinterpret_cast<const uint32_t*>(end_.host)) == Code::kSuccess);
    stand_in.await([](const FakeCudaState& state) { return state.running_kernels == 1; });
  }
  void end() { end_.host->store(1); }

 private:
  PinnedWord end_;
};

void run_until_drained(CopyPacer& pacer, const std::vector<const Lane*>& lanes) {
  for (const Lane* lane : lanes) {
    while (!lane->stream->drained()) {
      pacer.step();
      std::this_thread::yield();
    }
    lane->expect_arrived(lane->content.size());
  }
}

TEST(an_urgent_copy_waits_for_the_window_of_a_bulk_one) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane bulk(stand_in, words, 20 * kChunk), urgent(stand_in, words, 10 * kChunk);
    CopyPacer pacer({6, 6, 4, 2, 2});
    pacer.add(*bulk.stream, Priority::kLow);
    pacer.add(*urgent.stream, Priority::kUrgent);
    Standstill standstill(stand_in, words);
    CHECK_OK(bulk.stream->submit(bulk.request()));
    CHECK_EQ(pacer.step(), 2u);
    CHECK_EQ(pacer.step(), 0u);
    CHECK_EQ(bulk.stream->in_flight(), 2u);

    CHECK_OK(urgent.stream->submit(urgent.request()));
    CHECK_EQ(pacer.step(), 4u);
    CHECK_EQ(urgent.stream->in_flight(), 4u);
    CHECK_EQ(bulk.stream->in_flight(), 2u);
    CHECK_EQ(pacer.step(), 0u);

    // The rest of the urgent one goes before any more of the bulk.
    standstill.end();
    while (!urgent.stream->drained()) {
      const bool all_let_go = urgent.stream->releasable() == 0;
      if (!all_let_go) CHECK_EQ(bulk.go.host->load(), 2u);
      pacer.step();
    }
    run_until_drained(pacer, {&urgent, &bulk});
  });
}

TEST(streams_of_one_level_take_turns) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane first(stand_in, words, 9 * kChunk), second(stand_in, words, 9 * kChunk);
    CopyPacer pacer({8, 8, 5, 2, 2});
    pacer.add(*first.stream, Priority::kNormal);
    pacer.add(*second.stream, Priority::kNormal);
    Standstill standstill(stand_in, words);
    CHECK_OK(first.stream->submit(first.request()));
    CHECK_OK(second.stream->submit(second.request()));
    CHECK_EQ(pacer.step(), 5u);
    CHECK_EQ(first.stream->in_flight(), 3u);
    CHECK_EQ(second.stream->in_flight(), 2u);
    standstill.end();
    first.await_progress(3);
    second.await_progress(2);
    CHECK_EQ(pacer.step(), 5u);
    CHECK_EQ(second.go.host->load(), 5u);  // began this time
    run_until_drained(pacer, {&first, &second});
    pacer.remove(*first.stream);
    CHECK_OK(first.stream->submit(first.request()));
    CHECK_EQ(pacer.step(), 0u);
    first.stream->abort();
    first.await_drained();
  });
}

TEST(what_is_not_ready_holds_up_nobody) {
  on_each_version({{"FAKE_CUDA_ENGINE_ORDER", "readiness"}}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane urgent(stand_in, words, 4 * kChunk), bulk(stand_in, words, 4 * kChunk);
    const PinnedWord called = words.next();
    CopyPacer pacer;
    pacer.add(*urgent.stream, Priority::kUrgent);
    pacer.add(*bulk.stream, Priority::kLow);
    // A peer has not called the urgent one yet.
    CHECK_OK(urgent.stream->submit(urgent.request({{called, 1}})));
    CHECK_OK(bulk.stream->submit(bulk.request()));
    run_until_drained(pacer, {&bulk});
    urgent.expect_arrived(0);
    called.host->store(1);
    run_until_drained(pacer, {&urgent});
  });
}

// Why a probe must look for such engines before copies are submitted early: the urgent copies stand
// behind a bulk one, which in turn gets no room while they are in flight.
TEST(an_engine_with_a_head_of_line_stalls_until_the_copy_at_its_head_is_given_up) {
  on_each_version({{"FAKE_CUDA_ENGINE_ORDER", "head_of_line"}}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane bulk(stand_in, words, 4 * kChunk), urgent(stand_in, words, 4 * kChunk);
    const PinnedWord called = words.next();
    CopyPacer pacer;
    pacer.add(*bulk.stream, Priority::kLow);
    pacer.add(*urgent.stream, Priority::kUrgent);
    CHECK_OK(bulk.stream->submit(bulk.request({{called, 1}})));
    CHECK_OK(urgent.stream->submit(urgent.request()));
    CHECK_EQ(pacer.step(), 4u);
    stand_in.await([&](const FakeCudaState& state) {
      return state.blocked_copies == 1 || urgent.progress.host->load() > 0;
    });
    CHECK_EQ(urgent.progress.host->load(), 0u);
    called.host->store(1);
    CHECK_EQ(pacer.step(), 0u);
    CHECK_EQ(bulk.stream->releasable(), 4u);
    bulk.stream->abort();
    bulk.await_drained();
    run_until_drained(pacer, {&urgent});
  });
}

// The hazard of lazy loading: a launch waits for the streams, and they for copies of a thread that
// the lock keeps out of the driver. Submitted before, the copies need no thread in the driver.
TEST(a_launch_that_holds_the_lock_does_not_stop_copies) {
  on_each_version({}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    Lane lane(stand_in, words, 4 * kChunk);
    CopyPacer pacer;
    pacer.add(*lane.stream, Priority::kNormal);
    CHECK_OK(lane.stream->submit(lane.request()));
    const Stream kernels = stand_in.stream();
    std::thread launcher([&] {
      const CurrentContext scope(stand_in.context());
      CHECK(stand_in.launch_kernel(kernels, "first", nullptr) == Code::kSuccess);
    });
    stand_in.await([](const FakeCudaState& state) { return state.draining_launches == 1; });
    while (!lane.stream->drained()) {
      pacer.step();
      std::this_thread::yield();
    }
    launcher.join();
    lane.expect_arrived(lane.content.size());
  });
}

}  // namespace
}  // namespace freescale::cuda
