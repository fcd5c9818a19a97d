// What a copy queue promises, for both implementations, on the stand-in driver.

#include "cpp/device/copy_queue.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/device/ahead_copy_queue.h"
#include "cpp/device/copy_pacer.h"
#include "cpp/device/proxy_copy_queue.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_lane.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::CopyLane;
using testing::on_each_engine;
using testing::on_each_overtaking_queue;
using testing::on_each_queue;
using testing::on_each_version;
using testing::on_stand_in;
using testing::StandIn;
using testing::Standstill;
using testing::Submission;
using testing::WordPool;

constexpr size_t kChunk = testing::kLaneChunk;

TEST(chunks_move_as_they_are_let_go) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 2 * kChunk + 500);
    CHECK(lane.queue->drained());
    CHECK_EQ(lane.submit(lane.request()), 3u);
    CHECK_EQ(lane.queue->releasable(), 3u);
    lane.await_standstill();
    lane.expect_arrived(0);

    lane.queue->release(1);
    lane.await_progress(1);
    CHECK_EQ(lane.queue->releasable(), 2u);
    lane.await_standstill();
    lane.expect_arrived(kChunk);
    CHECK(!lane.queue->drained());
    CHECK(lane.queue->is_over(1));
    CHECK(!lane.queue->is_over(2));
    CHECK_EQ(lane.done.host->load(), 0u);

    lane.queue->release(99);  // no more than there are
    CHECK_EQ(lane.queue->releasable(), 0u);
    lane.await_drained();
    CHECK_EQ(lane.done.host->load(), 1u);
    lane.expect_arrived(lane.content.size());
    CHECK(lane.queue->is_over(3));
    CHECK(!lane.queue->is_over(4));
  });
}

TEST(numbers_of_chunks_wrap) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 5 * kChunk, 0xfffffffd);
    CHECK_EQ(lane.submit(lane.request()), 2u);
    for (uint32_t i = 1; i <= 5; ++i) {
      CHECK_EQ(lane.queue->releasable(), 6 - i);
      lane.queue->release(1);
      lane.await_progress(0xfffffffd + i);
    }
    CHECK_EQ(lane.progress.host->load(), 2u);
    CHECK(lane.queue->is_over(2));
    CHECK(lane.queue->drained());
    lane.expect_arrived(lane.content.size());
  });
}

TEST(a_request_without_bytes_has_its_place_in_the_order) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, kChunk);
    const PinnedWord none = words.next(), empty = words.next();
    CopyRequest without_pieces, without_bytes;
    without_pieces.done = {{none, 5}};
    without_bytes.pieces = {lane.piece(0, 0), lane.piece(7, 0)};
    without_bytes.done = {{empty, 6}};
    CHECK_EQ(lane.submit(without_pieces), 1u);
    CHECK_EQ(lane.submit(without_bytes), 2u);
    CHECK_EQ(lane.submit(lane.request()), 3u);
    CHECK_EQ(lane.queue->releasable(), 3u);
    lane.queue->release(1);
    lane.await_standstill();
    CHECK_EQ(none.host->load(), 5u);
    CHECK_EQ(empty.host->load(), 0u);
    lane.queue->release(1);
    lane.await_standstill();
    CHECK_EQ(empty.host->load(), 6u);
    lane.expect_arrived(0);
    lane.queue->release(1);
    lane.await_drained();
    lane.expect_arrived(kChunk);
  });
}

TEST(large_requests_have_larger_chunks_and_a_full_queue_no_room) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 128 * kChunk);
    for (uint32_t i = 1; i <= 3; ++i) {
      CHECK(lane.queue->has_room());
      CHECK_EQ(lane.submit(lane.request()), i * 64);
      CHECK_EQ(lane.queue->releasable(), i * 64);
    }
    CHECK(!lane.queue->has_room());
    CHECK(lane.queue->submit(lane.request()).status().code() == StatusCode::kInvalidArgument);
    lane.queue->release(64);
    lane.await_progress(64);
    CHECK(lane.queue->has_room());
    lane.submit(lane.request());
    lane.queue->release(1000);
    lane.await_drained();
    lane.expect_arrived(lane.content.size());
  });
}

// A call that finds the stream's queue full blocks, and then nobody lets a chunk go.
TEST(the_largest_requests_fit_into_the_stream) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 128 * kChunk);
    CopyRequest largest;
    for (size_t i = 0; i < CopyRequest::kPieces; ++i) {
      largest.pieces.push_back(lane.piece(i * 500, 500));
    }
    for (uint32_t i = 0; i < CopyRequest::kDoneWords; ++i) largest.done.push_back({lane.done, i});
    int requests = 0;
    for (; lane.queue->has_room(); ++requests) lane.submit(largest);
    CHECK_GE(requests, 2);
    CHECK_EQ(stand_in.state().full_queues, 0);
    lane.queue->release(1000);
    lane.await_drained();
    lane.expect_arrived(lane.content.size());
    CHECK_EQ(lane.done.host->load(), CopyRequest::kDoneWords - 1);
  });
}

TEST(a_request_that_is_too_large_is_refused_and_does_no_harm) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 65 * kChunk);
    CopyRequest pieces, done, gated;
    pieces.pieces.assign(CopyRequest::kPieces + 1, lane.piece(0, 1));
    done.done.assign(CopyRequest::kDoneWords + 1, {lane.done, 1});
    gated.pieces = {lane.piece(0, 64 * kChunk + 1)};
    gated.gate = ChunkGate{words.next(), 0};
    CHECK_EQ(lane.queue->submit(pieces).status().message(),
             std::string("a copy request of 257 pieces, of at most 256"));
    CHECK_EQ(lane.queue->submit(done).status().message(),
             std::string("a copy request of 33 words, of at most 32"));
    CHECK_EQ(lane.queue->submit(gated).status().message(),
             std::string("a copy request of 65 chunks with a gate, of at most 64"));
    CHECK(lane.queue->drained());
    gated.pieces = {lane.piece(0, 64 * kChunk)};
    CHECK_EQ(lane.submit(gated), 64u);
    lane.queue->release(64);
    lane.await_progress(1);  // the gate lets the first pass
    lane.queue->abort();
    lane.await_drained();
  });
}

TEST(any_thread_submits_and_keeps_its_context) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, kChunk);
    std::thread([&] {
      lane.submit(lane.request());
      lane.queue->release(1);
      lane.await_drained();
      Context context = nullptr;
      CHECK_OK(stand_in.driver().ctx_get_current(&context));
      CHECK_EQ(context, nullptr);
    }).join();
    lane.expect_arrived(kChunk);
  });
}

// --- Pieces ------------------------------------------------------------------------------------

TEST(chunks_span_ragged_pieces) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 4 * kChunk);
    CopyRequest request = lane.request();
    request.pieces.clear();
    // Sizes that begin and end chunks within a piece, at its end, and at empty ones.
    size_t offset = 0;
    for (size_t bytes : {1, 0, 399, 600, 0, 1, 1, 1500, 498, 3, 900}) {
      request.pieces.push_back(lane.piece(offset, bytes));
      offset += bytes;
    }
    CHECK_EQ(offset, 3903u);
    CHECK_EQ(lane.submit(request), 4u);
    for (uint32_t chunk = 1; chunk <= 4; ++chunk) {
      lane.queue->release(1);
      lane.await_progress(chunk);
      if (chunk < 4) lane.await_standstill();
      lane.expect_arrived(std::min(chunk * kChunk, offset));
    }
    CHECK_EQ(lane.done.host->load(), 1u);
  });
}

// Which call is made is seen from the message of its refusal.
TEST(several_pieces_of_a_chunk_are_one_call_where_the_driver_can) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 2 * kChunk);
    CopyRequest request;
    request.pieces = {lane.piece(0, 999), lane.piece(1000, 1000)};
    // One chunk of two pieces, then one of the rest.
    stand_in.inject("copy_refused", 1, static_cast<int>(Code::kOutOfMemory));
    Status status = lane.queue->submit(request).status();
    lane.queue->release(2);
    if (status.ok()) status = lane.queue->drive().status();
    const int version = stand_in.driver().version();
    const std::string call = version == 12040   ? "cuMemcpyAsync"
                             : version == 12080 ? "cuMemcpyBatchAsync of 2, copy 0"
                                                : "cuMemcpyBatchAsync of 2";
    CHECK_EQ(status.message(), call + ": CUDA_ERROR_OUT_OF_MEMORY (2)");
  });
}

TEST(a_piece_alone_is_a_plain_copy) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, kChunk);
    CopyRequest request = lane.request();
    request.within_device = true;
    stand_in.inject("copy_refused", 1, static_cast<int>(Code::kOutOfMemory));
    Status status = lane.queue->submit(request).status();
    lane.queue->release(1);
    if (status.ok()) status = lane.queue->drive().status();
    CHECK_EQ(status.message(), std::string("cuMemcpyAsync: CUDA_ERROR_OUT_OF_MEMORY (2)"));
  });
}

// Until 13.1 copies within a device need an SM, so none comes past a kernel that fills them all.
TEST(copies_within_the_device_do_without_sms_where_the_driver_can) {
  for (int version : {12040, 12080, 13000, 13010}) {
    for (Submission submission : {Submission::kAhead, Submission::kProxy}) {
      for (bool within_device : {true, false}) {
        on_stand_in({{"FAKE_CUDA_VERSION", std::to_string(version)}}, [&](StandIn& stand_in) {
          WordPool words(stand_in.context());
          CopyLane lane(stand_in, words, submission, 3 * kChunk);
          Standstill standstill(stand_in, words);
          CopyRequest request = lane.request();
          request.within_device = within_device;
          lane.submit(request);
          lane.queue->release(3);
          if (version < 13010 || !within_device) {
            lane.drive_until([&] { return stand_in.state().sm_waiters == 1; });
            CHECK_EQ(lane.progress.host->load(), 0u);
            standstill.end();
          }
          lane.await_drained();
          lane.expect_arrived(lane.content.size());
          standstill.end();
        });
      }
    }
  }
}

// --- Readiness ---------------------------------------------------------------------------------

TEST(a_request_goes_when_both_ends_are_ready) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 2 * kChunk);
    const PinnedWord mine = words.next(), theirs = words.next();
    lane.submit(lane.request({{mine, 3}, {theirs, 4}}));
    lane.submit({});  // behind it
    CHECK_EQ(lane.queue->releasable(), 0u);
    theirs.host->store(4);
    CHECK_EQ(lane.queue->releasable(), 0u);
    lane.queue->release(3);
    CHECK_EQ(lane.queue->in_flight(), 0u);
    lane.await_standstill();
    lane.expect_arrived(0);
    mine.host->store(4);  // more than enough
    CHECK_EQ(lane.queue->releasable(), 3u);
    lane.queue->release(3);
    lane.await_drained();
    lane.expect_arrived(lane.content.size());
  });
}

TEST(a_gate_lets_chunks_pass_one_by_one) {
  for (uint32_t first : {7u, 0xfffffffeu}) {
    on_each_queue([first](StandIn& stand_in, Submission submission) {
      WordPool words(stand_in.context());
      CopyLane lane(stand_in, words, submission, 4 * kChunk, 100);
      const PinnedWord gate = words.next(), called = words.next();
      gate.host->store(first - 1);
      CopyRequest gated = lane.request({{called, 1}});
      gated.gate = ChunkGate{gate, first};
      lane.submit(gated);
      lane.submit({});
      CHECK_EQ(lane.queue->releasable(), 0u);
      gate.host->store(first);
      CHECK_EQ(lane.queue->releasable(), 0u);  // not called yet
      gate.host->store(first - 1);
      called.host->store(1);
      CHECK_EQ(lane.queue->releasable(), 0u);
      gate.host->store(first);
      CHECK_EQ(lane.queue->releasable(), 1u);
      lane.queue->release(9);
      lane.await_standstill();
      lane.expect_arrived(kChunk);
      gate.host->store(first + 2);
      CHECK_EQ(lane.queue->releasable(), 2u);
      lane.queue->release(1);
      CHECK_EQ(lane.queue->releasable(), 1u);
      lane.queue->release(1);
      lane.await_standstill();
      lane.expect_arrived(3 * kChunk);
      gate.host->store(first + 1000);  // more than it has
      CHECK_EQ(lane.queue->releasable(), 2u);
      lane.queue->release(2);
      lane.await_drained();
      lane.expect_arrived(lane.content.size());
    });
  }
}

TEST(done_words_are_written_after_the_last_byte) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 2 * kChunk);
    CopyRequest request = lane.request();
    std::vector<PinnedWord> done;
    for (uint32_t i = 0; i < 5; ++i) {
      done.push_back(words.next());
      request.done.push_back({done.back(), 10 + i});
    }
    const uint32_t last = lane.submit(request);
    lane.queue->release(1);
    lane.await_standstill();
    for (const PinnedWord& word : done) CHECK_EQ(word.host->load(), 0u);
    // The bytes are there when any of the words is, and all words when the request is over.
    stand_in.inject("copy_slow", 1, 20);
    lane.queue->release(1);
    lane.drive_until([&] { return lane.done.host->load() == 1; });
    lane.expect_arrived(lane.content.size());
    lane.drive_until([&] { return lane.queue->is_over(last); });
    for (uint32_t i = 0; i < 5; ++i) CHECK_EQ(done[i].host->load(), 10 + i);
  });
}

// --- What requests keep ------------------------------------------------------------------------

TEST(what_a_request_keeps_goes_when_it_is_over_and_not_before) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 2 * kChunk);
    // Letting go of it may come back to the queue.
    std::shared_ptr<const void> first(
        &lane, [](const CopyLane* kept) { CHECK_EQ(kept->queue->in_flight(), 0u); });
    auto second = std::make_shared<int>(1);
    const std::weak_ptr<const void> first_kept = first, second_kept = second;
    CopyRequest request = lane.request();
    request.keep = std::move(first);
    Standstill standstill(stand_in, words);
    const uint32_t last = lane.submit(std::move(request));
    request = lane.request();
    request.keep = std::move(second);
    lane.submit(std::move(request));
    CHECK_OK(lane.queue->drive());
    CHECK(!first_kept.expired());

    // Its last chunk in flight, but not there.
    lane.queue->release(2);
    lane.drive_until([&] { return stand_in.state().sm_waiters == 1; });
    CHECK_OK(lane.queue->drive());
    CHECK_EQ(lane.queue->in_flight(), 2u);
    CHECK(!first_kept.expired());

    standstill.end();
    while (!lane.queue->is_over(last)) std::this_thread::yield();
    // Not in a call of somebody who must not be blocked.
    CHECK_EQ(lane.queue->in_flight(), 0u);
    CHECK_EQ(lane.queue->releasable(), 2u);
    CHECK(!first_kept.expired());
    CHECK_OK(lane.queue->drive());
    CHECK(first_kept.expired());
    CHECK(!second_kept.expired());

    // Let go of by the next request as well.
    lane.queue->release(2);
    lane.await_progress(4);
    lane.submit({});
    CHECK(second_kept.expired());
    lane.queue->abort();
    lane.await_drained();
  });
}

TEST(what_a_stream_may_still_use_is_kept_when_the_queue_goes) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 2 * kChunk);
    auto moving = std::make_shared<int>(1), waiting = std::make_shared<int>(2);
    const std::weak_ptr<const void> moving_kept = moving, waiting_kept = waiting;
    Standstill standstill(stand_in, words);
    CopyRequest request = lane.request();
    request.keep = std::move(moving);
    lane.submit(std::move(request));
    request = lane.request();
    request.keep = std::move(waiting);
    lane.submit(std::move(request));
    lane.queue->release(1);
    lane.drive_until([&] { return stand_in.state().sm_waiters == 1; });
    lane.queue.reset();
    CHECK(!moving_kept.expired());
    CHECK_EQ(waiting_kept.expired(), submission == Submission::kProxy);
    standstill.end();
    if (submission == Submission::kAhead) lane.go.host->store(1u << 30);
    stand_in.await([](const FakeCudaState& state) { return state.copies_done > 2; });
    CHECK(!moving_kept.expired());
  });
}

// --- Failures ----------------------------------------------------------------------------------

// Submits and lets everything go; the first failure.
Status failure_of(const CopyLane& lane, CopyRequest request) {
  Status status = lane.queue->submit(std::move(request)).status();
  lane.queue->release(1000);
  while (status.ok()) status = lane.queue->drive().status();
  return status;
}

TEST(a_refused_copy_is_an_error_and_the_end_of_its_queue) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 3 * kChunk);
    CopyRequest request = lane.request();
    auto keep = std::make_shared<int>(1);
    const std::weak_ptr<const void> kept = keep;
    request.keep = std::move(keep);
    stand_in.inject("copy_refused", 2, static_cast<int>(Code::kOutOfMemory));
    CHECK_EQ(failure_of(lane, std::move(request)).message(),
             std::string("cuMemcpyAsync: CUDA_ERROR_OUT_OF_MEMORY (2)"));
    CHECK(lane.queue->submit(lane.request()).status().code() == StatusCode::kCancelled);
    // A pacer must not wait for it.
    CHECK_EQ(lane.queue->releasable(), 0u);
    CHECK_EQ(lane.queue->in_flight(), 0u);
    if (submission == Submission::kProxy) {
      CHECK_EQ(lane.queue->drive().status().message(),
               std::string("cuMemcpyAsync: CUDA_ERROR_OUT_OF_MEMORY (2)"));
    }
    lane.queue->abort();
    // The stream ends, its memory does not count as free.
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 0; });
    while (lane.progress.host->load() != 1) std::this_thread::yield();
    CHECK(!lane.queue->drained());
    static_cast<void>(lane.queue->drive());
    CHECK(!kept.expired());
    lane.queue.reset();
    CHECK(!kept.expired());
  });
}

TEST(a_failed_copy_is_found_by_drive) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 3 * kChunk);
    stand_in.inject("copy_fails", 2, static_cast<int>(Code::kIllegalAddress));
    const Status status = failure_of(lane, lane.request());
    CHECK(status.message().ends_with(": CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    CHECK(!lane.queue->drive().ok());
    CHECK_EQ(lane.progress.host->load(), 1u);
    CHECK_EQ(lane.done.host->load(), 0u);
    CHECK(!lane.queue->drained());
    CHECK(!lane.queue->is_over(2));
  });
}

TEST(a_context_that_another_stream_has_lost_is_found_by_an_idle_queue) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane idle(stand_in, words, submission, kChunk), lost(stand_in, words, submission, kChunk);
    stand_in.inject("copy_fails", 1, static_cast<int>(Code::kLaunchFailed));
    CHECK(!failure_of(lost, lost.request()).ok());
    CHECK(!idle.queue->drive().ok());
  });
}

TEST(a_wait_that_hangs_stops_what_was_submitted_ahead) {
  on_each_engine(Submission::kAhead, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 3 * kChunk);
    stand_in.inject("wait_hung", 2);
    lane.submit(lane.request());
    lane.queue->release(3);
    lane.await_progress(1);
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
    lane.queue->abort();
    CHECK_OK(lane.queue->drive());
    CHECK_EQ(lane.queue->in_flight(), 2u);
    CHECK(!lane.queue->drained());
    lane.expect_arrived(kChunk);
    stand_in.release_hung();
    lane.await_drained();
  });
}

TEST(a_proxy_has_no_waits_that_could_hang) {
  on_each_engine(Submission::kProxy, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 3 * kChunk);
    stand_in.inject("wait_hung", 1);
    lane.submit(lane.request());
    lane.queue->release(3);
    lane.await_drained();
    lane.expect_arrived(lane.content.size());
  });
}

// --- Giving up ---------------------------------------------------------------------------------

TEST(what_was_submitted_ahead_and_aborted_waits_for_nothing) {
  on_each_engine(Submission::kAhead, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 3 * kChunk, 0xfffffffe);
    const uint32_t last = lane.submit(lane.request({{words.next(), 1}}));
    lane.queue->abort();
    lane.await_drained();
    CHECK(lane.queue->is_over(last));
    CHECK_EQ(lane.queue->in_flight(), 0u);
    lane.expect_arrived(lane.content.size());
    lane.queue->release(1);  // does not take it back
    CHECK_EQ(lane.go.host->load(), 1u + (1u << 30));
    CHECK(lane.queue->submit(lane.request()).status().code() == StatusCode::kCancelled);
  });
}

TEST(an_aborted_proxy_hands_nothing_over) {
  on_each_engine(Submission::kProxy, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 3 * kChunk, 0xfffffffe);
    lane.submit(lane.request());
    const uint32_t last = lane.submit(lane.request({{words.next(), 1}}));
    Standstill standstill(stand_in, words);
    lane.queue->release(1);
    CHECK_OK(lane.queue->drive());
    lane.queue->release(1);
    lane.queue->abort();
    // What the stream has is still in flight.
    CHECK_EQ(lane.queue->in_flight(), 1u);
    CHECK_EQ(lane.queue->releasable(), 0u);
    CHECK(!lane.queue->drained());
    CHECK(!lane.queue->is_over(last));
    standstill.end();
    while (!lane.queue->drained()) std::this_thread::yield();
    CHECK(lane.queue->is_over(last));
    CHECK_EQ(lane.queue->in_flight(), 0u);
    const Result<bool> handed = lane.queue->drive();
    CHECK_OK(handed);
    CHECK(!handed.value());
    lane.expect_arrived(kChunk);
    CHECK_EQ(lane.done.host->load(), 0u);
    CHECK(lane.queue->submit(lane.request()).status().code() == StatusCode::kCancelled);
  });
}

TEST(an_abandoned_request_that_was_submitted_ahead_moves_in_its_turn) {
  on_each_engine(Submission::kAhead, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 5 * kChunk, 0xfffffffd);
    CopyRequest abandoned, behind;
    abandoned.pieces = {lane.piece(0, 3 * kChunk)};
    abandoned.ready = {{words.next(), 1}};
    abandoned.gate = ChunkGate{words.next(), 1};
    auto keep = std::make_shared<int>(1);
    const std::weak_ptr<const void> kept = keep;
    abandoned.keep = std::move(keep);
    behind.pieces = {lane.piece(3 * kChunk, 2 * kChunk)};
    const uint32_t last = lane.submit(std::move(abandoned));
    lane.submit(behind);
    CHECK_EQ(lane.queue->releasable(), 0u);
    lane.queue->abandon(last);
    CHECK_EQ(lane.queue->releasable(), 5u);
    CHECK(!lane.queue->is_over(last));
    lane.queue->release(2);
    lane.await_progress(0xffffffff);
    CHECK(!lane.queue->is_over(last));
    CHECK_OK(lane.queue->drive());
    CHECK(!kept.expired());
    lane.queue->release(3);
    lane.await_drained();
    CHECK_OK(lane.queue->drive());
    CHECK(kept.expired());
    lane.expect_arrived(lane.content.size());
  });
}

TEST(an_abandoned_request_that_a_proxy_has_not_begun_is_dropped) {
  on_each_engine(Submission::kProxy, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 5 * kChunk, 0xfffffffd);
    CopyRequest abandoned = lane.request({{words.next(), 1}}), behind;
    abandoned.pieces = {lane.piece(0, 3 * kChunk)};
    auto keep = std::make_shared<int>(1);
    const std::weak_ptr<const void> kept = keep;
    abandoned.keep = std::move(keep);
    behind.pieces = {lane.piece(3 * kChunk, 2 * kChunk)};
    const uint32_t first_last = lane.submit(std::move(abandoned));
    const uint32_t last = lane.submit(behind);
    lane.queue->abandon(first_last);
    // Without anything being handed over.
    CHECK(lane.queue->is_over(first_last));
    CHECK_EQ(lane.queue->in_flight(), 0u);
    CHECK(!lane.queue->drained());
    CHECK_EQ(lane.queue->releasable(), 2u);
    CHECK(!kept.expired());
    CHECK_OK(lane.queue->drive());
    CHECK(kept.expired());
    lane.queue->release(1);
    lane.await_progress(first_last + 1);
    CHECK(!lane.queue->is_over(last));
    lane.queue->release(1);
    lane.await_drained();
    lane.expect_untouched(0, 3 * kChunk);
    lane.expect_arrived(3 * kChunk, 5 * kChunk);
    CHECK_EQ(lane.done.host->load(), 0u);
  });
}

TEST(of_an_abandoned_request_a_proxy_finishes_what_it_has_begun) {
  on_each_engine(Submission::kProxy, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 6 * kChunk, 0xfffffffd);
    CopyRequest begun = lane.request(), between, behind;
    begun.pieces = {lane.piece(0, 4 * kChunk)};
    between.pieces = {lane.piece(4 * kChunk, kChunk)};
    behind.pieces = {lane.piece(5 * kChunk, kChunk)};
    auto keep = std::make_shared<int>(1);
    const std::weak_ptr<const void> kept = keep;
    begun.keep = std::move(keep);
    const uint32_t begun_last = lane.submit(std::move(begun));
    const uint32_t between_last = lane.submit(between);
    const uint32_t behind_last = lane.submit(behind);
    Standstill standstill(stand_in, words);
    lane.queue->release(2);
    CHECK_OK(lane.queue->drive());
    lane.queue->release(1);  // let go, and not handed over
    CHECK_EQ(lane.queue->in_flight(), 3u);
    lane.queue->abandon(between_last);
    lane.queue->abandon(begun_last);
    CHECK_EQ(lane.queue->in_flight(), 2u);
    CHECK_EQ(lane.queue->releasable(), 1u);
    CHECK(!lane.queue->is_over(begun_last));
    CHECK(!lane.queue->is_over(between_last));
    CHECK_OK(lane.queue->drive());
    CHECK(!kept.expired());

    standstill.end();
    while (!lane.queue->is_over(begun_last)) std::this_thread::yield();
    CHECK_EQ(lane.progress.host->load(), 0xffffffffu);
    CHECK(lane.queue->is_over(between_last));
    CHECK(!lane.queue->is_over(behind_last));
    CHECK_EQ(lane.queue->in_flight(), 0u);
    CHECK_OK(lane.queue->drive());
    CHECK(kept.expired());
    lane.queue->release(9);
    lane.await_drained();
    CHECK_EQ(lane.progress.host->load(), behind_last);
    lane.expect_arrived(0, 2 * kChunk);
    lane.expect_untouched(2 * kChunk, 5 * kChunk);
    lane.expect_arrived(5 * kChunk, 6 * kChunk);
    CHECK_EQ(lane.done.host->load(), 0u);
    // Nothing is left to abandon.
    lane.queue->abandon(behind_last);
    CHECK(lane.queue->drained());
  });
}

// --- Engines and locks -------------------------------------------------------------------------

void run_pacer(CopyPacer& pacer, const std::vector<const CopyLane*>& lanes,
               const std::function<bool()>& reached) {
  while (!reached()) {
    pacer.step(now_ns());
    for (const CopyLane* lane : lanes) CHECK_OK(lane->queue->drive());
    std::this_thread::yield();
  }
}

// A bulk copy that a peer has not called for, and an urgent one behind it.
struct Overtaking {
  Overtaking(StandIn& stand_in, Submission submission)
      : words(stand_in.context()),
        bulk(stand_in, words, submission, 4 * kChunk),
        urgent(stand_in, words, submission, 4 * kChunk),
        called(words.next()) {
    pacer.add(*bulk.queue, Priority::kLow);
    pacer.add(*urgent.queue, Priority::kUrgent);
    bulk.submit(bulk.request({{called, 1}}));
    urgent.submit(urgent.request());
  }
  void run(const CopyLane& lane) {
    run_pacer(pacer, {&bulk, &urgent}, [&] { return lane.queue->drained(); });
  }

  WordPool words;
  CopyLane bulk, urgent;
  PinnedWord called;
  CopyPacer pacer;
};

TEST(an_urgent_copy_overtakes_a_bulk_one_that_is_not_ready) {
  on_each_overtaking_queue([](StandIn& stand_in, Submission submission) {
    Overtaking test(stand_in, submission);
    test.run(test.urgent);
    test.urgent.expect_arrived(4 * kChunk);
    test.bulk.expect_arrived(0);
    test.called.host->store(1);
    test.run(test.bulk);
    test.bulk.expect_arrived(4 * kChunk);
  });
}

// Why a probe must look for such engines before copies are submitted ahead: the urgent copies stand
// behind a bulk one, which in turn gets no room while they are in flight.
TEST(ahead_of_a_head_of_line_the_urgent_copy_stalls_until_the_bulk_one_is_given_up) {
  on_each_version({{"FAKE_CUDA_ENGINE_ORDER", "head_of_line"}}, [](StandIn& stand_in) {
    Overtaking test(stand_in, Submission::kAhead);
    CHECK_EQ(test.pacer.step(0), 4u);
    stand_in.await([&](const FakeCudaState& state) {
      return state.blocked_copies == 1 || test.urgent.progress.host->load() > 0;
    });
    CHECK_EQ(test.urgent.progress.host->load(), 0u);
    test.called.host->store(1);
    CHECK_EQ(test.pacer.step(0), 0u);
    CHECK_EQ(test.bulk.queue->releasable(), 4u);
    test.bulk.queue->abort();
    test.bulk.await_drained();
    test.run(test.urgent);
    test.urgent.expect_arrived(4 * kChunk);
  });
}

// A program's stream waits for the queue's last word, and a launch for that stream (lazy loading),
// while it holds the lock.
struct LazyLaunch {
  LazyLaunch(StandIn& stand_in, const CopyLane& lane) {
    CHECK_OK(stand_in.driver().stream_wait_value32(stand_in.stream(), lane.done.device, 1,
                                                   kWaitGreaterOrEqual));
    const Stream kernels = stand_in.stream();
    launcher = std::thread([&stand_in, kernels] {
      const CurrentContext scope(stand_in.context());
      CHECK(stand_in.launch_kernel(kernels, "first", nullptr) == Code::kSuccess);
    });
    stand_in.await([](const FakeCudaState& state) { return state.draining_launches == 1; });
  }
  ~LazyLaunch() { launcher.join(); }

  std::thread launcher;
};

TEST(a_launch_that_holds_the_lock_does_not_stop_what_was_submitted_ahead) {
  on_each_engine(Submission::kAhead, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 4 * kChunk);
    CopyPacer pacer;
    pacer.add(*lane.queue, Priority::kNormal);
    lane.submit(lane.request());
    {
      LazyLaunch launch(stand_in, lane);
      while (!lane.queue->drained()) {
        pacer.step(now_ns());
        std::this_thread::yield();
      }
    }
    lane.expect_arrived(lane.content.size());
  });
}

// A call in the middle of the submission holds the lock until the stream goes on.
TEST(chunks_go_while_the_rest_of_their_request_is_submitted) {
  on_each_version({{"FAKE_CUDA_QUEUE_DEPTH", "8"}}, [](StandIn& stand_in) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, Submission::kAhead, 20 * kChunk);
    std::thread submitting([&] { lane.submit(lane.request()); });
    stand_in.await([](const FakeCudaState& state) { return state.full_queues == 1; });
    while (lane.progress.host->load() < 20) {
      lane.queue->release(1);
      std::this_thread::yield();
    }
    submitting.join();
    lane.await_drained();
    lane.expect_arrived(lane.content.size());
  });
}

// The price of a proxy: the launch waits for the copies, and they for the launch
// (pytorch/torchcomms#2334, microsoft/mscclpp#394).
TEST(a_launch_that_holds_the_lock_stops_a_proxy_until_the_program_is_let_go) {
  on_each_engine(Submission::kProxy, [](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, 4 * kChunk);
    lane.submit(lane.request());
    lane.queue->release(4);
    std::thread driving;
    {
      LazyLaunch launch(stand_in, lane);
      driving = std::thread([&] { lane.await_drained(); });
      stand_in.await([](const FakeCudaState& state) { return state.lock_waiters == 1; });
      CHECK_EQ(lane.progress.host->load(), 0u);
      CHECK_EQ(stand_in.state().draining_launches, 1);
      // Who gives the operation up needs neither the driver nor the thread that hangs in it.
      CHECK_EQ(lane.queue->in_flight(), 4u);
      lane.done.host->store(1);
    }
    driving.join();
    lane.expect_arrived(lane.content.size());
  });
}

// --- Threads -----------------------------------------------------------------------------------

// One thread drives, one paces, one looks and gives requests up.
TEST(threads_share_a_queue) {
  on_each_queue([](StandIn& stand_in, Submission submission) {
    constexpr size_t kRequests = 150, kBytes = 3 * kChunk - 7;
    WordPool words(stand_in.context());
    CopyLane lane(stand_in, words, submission, kRequests * kBytes, 0u - 100);
    CopyPacer pacer({3, 3, 3, 3, 3});
    pacer.add(*lane.queue, Priority::kNormal);
    const PinnedWord called = words.next();
    std::atomic<uint32_t> submitted = 0;
    std::vector<std::atomic<uint32_t>> lasts(kRequests);
    std::atomic<bool> ended = false;

    std::thread pacing([&] {
      while (!ended) {
        pacer.step(now_ns());
        std::this_thread::yield();
      }
    });
    std::thread giving_up([&] {
      for (uint32_t i = 0; i < kRequests; ++i) {
        while (submitted <= i) std::this_thread::yield();
        if (i % 3 == 0) lane.queue->abandon(lasts[i]);
        called.host->store(i + 1);
      }
    });
    for (uint32_t i = 0; i < kRequests; ++i) {
      lane.drive_until([&] { return lane.queue->has_room(); });
      CopyRequest request;
      request.pieces = {lane.piece(i * kBytes, kBytes)};
      request.ready = {{called, i + 1}};
      request.keep = std::make_shared<uint32_t>(i);
      lasts[i] = lane.submit(std::move(request));
      submitted = i + 1;
    }
    giving_up.join();
    lane.await_drained();
    ended = true;
    pacing.join();
    CHECK_EQ(lane.queue->in_flight(), 0u);
    for (size_t i = 0; i < kRequests; ++i) {
      if (i % 3 != 0) lane.expect_arrived(i * kBytes, (i + 1) * kBytes);
    }
  });
}

}  // namespace
}  // namespace freescale::cuda
