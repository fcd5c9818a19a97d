// A device and its calls by themselves, on the stand-in driver: no engine, and peers that say
// nothing.

#include "cpp/transport/cuda_ipc/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpp/transport/cuda_ipc/aside_messages.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_link.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::FakeLink;
using testing::on_each_version;
using testing::on_stand_in;
using testing::StandIn;

std::unique_ptr<CudaDevice> open_device(SubmissionMode mode = SubmissionMode::kAhead) {
  CudaDeviceOptions options;
  options.submission = mode;
  auto device = CudaDevice::open(0, options);
  CHECK_OK(device);
  return std::move(device.value());
}

CallMemory::Message message(std::shared_ptr<Link> peer, DevicePtr memory, size_t bytes) {
  return {1, std::move(peer), {Segment{reinterpret_cast<std::byte*>(memory), bytes}}};
}

std::shared_ptr<CudaCall> begin(CudaDevice& device, Stream stream, CallMemory memory) {
  auto call = device.begin(stream, std::move(memory));
  CHECK_OK(call);
  return call.value();
}

// ---- How copies are submitted -------------------------------------------------------------------

TEST(nothing_is_submitted_ahead_to_engines_with_a_head_of_line) {
  on_stand_in({{"FAKE_CUDA_ENGINE_ORDER", "head_of_line"}},
              [](StandIn&) { CHECK(!open_device(SubmissionMode::kAutomatic)->submits_ahead()); });
}

TEST(nothing_is_submitted_ahead_where_the_order_of_engines_is_not_known) {
  on_stand_in({}, [](StandIn& on) {
    const StandIn::Word end = on.word();
    CHECK(on.launch_kernel(on.stream(), "spin", end.host) == Code::kSuccess);
    on.await([](const FakeCudaState& state) { return state.running_kernels == 1; });
    std::thread ending([&] {
      on.await([](const FakeCudaState& state) { return state.sm_waiters > 0; });
      // The probe has begun, and is over time when it goes on.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      end.store(1);
    });
    CHECK(!open_device(SubmissionMode::kAutomatic)->submits_ahead());
    ending.join();
  });
}

// ---- Calls --------------------------------------------------------------------------------------

TEST(a_stream_waits_for_more_messages_than_the_driver_takes_at_once) {
  on_each_version({}, [](StandIn& on) {
    const auto device = open_device();
    CallMemory memory;
    for (size_t i = 0; i <= kMemoryOperationLimit; ++i) {
      memory.sends.push_back(message(std::make_shared<FakeLink>(), on.allocate(1), 1));
    }
    const Stream stream = on.stream();
    const auto call = begin(*device, stream, std::move(memory));
    CHECK_OK(call->wait_on(stream));
    on.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
    call->give_up();
    CHECK_OK(on.driver().stream_synchronize(stream));
  });
}

std::vector<std::byte> grant_of(const DeviceGrant& head, const std::vector<ExportedPiece>& pieces) {
  const auto first = std::as_bytes(std::span(&head, 1)), rest = std::as_bytes(std::span(pieces));
  std::vector<std::byte> bytes(first.size() + rest.size());
  std::copy(first.begin(), first.end(), bytes.begin());
  std::copy(rest.begin(), rest.end(), bytes.begin() + first.size());
  return bytes;
}

TEST(grants_that_make_no_sense_are_refused) {
  on_stand_in({}, [](StandIn& on) {
    const auto device = open_device();
    const auto peer = std::make_shared<FakeLink>();
    CallMemory memory;
    memory.sends.push_back(message(peer, on.allocate(100), 100));
    const auto call = begin(*device, on.stream(), std::move(memory));
    const auto refused = [&](const std::vector<std::byte>& grant, const std::string& why) {
      CHECK_EQ(call->send(*peer, 2, grant).status().message(), "its grant makes no sense: " + why);
    };
    constexpr uint32_t kOutside = FlagSegment::kWords;
    refused(std::vector<std::byte>(sizeof(DeviceGrant) - 1), "too short");
    refused(grant_of({0, 1, 1, 1, 2}, {{1, 0, 100}}), "another number of pieces than it says");
    std::vector<std::byte> ragged = grant_of({0, 1, 1, 1, 1}, {{1, 0, 100}});
    ragged.push_back({});
    refused(ragged, "another number of pieces than it says");
    refused(grant_of({kOutside, 1, 1, 1, 1}, {{1, 0, 100}}), "a word outside of the segment");
    refused(grant_of({0, 1, kOutside, 1, 1}, {{1, 0, 100}}), "a word outside of the segment");
    refused(grant_of({0, 1, 1, 1, 1}, {{1, 0, 99}}), "fewer bytes than it awaits");
    refused(grant_of({0, 1, 1, 1, 2}, {{1, 0, 60}, {1, 60, 41}}), "more bytes than it awaits");
    // Together they come to 100 again.
    refused(grant_of({0, 1, 1, 1, 3}, {{1, 0, 60}, {1, 0, ~uint64_t{0}}, {1, 0, 41}}),
            "more bytes than it awaits");
  });
}

// The sender may be gone by then.
TEST(a_receiver_that_has_everything_needs_nobody) {
  on_stand_in({}, [](StandIn& on) {
    const auto device = open_device();
    const auto peer = std::make_shared<FakeLink>();
    peer->set_aside_sender([](auto, auto) { return Status(); });
    CallMemory memory;
    memory.receives.push_back(message(peer, on.allocate(100), 100));
    const auto call = begin(*device, on.stream(), std::move(memory));
    std::vector<std::byte> grant;
    const auto transfer = call->receive(*peer, &grant);
    CHECK_OK(transfer);
    CHECK(transfer.value()->needs_peer());
    // As the sender's stream does.
    DeviceGrant head;
    std::memcpy(&head, grant.data(), sizeof(head));
    auto words = PeerFlags::open(on.context(), UniqueFd(dup(device->flags().fd())));
    CHECK_OK(words);
    (*words.value())[head.arrived_index].host->store(head.arrived_value);
    CHECK(!transfer.value()->needs_peer());
  });
}

// ---- Messages through the host ------------------------------------------------------------------

template <typename T>
AsideMessage aside(const T& content, UniqueFd fd) {
  const auto bytes = std::as_bytes(std::span(&content, 1));
  AsideMessage message{{bytes.begin(), bytes.end()}, {}};
  message.fds.push_back(std::move(fd));
  return message;
}

// A descriptor of memory that lies on the second device.
UniqueFd distant_memory(const StandIn& on, size_t bytes) {
  AllocationProperties properties;
  properties.requested_handle_types = HandleType::kPosixFileDescriptor;
  properties.location.id = 1;
  AllocationHandle handle = 0;
  CHECK_OK(on.driver().mem_create(&handle, bytes, &properties, 0));
  int fd = -1;
  CHECK_OK(
      on.driver().mem_export_to_shareable_handle(&fd, handle, HandleType::kPosixFileDescriptor, 0));
  CHECK_OK(on.driver().mem_release(handle));
  return UniqueFd(fd);
}

// A peer on a device that is out of reach, who has said so; its words are this process's own.
std::shared_ptr<FakeLink> distant_peer(const StandIn& on, CudaDevice& device) {
  constexpr size_t kPage = 2 << 20;  // what mappings are multiples of
  auto peer = std::make_shared<FakeLink>();
  peer->set_aside_sender([](auto, auto) { return Status(); });
  AsideHello hello;
  CHECK_OK(on.driver().device_get_uuid(&hello.device, 1));
  hello.access_target = {1, 0, kPage};
  hello.emptied.fill({FlagSegment::kWords - 1, 0});
  peer->deliver_aside(aside(hello, UniqueFd(dup(device.flags().fd()))));
  AsideNotice notice;
  notice.notice = {1, AllocationNotice::Kind::kDescriptor, kPage, {}};
  peer->deliver_aside(aside(notice, distant_memory(on, kPage)));
  return peer;
}

// The peer takes messages out of the ring in the order in which it hears of them.
TEST(messages_are_told_of_in_the_order_of_the_ring) {
  on_stand_in({{"FAKE_CUDA_P2P", "none"}}, [](StandIn& on) {
    const auto device = open_device();
    const auto peer = distant_peer(on, *device);
    const Stream stream = on.stream();
    std::vector<std::shared_ptr<CudaCall>> calls;
    std::vector<std::shared_ptr<DeviceTransfer>> sends;
    for (int i = 0; i < 2; ++i) {
      CallMemory memory;
      memory.sends.push_back(message(peer, on.allocate(100), 100));
      calls.push_back(begin(*device, stream, std::move(memory)));
      constexpr uint32_t kUnused = FlagSegment::kWords - 2;
      auto sent = calls[i]->send(*peer, 2, grant_of({kUnused, 0, kUnused, 1, 1}, {{1, 0, 100}}));
      CHECK_OK(sent);
      sends.push_back(std::move(sent.value()));
    }
    for (const auto& send : sends) {
      while (!send->staged()) std::this_thread::yield();
    }
    std::vector<std::byte> news;
    CHECK(!sends[1]->take_news(&news));
    CHECK(sends[0]->take_news(&news));
    CHECK(sends[1]->take_news(&news));
  });
}

// ---- Ends ---------------------------------------------------------------------------------------

// What moves in them late finds its stream, its words and its memory as they were.
TEST(copies_that_do_not_end_keep_their_streams) {
  on_stand_in({}, [](StandIn& on) {
    auto device = open_device();
    const DevicePtr from = on.allocate(9), to = on.allocate(9);
    on.write(from, "the bytes");
    CallMemory memory;
    memory.sends.push_back(message(nullptr, from, 9));
    memory.receives.push_back(message(nullptr, to, 9));
    on.inject("wait_hung", 1);
    auto call = begin(*device, on.stream(), std::move(memory));
    auto copy = call->copy(2);
    CHECK_OK(copy);
    on.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
    const FakeCudaState before = on.state();
    copy.value().reset();
    call.reset();
    device.reset();
    CHECK_EQ(on.state().streams, before.streams);
    CHECK_EQ(on.state().copies_done, before.copies_done);
    on.release_hung();
    on.await([&](const FakeCudaState& state) { return state.copies_done > before.copies_done; });
    CHECK_EQ(on.read(to, 9), std::string("the bytes"));
  });
}

}  // namespace
}  // namespace freescale::cuda
