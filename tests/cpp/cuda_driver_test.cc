// The driver's functions, found and called, on the stand-in driver.

#include "cpp/device/cuda_driver.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "cpp/device/cuda_context.h"
#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::ChildProcess;
using testing::choose_stand_in;
using testing::Environment;
using testing::on_each_version;
using testing::on_stand_in;
using testing::StandIn;

void expect_contains(const Status& status, const std::string& part) {
  CHECK(!status.ok());
  // Compared only where it fails, to show both.
  if (status.message().find(part) == std::string::npos) CHECK_EQ(status.message(), part);
}

// What Driver::get() says in a process with that environment, twice.
void expect_no_driver(const Environment& environment, const std::string& reason) {
  ChildProcess([&] {
    choose_stand_in(environment);
    expect_contains(Driver::get().status(), reason);
    expect_contains(Driver::get().status(), reason);
  }).expect_success();
}

TEST(a_missing_driver_is_an_error_that_names_the_library) {
  expect_no_driver({{"FREESCALE_CUDA_DRIVER", "/nowhere/libcuda.so.1"}},
                   "no CUDA driver on this machine: /nowhere/libcuda.so.1: cannot open");
}

TEST(a_library_that_is_no_driver_is_an_error) {
  expect_no_driver({{"FREESCALE_CUDA_DRIVER", "libdl.so.2"}}, "no cuGetProcAddress_v2");
}

TEST(an_old_driver_is_an_error_that_names_both_versions) {
  expect_no_driver({{"FAKE_CUDA_VERSION", "12030"}}, "supports CUDA 12.3, but 12.4 is needed");
}

TEST(a_driver_that_lacks_calls_is_an_error_that_names_them) {
  expect_no_driver({{"FAKE_CUDA_VERSION", "11060"}},
                   "lacks cuStreamWaitValue32 of 11.7, cuStreamWriteValue32 of 11.7, ");
}

TEST(a_driver_without_devices_is_an_error) {
  expect_no_driver({{"FAKE_CUDA_DEVICES", "0"}}, "cuInit: CUDA_ERROR_NO_DEVICE (100)");
}

TEST(the_driver_is_loaded_once_by_whichever_thread_comes_first) {
  ChildProcess([] {
    choose_stand_in({});
    std::vector<const Driver*> found(8);
    std::vector<std::thread> threads;
    for (const Driver*& driver : found) {
      threads.emplace_back([&driver] {
        const Result<const Driver*> got = Driver::get();
        CHECK_OK(got);
        driver = got.value();
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(std::set<const Driver*>(found.begin(), found.end()).size(), 1u);
  }).expect_success();
}

TEST(versions_are_told_apart) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    CHECK_EQ(std::to_string(driver.version()), std::string(getenv("FAKE_CUDA_VERSION")));
    CHECK_EQ(driver.has_copy_batch(), driver.version() >= 12080);
  });
  CHECK_EQ(Driver::version_text(12040), std::string("12.4"));
  CHECK_EQ(Driver::version_text(13010), std::string("13.1"));
}

TEST(failures_name_the_call_and_the_error) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const Status status = driver.mem_free(42);
    CHECK(status.code() == StatusCode::kSystem);
    CHECK_EQ(status.message(), std::string("cuMemFree: CUDA_ERROR_INVALID_VALUE (1)"));
    stand_in.inject("copy_refused", 1, 12345);
    CHECK_EQ(driver.memcpy_async(1, 2, 3, kDefaultStream).message(),
             std::string("cuMemcpyAsync: unknown error (12345)"));
  });
}

TEST(a_fork_has_no_driver) {
  on_stand_in({}, [](StandIn& stand_in) {
    ChildProcess([&] {
      DevicePtr address = 0;
      CHECK(stand_in.driver().mem_alloc.code(&address, 1) == Code::kNotInitialized);
    }).expect_success();
  });
}

TEST(devices_have_names_engines_and_peers) {
  const Environment environment = {
      {"FAKE_CUDA_DEVICES", "3"}, {"FAKE_CUDA_ENGINES", "5"}, {"FAKE_CUDA_P2P", "0-1"}};
  on_each_version(environment, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    int count = 0, version = 0;
    CHECK_OK(driver.device_get_count(&count));
    CHECK_EQ(count, 3);
    CHECK_OK(driver.driver_get_version(&version));
    CHECK_EQ(version, driver.version());
    Device device = -1;
    CHECK_OK(driver.device_get(&device, 2));
    CHECK_EQ(device, 2);
    CHECK(driver.device_get.code(&device, 3) == Code::kInvalidDevice);

    char name[64] = {};
    CHECK_OK(driver.device_get_name(name, sizeof(name), 2));
    CHECK_NE(std::string(name), std::string());
    Uuid first{}, second{};
    CHECK_OK(driver.device_get_uuid(&first, 0));
    CHECK_OK(driver.device_get_uuid(&second, 1));
    CHECK_NE(std::memcmp(&first, &second, sizeof(Uuid)), 0);

    int engines = 0;
    CHECK_OK(driver.device_get_attribute(&engines, DeviceAttribute::kAsyncEngineCount, 0));
    CHECK_EQ(engines, 5);
    std::string peers;
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        int can = -1;
        CHECK_OK(driver.device_can_access_peer(&can, from, to));
        peers += std::to_string(can);
      }
    }
    CHECK_EQ(peers, std::string("010100000"));
  });
}

Context current(const Driver& driver) {
  Context context = nullptr;
  CHECK_OK(driver.ctx_get_current(&context));
  return context;
}

TEST(a_current_context_ends_with_its_scope) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    Result<PrimaryContext> second = PrimaryContext::retain(driver, 1);
    CHECK_OK(second);
    {
      const CurrentContext scope(second.value());
      CHECK_OK(scope.status());
      CHECK_EQ(current(driver), second.value().handle());
      Device device = -1;
      CHECK_OK(driver.ctx_get_device(&device));
      CHECK_EQ(device, 1);
      const CurrentContext inner(stand_in.context());
      CHECK_EQ(current(driver), stand_in.context().handle());
    }
    CHECK_EQ(current(driver), stand_in.context().handle());
  });
}

TEST(a_thread_without_context_stays_so) {
  on_each_version({}, [](StandIn& stand_in) {
    std::thread([&] {
      const Driver& driver = stand_in.driver();
      DevicePtr address = 0;
      CHECK(driver.mem_alloc.code(&address, 1) == Code::kInvalidContext);
      {
        const CurrentContext scope(stand_in.context());
        CHECK_OK(driver.mem_alloc(&address, 1));
      }
      CHECK_EQ(current(driver), nullptr);
      // What torch does to choose a device is kept as well.
      CHECK_OK(driver.ctx_set_current(stand_in.context().handle()));
      {
        const CurrentContext scope(stand_in.context());
      }
      CHECK_EQ(current(driver), stand_in.context().handle());
    }).join();
  });
}

TEST(the_primary_context_is_given_back) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    {
      Result<PrimaryContext> second = PrimaryContext::retain(driver, 1);
      CHECK_OK(second);
      const PrimaryContext moved = std::move(second.value());
      CHECK_EQ(moved.device(), 1);
    }
    CHECK(driver.device_primary_ctx_release.code(1) == Code::kInvalidContext);
    CHECK(!PrimaryContext::retain(driver, 7).ok());
  });
}

uint64_t attribute(const Driver& driver, PointerAttribute which, DevicePtr address) {
  uint64_t value = 0;  // on this byte order, narrower attributes fill its lower part
  CHECK_OK(driver.pointer_get_attribute(&value, which, address));
  return value;
}

TEST(device_memory_has_a_range_and_a_buffer_id) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr memory = stand_in.allocate(10'000);
    DevicePtr base = 0;
    size_t bytes = 0;
    CHECK_OK(driver.mem_get_address_range(&base, &bytes, memory + 9'999));
    CHECK_EQ(base, memory);
    CHECK_EQ(bytes, 10'000u);
    CHECK_EQ(attribute(driver, PointerAttribute::kRangeStart, memory + 5), memory);
    CHECK_EQ(attribute(driver, PointerAttribute::kRangeSize, memory + 5), 10'000u);
    CHECK_EQ(attribute(driver, PointerAttribute::kDeviceOrdinal, memory), 0u);
    CHECK_EQ(attribute(driver, PointerAttribute::kIsLegacyIpcCapable, memory), 1u);
    CHECK_EQ(attribute(driver, PointerAttribute::kAllowedHandleTypes, memory), 0u);
    CHECK_EQ(attribute(driver, PointerAttribute::kMemoryType, memory),
             static_cast<uint64_t>(MemoryType::kDevice));

    // Addresses are given again, ids are not.
    const uint64_t id = attribute(driver, PointerAttribute::kBufferId, memory);
    CHECK_OK(driver.mem_free(memory));
    CHECK(driver.mem_free.code(memory) == Code::kInvalidValue);
    CHECK_EQ(stand_in.allocate(10'000), memory);
    CHECK_NE(attribute(driver, PointerAttribute::kBufferId, memory), id);
  });
}

TEST(programs_cannot_touch_device_memory) {
  on_stand_in({}, [](StandIn& stand_in) {
    const DevicePtr memory = stand_in.allocate(1);
    ChildProcess child([&] {
      signal(SIGSEGV, SIG_DFL);  // not a sanitizer's report
      *reinterpret_cast<volatile char*>(memory) = 1;
    });
    child.expect_killed_by(SIGSEGV);
  });
}

TEST(copies_move_bytes_between_host_and_devices) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr here = stand_in.allocate(8);
    Result<PrimaryContext> second = PrimaryContext::retain(driver, 1);
    CHECK_OK(second);
    DevicePtr there = 0;
    {
      const CurrentContext scope(second.value());
      there = stand_in.allocate(8);
      CHECK_EQ(attribute(driver, PointerAttribute::kDeviceOrdinal, there), 1u);
      stand_in.write(there, "........");
    }
    stand_in.write(here, "abcdefgh");
    const Stream stream = stand_in.stream();
    CHECK_OK(driver.memcpy_async(there + 1, here + 2, 3, stream));  // peer
    CHECK_OK(driver.memcpy_async(here + 5, here, 2, stream));       // within the device
    CHECK_OK(driver.memcpy_async(here, there + 2, 1, stream));      // and back
    CHECK_OK(driver.stream_synchronize(stream));
    CHECK_EQ(stand_in.read(there, 8), std::string(".cde...."));
    CHECK_EQ(stand_in.read(here, 8), std::string("dbcdeabh"));
  });
}

TEST(copies_out_of_bounds_are_refused) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr memory = stand_in.allocate(8);
    const DevicePtr other = stand_in.allocate(8);
    CHECK(driver.memcpy_async.code(memory + 1, other, 8, nullptr) == Code::kInvalidValue);
    CHECK(driver.memcpy_async.code(memory, other + 4, 5, nullptr) == Code::kInvalidValue);
    CHECK_OK(driver.memcpy_async(memory, other, 8, nullptr));
  });
}

TEST(host_memory_is_pinned_and_registered) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr memory = stand_in.allocate(4);
    stand_in.write(memory, "abcd");

    alignas(4096) static char registered[4096];
    CHECK_OK(
        driver.mem_host_register(registered, sizeof(registered), kHostPortable | kHostDeviceMap));
    CHECK(driver.mem_host_register.code(registered + 8, 8, 0) ==
          Code::kHostMemoryAlreadyRegistered);
    DevicePtr on_device = 0;
    CHECK_OK(driver.mem_host_get_device_pointer(&on_device, registered + 100, 0));
    // Both addresses serve a copy; only the device's serves an operation on words.
    const Stream stream = stand_in.stream();
    CHECK_OK(driver.memcpy_async(on_device, memory, 2, stream));
    CHECK_OK(
        driver.memcpy_async(reinterpret_cast<DevicePtr>(registered) + 102, memory + 2, 2, stream));
    CHECK_OK(driver.stream_synchronize(stream));
    CHECK_EQ(std::string(registered + 100, 4), std::string("abcd"));
    CHECK(driver.stream_write_value32.code(stream, reinterpret_cast<DevicePtr>(registered), 1, 0) ==
          Code::kInvalidValue);
    CHECK_OK(driver.stream_write_value32(stream, on_device, 1, 0));
    CHECK_OK(driver.stream_synchronize(stream));
    CHECK_OK(driver.mem_host_unregister(registered));
    CHECK(driver.mem_host_unregister.code(registered) == Code::kHostMemoryNotRegistered);

    void* pinned = nullptr;
    CHECK_OK(driver.mem_host_alloc(&pinned, 16, kHostPortable | kHostDeviceMap));
    CHECK_OK(driver.mem_host_get_device_pointer(&on_device, pinned, 0));
    CHECK_EQ(attribute(driver, PointerAttribute::kMemoryType, on_device),
             static_cast<uint64_t>(MemoryType::kHost));
    CHECK_OK(driver.memcpy_async(on_device, memory, 4, stream));
    CHECK_OK(driver.stream_synchronize(stream));
    CHECK_EQ(std::string(static_cast<char*>(pinned), 4), std::string("abcd"));
    CHECK_OK(driver.mem_free_host(pinned));
    CHECK(driver.mem_free_host.code(pinned) == Code::kInvalidValue);
  });
}

TEST(memory_is_mapped_in_two_halves) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    AllocationProperties properties;
    properties.requested_handle_types = HandleType::kPosixFileDescriptor;
    size_t page = 0;
    CHECK_OK(driver.mem_get_allocation_granularity(&page, &properties, Granularity::kMinimum));
    AllocationHandle handle = 0;
    CHECK(driver.mem_create.code(&handle, page + 1, &properties, 0) == Code::kInvalidValue);
    CHECK_OK(driver.mem_create(&handle, page, &properties, 0));
    DevicePtr address = 0;
    CHECK_OK(driver.mem_address_reserve(&address, 2 * page, 0, 0, 0));
    CHECK(driver.mem_map.code(address + page, page, page, handle, 0) == Code::kInvalidValue);
    CHECK_OK(driver.mem_map(address + page, page, 0, handle, 0));
    CHECK(driver.mem_map.code(address + page, page, 0, handle, 0) == Code::kInvalidValue);

    // Without access no copy gets there.
    const DevicePtr plain = stand_in.allocate(4);
    stand_in.write(plain, "abcd");
    CHECK(driver.memcpy_async.code(address + page, plain, 4, nullptr) == Code::kInvalidValue);
    const AccessDescription access;
    CHECK_OK(driver.mem_set_access(address + page, page, &access, 1));
    CHECK_OK(driver.memcpy_async(address + page, plain, 4, nullptr));
    CHECK_OK(driver.stream_synchronize(nullptr));
    CHECK_EQ(stand_in.read(address + page, 4), std::string("abcd"));

    CHECK_EQ(attribute(driver, PointerAttribute::kIsLegacyIpcCapable, address + page), 0u);
    CHECK_EQ(attribute(driver, PointerAttribute::kAllowedHandleTypes, address + page),
             static_cast<uint64_t>(HandleType::kPosixFileDescriptor));
    AllocationHandle again = 0;
    CHECK_OK(driver.mem_retain_allocation_handle(&again, reinterpret_cast<void*>(address + page)));
    CHECK_EQ(again, handle);

    // The range of an address is the mapping for the one, and the reservation for the other.
    DevicePtr base = 0;
    size_t bytes = 0;
    CHECK_OK(driver.mem_get_address_range(&base, &bytes, address + page + 1));
    CHECK_EQ(base, address + page);
    CHECK_EQ(bytes, page);
    CHECK(driver.mem_get_address_range.code(&base, &bytes, address) == Code::kNotFound);
    for (const DevicePtr within : {address, address + page}) {
      CHECK_EQ(attribute(driver, PointerAttribute::kRangeStart, within), address);
      CHECK_EQ(attribute(driver, PointerAttribute::kRangeSize, within), 2 * page);
      CHECK_EQ(attribute(driver, PointerAttribute::kMapped, within), within != address);
    }

    // The mapping keeps the memory when the handle has no owner any more.
    CHECK_OK(driver.mem_release(handle));
    CHECK_OK(driver.mem_release(handle));
    CHECK(driver.mem_release.code(handle) == Code::kInvalidValue);
    CHECK_EQ(stand_in.read(address + page, 4), std::string("abcd"));
    CHECK(driver.mem_address_free.code(address, 2 * page) == Code::kInvalidValue);
    CHECK_OK(driver.mem_unmap(address + page, page));
    CHECK_OK(driver.mem_address_free(address, 2 * page));
  });
}

TEST(copies_go_over_mappings_side_by_side) {
  on_each_version({}, [](StandIn& stand_in) {
    constexpr size_t kPage = testing::kMappingPage;
    const DevicePtr memory = stand_in.reserve(4 * kPage);
    for (const size_t page : {0, 1, 3}) {
      stand_in.map_new(memory + page * kPage, kPage, HandleType::kNone);
    }
    // From a mapping to another one, with a border elsewhere, and to and from the host.
    stand_in.write(memory + kPage - 5, "abcdefgh");
    CHECK_EQ(stand_in.read(memory + kPage - 5, 8), std::string("abcdefgh"));
    const DevicePtr other = stand_in.reserve(2 * kPage);
    stand_in.map_new(other, kPage, HandleType::kNone);
    stand_in.map_new(other + kPage, kPage, HandleType::kNone);
    const Driver& driver = stand_in.driver();
    CHECK_OK(driver.memcpy_async(other + kPage - 2, memory + kPage - 5, 8, nullptr));
    CHECK_OK(driver.stream_synchronize(nullptr));
    CHECK_EQ(stand_in.read(other + kPage - 2, 8), std::string("abcdefgh"));
    // Into a hole.
    CHECK(driver.memcpy_async.code(memory + 2 * kPage - 4, other, 8, nullptr) ==
          Code::kInvalidValue);
    CHECK(driver.memcpy_async.code(other, memory + 2 * kPage - 4, 8, nullptr) ==
          Code::kInvalidValue);
  });
}

TEST(batches_of_copies_have_one_face) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const DevicePtr from = stand_in.allocate(8);
    const DevicePtr to = stand_in.allocate(8);
    stand_in.write(from, "abcdefgh");
    stand_in.write(to, "........");
    const Stream stream = stand_in.stream();
    std::vector<CopyPiece> pieces = {{to + 6, from, 2}, {to, from + 5, 3}};
    const Status status = driver.copy_batch(pieces, stream);
    if (driver.version() < 12080) {
      CHECK_EQ(status.message(),
               std::string("cuMemcpyBatchAsync needs a CUDA driver of 12.8, this one is 12.4"));
      return;
    }
    CHECK_OK(status);
    CHECK_OK(driver.stream_synchronize(stream));
    CHECK_EQ(stand_in.read(to, 8), std::string("fgh...ab"));
    CHECK_OK(driver.copy_batch({}, stream));

    pieces[1].bytes = 99;
    CHECK_EQ(driver.copy_batch(pieces, stream).message(),
             std::string(driver.version() < 13000
                             ? "cuMemcpyBatchAsync of 2, copy 1: CUDA_ERROR_INVALID_VALUE (1)"
                             : "cuMemcpyBatchAsync of 2: CUDA_ERROR_INVALID_VALUE (1)"));
    pieces[1].bytes = 3;
    expect_contains(driver.copy_batch(pieces, kDefaultStream), "CUDA_ERROR_INVALID_VALUE");
    stand_in.set_capturing(stream, true);
    expect_contains(driver.copy_batch(pieces, stream), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
  });
}

TEST(copies_of_a_batch_have_no_order) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    if (!driver.has_copy_batch()) return;
    const DevicePtr memory = stand_in.allocate(3);
    stand_in.write(memory, "abc");
    const Stream stream = stand_in.stream();
    // Who thinks of a chain from first to last gets "aaa".
    CHECK_OK(driver.copy_batch(
        std::vector<CopyPiece>{{memory + 1, memory, 1}, {memory + 2, memory + 1, 1}}, stream));
    CHECK_OK(driver.stream_synchronize(stream));
    CHECK_EQ(stand_in.read(memory, 3), std::string("aab"));
  });
}

TEST(streams_have_priorities_and_end) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    int least = 0, greatest = 0;
    CHECK_OK(driver.ctx_get_stream_priority_range(&least, &greatest));
    CHECK_LT(greatest, least);
    for (int asked : {least, greatest, greatest - 3}) {
      const Stream stream = stand_in.stream(asked);
      int priority = 99;
      CHECK_OK(driver.stream_get_priority(stream, &priority));
      CHECK_EQ(priority, std::max(asked, greatest));
      CHECK_OK(driver.stream_query(stream));
      CHECK_OK(driver.stream_destroy(stream));
      CHECK(driver.stream_query.code(stream) == Code::kInvalidHandle);
    }
    CaptureStatus status = CaptureStatus::kInvalidated;
    const Stream stream = stand_in.stream();
    CHECK_OK(driver.stream_is_capturing(stream, &status));
    CHECK(status == CaptureStatus::kNone);
    stand_in.set_capturing(stream, true);
    CHECK_OK(driver.stream_is_capturing(stream, &status));
    CHECK(status == CaptureStatus::kActive);
  });
}

TEST(a_destroyed_stream_ends_its_work_and_its_thread) {
  on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    const StandIn::Word word = stand_in.word();
    const auto use_and_destroy = [&] {
      const Stream stream = stand_in.stream();
      stand_in.signal(stream, word, 1);
      CHECK_OK(driver.stream_synchronize(stream));
      CHECK_OK(driver.stream_destroy(stream));
    };
    use_and_destroy();  // a sanitizer starts a thread with the first
    const testing::Footprint before = testing::Footprint::now();
    for (int i = 0; i < 10; ++i) use_and_destroy();
    // The system lists a thread for a moment after it was joined.
    while (testing::Footprint::now().threads > before.threads) std::this_thread::yield();
    CHECK_EQ(testing::Footprint::now().descriptors, before.descriptors);

    const Stream busy = stand_in.stream();
    const StandIn::Word go = stand_in.word(), done = stand_in.word();
    stand_in.wait(busy, go, 1);
    stand_in.signal(busy, done, 7);
    CHECK_OK(driver.stream_destroy(busy));
    go.store(1);
    while (done.load() != 7) std::this_thread::yield();
  });
}

TEST(a_stream_of_another_context_is_refused) {
  on_each_version({}, [](StandIn& stand_in) {
    const Stream stream = stand_in.stream();
    Result<PrimaryContext> second = PrimaryContext::retain(stand_in.driver(), 1);
    CHECK_OK(second);
    const CurrentContext scope(second.value());
    CHECK(stand_in.driver().stream_query.code(stream) == Code::kInvalidHandle);
  });
}

}  // namespace
}  // namespace freescale::cuda
