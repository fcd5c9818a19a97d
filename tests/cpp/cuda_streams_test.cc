// Streams, events, waits, copy engines, locks and faults of the stand-in driver: what the
// copy-engine transport is tested against has to behave as described
// (tests/fakes/cuda_driver/README.md).

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/device/cuda_context.h"
#include "cpp/device/cuda_driver.h"
#include "tests/cpp/check.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::Environment;
using testing::on_each_version;
using testing::on_stand_in;
using testing::StandIn;

// Device memory with a text in it.
DevicePtr device_text(StandIn& stand_in, const std::string& text) {
  const DevicePtr memory = stand_in.allocate(text.size());
  stand_in.write(memory, text);
  return memory;
}

// Memory of the second device, for copies between peers.
DevicePtr peer_text(StandIn& stand_in, const std::string& text) {
  Result<PrimaryContext> second = PrimaryContext::retain(stand_in.driver(), 1);
  CHECK_OK(second);
  // Kept for the rest of the process, as its memory is.
  const auto* context = new PrimaryContext(std::move(second.value()));
  const CurrentContext scope(*context);
  return device_text(stand_in, text);
}

void copy(StandIn& stand_in, DevicePtr to, DevicePtr from, size_t bytes, Stream stream) {
  CHECK_OK(stand_in.driver().memcpy_async(to, from, bytes, stream));
}

void finish(StandIn& stand_in, Stream stream) {
  CHECK_OK(stand_in.driver().stream_synchronize(stream));
}

void expect_not_ready(StandIn& stand_in, Stream stream) {
  CHECK(stand_in.driver().stream_query.code(stream) == Code::kNotReady);
}

// --- Order -------------------------------------------------------------------------------------

TEST(a_stream_works_in_order) {
  on_each_version({}, [](StandIn& stand_in) {
    const DevicePtr memory = device_text(stand_in, "a.........");
    const Stream stream = stand_in.stream();
    for (int i = 0; i < 9; ++i) copy(stand_in, memory + i + 1, memory + i, 1, stream);
    finish(stand_in, stream);
    CHECK_EQ(stand_in.read(memory, 10), std::string("aaaaaaaaaa"));
  });
}

TEST(an_event_holds_another_stream_back) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr source = device_text(stand_in, "new");
    const DevicePtr middle = device_text(stand_in, "old");
    const DevicePtr target = device_text(stand_in, "...");
    const Stream first = stand_in.stream(), second = stand_in.stream();
    const StandIn::Word go = stand_in.word();
    Event event = nullptr;
    CHECK_OK(driver.event_create(&event, kEventDisableTiming));
    CHECK_OK(driver.event_query(event));  // never recorded

    stand_in.wait(first, go, 1);
    copy(stand_in, middle, source, 3, first);
    CHECK_OK(driver.event_record(event, first));
    CHECK_OK(driver.stream_wait_event(second, event, 0));
    copy(stand_in, target, middle, 3, second);
    CHECK(driver.event_query.code(event) == Code::kNotReady);
    expect_not_ready(stand_in, second);

    go.store(1);
    CHECK_OK(driver.event_synchronize(event));
    CHECK_OK(driver.event_query(event));
    CHECK_EQ(stand_in.read(middle, 3), std::string("new"));
    finish(stand_in, second);
    CHECK_EQ(stand_in.read(target, 3), std::string("new"));
    CHECK_OK(driver.event_destroy(event));
  });
}

TEST(a_wait_is_for_the_record_before_it) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const Stream recording = stand_in.stream(), waiting = stand_in.stream();
    const StandIn::Word go = stand_in.word();
    Event event = nullptr;
    CHECK_OK(driver.event_create(&event, kEventDisableTiming));
    CHECK_OK(driver.event_record(event, recording));
    CHECK_OK(driver.stream_wait_event(waiting, event, 0));
    stand_in.wait(recording, go, 1);
    CHECK_OK(driver.event_record(event, recording));  // not waited for
    finish(stand_in, waiting);
    CHECK(driver.event_query.code(event) == Code::kNotReady);
    CHECK_OK(driver.event_destroy(event));
    expect_not_ready(stand_in, recording);
    go.store(1);
    finish(stand_in, recording);
  });
}

TEST(waits_compare_words_that_wrap) {
  on_each_version({}, [](StandIn& stand_in) {
    const Stream stream = stand_in.stream();
    const StandIn::Word word = stand_in.word(), passed = stand_in.word();
    word.store(0xfffffffe);
    stand_in.wait(stream, word, 0xfffffffe);
    stand_in.signal(stream, passed, 1);
    stand_in.wait(stream, word, 1);
    stand_in.signal(stream, passed, 2);
    stand_in.wait(stream, word, 0xffffffff);
    stand_in.signal(stream, passed, 3);
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
    CHECK_EQ(passed.load(), 1u);
    word.store(0xffffffff);  // still below 1
    expect_not_ready(stand_in, stream);
    word.store(1);
    finish(stand_in, stream);
    CHECK_EQ(passed.load(), 3u);
    // How an aborted operation is let go, whatever it waits for.
    stand_in.wait(stream, word, 1000);
    word.store(1000 + (1u << 30));
    finish(stand_in, stream);
  });
}

MemoryOperation operation(MemoryOperationKind kind, StandIn::Word word, uint32_t value) {
  MemoryOperation made;
  made.kind = kind;
  made.address = word.device;
  made.value = value;
  return made;
}

TEST(a_batch_of_word_operations_is_in_order_and_limited) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const Stream stream = stand_in.stream();
    const StandIn::Word first = stand_in.word(), second = stand_in.word();
    const StandIn::Word between = stand_in.word(), after = stand_in.word();
    MemoryOperation operations[] = {operation(MemoryOperationKind::kWaitValue32, first, 5),
                                    operation(MemoryOperationKind::kWriteValue32, between, 1),
                                    operation(MemoryOperationKind::kWaitValue32, second, 6),
                                    operation(MemoryOperationKind::kWriteValue32, after, 2)};
    CHECK_OK(driver.stream_batch_mem_op(stream, 4, operations, 0));
    second.store(6);
    CHECK_EQ(between.load(), 0u);
    first.store(5);
    finish(stand_in, stream);
    CHECK_EQ(between.load(), 1u);
    CHECK_EQ(after.load(), 2u);

    std::vector<MemoryOperation> many(kMemoryOperationLimit, operations[1]);
    CHECK(driver.stream_batch_mem_op.code(stream, 256, many.data(), 0) == Code::kInvalidValue);
    CHECK(driver.stream_batch_mem_op.code(stream, 0, many.data(), 0) == Code::kInvalidValue);
    CHECK_OK(driver.stream_batch_mem_op(stream, 255, many.data(), 0));
    many[0].address += 1;
    CHECK(driver.stream_batch_mem_op.code(stream, 1, many.data(), 0) == Code::kInvalidValue);
  });
}

// --- Copy engines ------------------------------------------------------------------------------

// A bulk copy that is not ready, submitted before an urgent one that is, both between peers.
struct Overtaking {
  explicit Overtaking(StandIn& on)
      : stand_in(on),
        source(device_text(on, "data")),
        bulk_target(peer_text(on, "....")),
        urgent_target(peer_text(on, "....")),
        bulk(on.stream()),
        urgent(on.stream(-5)),
        go(on.word()),
        done_before(on.state().copies_done) {
    stand_in.wait(bulk, go, 1);
    copy(stand_in, bulk_target, source, 4, bulk);
    copy(stand_in, urgent_target, source, 4, urgent);
  }

  uint64_t done() const { return stand_in.state().copies_done - done_before; }

  StandIn& stand_in;
  DevicePtr source, bulk_target, urgent_target;
  Stream bulk, urgent;
  StandIn::Word go;
  uint64_t done_before;
};

TEST(engines_by_readiness_let_a_ready_copy_overtake) {
  on_each_version({{"FAKE_CUDA_ENGINE_ORDER", "readiness"}}, [](StandIn& stand_in) {
    const Overtaking pair(stand_in);
    finish(stand_in, pair.urgent);
    CHECK_EQ(stand_in.read(pair.urgent_target, 4), std::string("data"));
    CHECK_EQ(stand_in.read(pair.bulk_target, 4), std::string("...."));
    expect_not_ready(stand_in, pair.bulk);
    pair.go.store(1);
    finish(stand_in, pair.bulk);
    CHECK_EQ(stand_in.read(pair.bulk_target, 4), std::string("data"));
  });
}

TEST(engines_with_a_head_of_line_hold_a_ready_copy_up) {
  on_each_version({{"FAKE_CUDA_ENGINE_ORDER", "head_of_line"}}, [](StandIn& stand_in) {
    const Overtaking pair(stand_in);
    // The stream's priority is -5, and does not help.
    stand_in.await(
        [&](const FakeCudaState& state) { return state.blocked_copies == 1 || pair.done() > 0; });
    CHECK_EQ(pair.done(), 0u);
    expect_not_ready(stand_in, pair.urgent);
    pair.go.store(1);
    finish(stand_in, pair.urgent);
    // In order of submission: the bulk copy is over as well.
    CHECK_EQ(pair.done(), 2u);
    finish(stand_in, pair.bulk);
    CHECK_EQ(stand_in.read(pair.bulk_target, 4), std::string("data"));
  });
}

// Whether a copy to the host gets past one between peers that is not ready.
void expect_other_direction(const std::string& engines, bool passes) {
  const Environment environment = {{"FAKE_CUDA_ENGINE_ORDER", "head_of_line"},
                                   {"FAKE_CUDA_ENGINES", engines}};
  on_each_version(environment, [passes](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr source = device_text(stand_in, "data");
    const DevicePtr target = peer_text(stand_in, "....");
    void* host = nullptr;
    CHECK_OK(driver.mem_host_alloc(&host, 4, 0));
    const Stream bulk = stand_in.stream(), other = stand_in.stream();
    const StandIn::Word go = stand_in.word();
    const uint64_t before = stand_in.state().copies_done;
    stand_in.wait(bulk, go, 1);
    copy(stand_in, target, source, 4, bulk);
    copy(stand_in, reinterpret_cast<DevicePtr>(host), source, 4, other);
    stand_in.await([&](const FakeCudaState& state) {
      return state.blocked_copies == 1 || state.copies_done > before;
    });
    CHECK_EQ(stand_in.state().copies_done > before, passes);
    go.store(1);
    finish(stand_in, bulk);
    finish(stand_in, other);
  });
}

TEST(directions_have_engines_of_their_own) { expect_other_direction("3", true); }

TEST(a_single_engine_serves_all_directions) { expect_other_direction("1", false); }

TEST(copies_within_a_device_wait_for_an_sm) {
  for (const char* version : {"12040", "13000", "13010"}) {
    on_stand_in({{"FAKE_CUDA_VERSION", version}}, [](StandIn& stand_in) {
      const Driver& driver = stand_in.driver();
      const DevicePtr source = device_text(stand_in, "data");
      const DevicePtr local = stand_in.allocate(4);
      const DevicePtr remote = peer_text(stand_in, "....");
      const Stream kernels = stand_in.stream(), copies = stand_in.stream();
      const Stream batches = stand_in.stream();
      const StandIn::Word end = stand_in.word();
      CHECK(stand_in.launch_kernel(kernels, "spin", end.host) == Code::kSuccess);
      stand_in.await([](const FakeCudaState& state) { return state.running_kernels == 1; });
      // Between devices the bytes move while the kernel fills all SMs.
      copy(stand_in, remote, source, 4, copies);
      finish(stand_in, copies);

      copy(stand_in, local, source, 4, copies);
      stand_in.await([](const FakeCudaState& state) { return state.sm_waiters == 1; });
      if (driver.has_copy_batch()) {
        const uint64_t before = stand_in.state().copies_done;
        CHECK_OK(driver.copy_batch(std::vector<CopyPiece>{{local, source, 4}}, batches));
        stand_in.await([&](const FakeCudaState& state) {
          return state.sm_waiters == 2 || state.copies_done > before;
        });
        CHECK_EQ(stand_in.state().copies_done > before, driver.version() >= 13010);
      }
      end.store(1);
      finish(stand_in, copies);
      finish(stand_in, batches);
    });
  }
}

// --- The context's lock ------------------------------------------------------------------------

// Makes a call on another thread, which must wait for the lock until `let_go` has it released.
void expect_locked_out(StandIn& stand_in, Stream stream, const std::function<void()>& let_go) {
  std::atomic<bool> returned = false;
  std::thread caller([&] {
    const CurrentContext scope(stand_in.context());
    CHECK_OK(stand_in.driver().stream_query(stream));
    returned = true;
  });
  stand_in.await([&](const FakeCudaState& state) { return state.lock_waiters == 1 || returned; });
  CHECK(!returned);
  let_go();
  caller.join();
}

TEST(a_first_launch_holds_the_lock_until_the_device_is_idle) {
  on_each_version({}, [](StandIn& stand_in) {
    const Stream waiting = stand_in.stream(), kernels = stand_in.stream();
    const StandIn::Word go = stand_in.word();
    const Stream idle = stand_in.stream();
    stand_in.wait(waiting, go, 1);
    std::thread launcher([&] {
      const CurrentContext scope(stand_in.context());
      CHECK(stand_in.launch_kernel(kernels, "first", nullptr) == Code::kSuccess);
    });
    stand_in.await([](const FakeCudaState& state) { return state.draining_launches == 1; });
    expect_locked_out(stand_in, idle, [&] { go.store(1); });
    launcher.join();
    // The second launch of the same kernel waits for nothing.
    go.store(0);
    stand_in.wait(waiting, go, 1);
    CHECK(stand_in.launch_kernel(kernels, "first", nullptr) == Code::kSuccess);
    expect_not_ready(stand_in, waiting);
    go.store(1);
    finish(stand_in, waiting);
  });
}

TEST(an_eager_launch_waits_for_nothing) {
  on_each_version({{"CUDA_MODULE_LOADING", "EAGER"}}, [](StandIn& stand_in) {
    const Stream waiting = stand_in.stream(), kernels = stand_in.stream();
    const StandIn::Word go = stand_in.word();
    stand_in.wait(waiting, go, 1);
    CHECK(stand_in.launch_kernel(kernels, "first", nullptr) == Code::kSuccess);
    finish(stand_in, kernels);
    expect_not_ready(stand_in, waiting);
    go.store(1);
    finish(stand_in, waiting);
  });
}

TEST(a_full_queue_holds_the_lock_until_there_is_room) {
  on_each_version({{"FAKE_CUDA_QUEUE_DEPTH", "4"}}, [](StandIn& stand_in) {
    const Stream full = stand_in.stream(), other = stand_in.stream();
    const StandIn::Word go = stand_in.word(), count = stand_in.word();
    stand_in.wait(full, go, 1);
    std::thread filler([&] {
      const CurrentContext scope(stand_in.context());
      for (uint32_t i = 1; i <= 9; ++i) stand_in.signal(full, count, i);
    });
    stand_in.await([](const FakeCudaState& state) { return state.full_queues == 1; });
    expect_locked_out(stand_in, other, [&] { go.store(1); });
    filler.join();
    finish(stand_in, full);
    CHECK_EQ(count.load(), 9u);
  });
}

// --- Faults ------------------------------------------------------------------------------------

TEST(a_refused_copy_is_an_error_of_its_call_alone) {
  on_each_version({{"FAKE_CUDA_FAULTS", "copy_refused:2:999"}}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr memory = device_text(stand_in, "ab");  // the first copy
    const Stream stream = stand_in.stream();
    CHECK_EQ(driver.memcpy_async(memory, memory + 1, 1, stream).message(),
             std::string("cuMemcpyAsync: CUDA_ERROR_UNKNOWN (999)"));
    finish(stand_in, stream);
    CHECK_EQ(stand_in.read(memory, 2), std::string("ab"));
  });
}

TEST(a_failed_copy_ends_the_context) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr memory = device_text(stand_in, "ab");
    const Stream stream = stand_in.stream(), waiting = stand_in.stream();
    const StandIn::Word never = stand_in.word(), after = stand_in.word();
    stand_in.wait(waiting, never, 1);
    stand_in.inject("copy_fails", 1, static_cast<int>(Code::kIllegalAddress));
    copy(stand_in, memory, memory + 1, 1, stream);
    CHECK(driver.stream_synchronize.code(stream) == Code::kIllegalAddress);
    // Now every call says so, what else was submitted is dropped, and nothing waits any more.
    CHECK(driver.stream_synchronize.code(waiting) == Code::kIllegalAddress);
    CHECK(driver.stream_write_value32.code(stream, after.device, 1, 0) == Code::kIllegalAddress);
    DevicePtr address = 0;
    CHECK_EQ(driver.mem_alloc(&address, 1).message(),
             std::string("cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 0; });
    CHECK_OK(driver.stream_destroy(stream));
    CHECK_OK(driver.stream_destroy(waiting));
    // The other device's context lives.
    peer_text(stand_in, "x");
  });
}

TEST(what_follows_a_failed_copy_does_not_happen) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr memory = device_text(stand_in, "ab");
    const Stream stream = stand_in.stream();
    const StandIn::Word go = stand_in.word(), after = stand_in.word();
    stand_in.wait(stream, go, 1);
    stand_in.inject("copy_fails", 1, static_cast<int>(Code::kIllegalAddress));
    copy(stand_in, memory, memory + 1, 1, stream);
    stand_in.signal(stream, after, 1);
    go.store(1);
    CHECK(driver.stream_synchronize.code(stream) == Code::kIllegalAddress);
    CHECK_EQ(after.load(), 0u);
  });
}

TEST(a_slow_copy_takes_its_time) {
  on_each_version({}, [](StandIn& stand_in) {
    const DevicePtr source = device_text(stand_in, "ab");
    const DevicePtr target = peer_text(stand_in, "..");
    const Stream slow = stand_in.stream(), next = stand_in.stream();
    stand_in.inject("copy_slow", 1, 50);
    const Nanoseconds before = now_ns();
    copy(stand_in, target, source, 1, slow);
    copy(stand_in, target + 1, source + 1, 1, next);
    finish(stand_in, slow);
    // Not a margin: it cannot be over earlier.
    CHECK_GE(now_ns() - before, Nanoseconds{50'000'000});
    finish(stand_in, next);
    CHECK_EQ(stand_in.read(target, 2), std::string("ab"));
  });
}

TEST(a_hung_wait_does_not_see_its_value) {
  on_each_version({}, [](StandIn& stand_in) {
    const Stream hung = stand_in.stream(), fine = stand_in.stream();
    const StandIn::Word word = stand_in.word();
    stand_in.inject("wait_hung", 1);
    word.store(7);
    stand_in.wait(hung, word, 7);
    stand_in.wait(fine, word, 7);
    finish(stand_in, fine);
    stand_in.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
    word.store(7 + (1u << 30));  // not even the value that ends an aborted operation
    expect_not_ready(stand_in, hung);
    stand_in.release_hung();
    finish(stand_in, hung);
  });
}

TEST(a_lost_write_does_not_happen) {
  on_each_version({{"FAKE_CUDA_FAULTS", "write_lost:2"}}, [](StandIn& stand_in) {
    const Stream stream = stand_in.stream();
    const StandIn::Word word = stand_in.word();
    stand_in.signal(stream, word, 1);
    stand_in.signal(stream, word, 2);
    finish(stand_in, stream);
    CHECK_EQ(word.load(), 1u);
    stand_in.signal(stream, word, 3);
    finish(stand_in, stream);
    CHECK_EQ(word.load(), 3u);
  });
}

}  // namespace
}  // namespace freescale::cuda
