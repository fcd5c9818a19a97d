// Device memory and words that several processes share, on the stand-in driver.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "cpp/device/cuda_context.h"
#include "cpp/device/cuda_driver.h"
#include "tests/cpp/check.h"
#include "tests/cpp/stand_in_driver.h"
#include "tests/cpp/stand_in_pair.h"

namespace freescale::cuda {
namespace {

using testing::Channel;
using testing::Environment;
using testing::on_two_processes;
using testing::on_two_processes_each_version;
using testing::StandIn;

constexpr size_t kBytes = 6000;  // no whole number of pages

IpcMemoryHandle export_memory(StandIn& stand_in, DevicePtr address) {
  IpcMemoryHandle handle;
  CHECK_OK(stand_in.driver().ipc_get_mem_handle(&handle, address));
  return handle;
}

DevicePtr open_memory(StandIn& stand_in, const IpcMemoryHandle& handle) {
  DevicePtr address = 0;
  CHECK_OK(stand_in.driver().ipc_open_mem_handle(&address, handle, kIpcLazyEnablePeerAccess));
  return address;
}

Code code_of_open(StandIn& stand_in, const IpcMemoryHandle& handle) {
  DevicePtr address = 0;
  return stand_in.driver().ipc_open_mem_handle.code(&address, handle, kIpcLazyEnablePeerAccess);
}

TEST(memory_is_shared_by_handle) {
  on_two_processes_each_version(
      [](StandIn& stand_in, const Channel& peer) {
        const DevicePtr memory = stand_in.allocate(kBytes);
        stand_in.write(memory, "from the exporter");
        // Any address of the allocation names it as a whole.
        peer.send(export_memory(stand_in, memory + 4321));
        CHECK_EQ(peer.receive<char>(), 'w');
        CHECK_EQ(stand_in.read(memory + kBytes - 8, 8), std::string("importer"));
        CHECK_EQ(stand_in.read(memory, 4), std::string("from"));
      },
      [](StandIn& stand_in, const Channel& peer) {
        const DevicePtr memory = open_memory(stand_in, peer.receive<IpcMemoryHandle>());
        CHECK_EQ(stand_in.read(memory, 17), std::string("from the exporter"));
        stand_in.write(memory + kBytes - 8, "importer");
        // It ends where the exporter's does.
        const DevicePtr mine = stand_in.allocate(16);
        CHECK(stand_in.driver().memcpy_async.code(memory + kBytes - 8, mine, 9, nullptr) ==
              Code::kInvalidValue);
        peer.send('w');
      });
}

TEST(memory_opened_twice_is_closed_twice) {
  on_two_processes_each_version(
      [](StandIn& stand_in, const Channel& peer) {
        peer.send(export_memory(stand_in, stand_in.allocate(kBytes)));
        peer.receive<char>();
      },
      [](StandIn& stand_in, const Channel& peer) {
        const auto handle = peer.receive<IpcMemoryHandle>();
        const DevicePtr memory = open_memory(stand_in, handle);
        CHECK_EQ(open_memory(stand_in, handle), memory);
        const Driver& driver = stand_in.driver();
        CHECK_OK(driver.ipc_close_mem_handle(memory));
        stand_in.write(memory, "still there");
        CHECK_OK(driver.ipc_close_mem_handle(memory));
        CHECK(driver.ipc_close_mem_handle.code(memory) == Code::kInvalidValue);
        DevicePtr base = 0;
        size_t bytes = 0;
        CHECK(driver.mem_get_address_range.code(&base, &bytes, memory) == Code::kNotFound);
        peer.send('x');
      });
}

TEST(own_and_stale_handles_are_refused) {
  on_two_processes_each_version(
      [](StandIn& stand_in, const Channel& peer) {
        const DevicePtr memory = stand_in.allocate(kBytes);
        const IpcMemoryHandle handle = export_memory(stand_in, memory);
        CHECK(code_of_open(stand_in, handle) == Code::kInvalidContext);
        CHECK_OK(stand_in.driver().mem_free(memory));
        stand_in.allocate(kBytes);  // may get the same descriptor
        peer.send(handle);
        peer.receive<char>();
      },
      [](StandIn& stand_in, const Channel& peer) {
        CHECK(code_of_open(stand_in, peer.receive<IpcMemoryHandle>()) == Code::kInvalidHandle);
        CHECK(code_of_open(stand_in, IpcMemoryHandle{}) == Code::kInvalidHandle);
        peer.send('x');
      });
}

TEST(a_denied_handle_is_an_error_once) {
  on_two_processes_each_version(
      [](StandIn& stand_in, const Channel& peer) {
        peer.send(export_memory(stand_in, stand_in.allocate(kBytes)));
        peer.receive<char>();
      },
      [](StandIn& stand_in, const Channel& peer) {
        const auto handle = peer.receive<IpcMemoryHandle>();
        CHECK(code_of_open(stand_in, handle) == Code::kOperatingSystem);
        open_memory(stand_in, handle);
        peer.send('x');
      },
      {{"FAKE_CUDA_FAULTS", "ipc_denied:1"}});
}

TEST(memory_of_a_device_without_peer_access_is_refused) {
  on_two_processes_each_version(
      [](StandIn& stand_in, const Channel& peer) {
        Result<PrimaryContext> second = PrimaryContext::retain(stand_in.driver(), 1);
        CHECK_OK(second);
        const CurrentContext scope(second.value());
        peer.send(export_memory(stand_in, stand_in.allocate(kBytes)));
        peer.receive<char>();
      },
      [](StandIn& stand_in, const Channel& peer) {
        const auto handle = peer.receive<IpcMemoryHandle>();
        CHECK(code_of_open(stand_in, handle) == Code::kPeerAccessUnsupported);
        // On its own device it can be opened.
        Result<PrimaryContext> second = PrimaryContext::retain(stand_in.driver(), 1);
        CHECK_OK(second);
        const CurrentContext scope(second.value());
        open_memory(stand_in, handle);
        peer.send('x');
      },
      {{"FAKE_CUDA_P2P", "none"}});
}

// A mapping of whole memory that can be used.
DevicePtr map_whole(const Driver& driver, AllocationHandle handle, size_t bytes) {
  DevicePtr address = 0;
  CHECK_OK(driver.mem_address_reserve(&address, bytes, 0, 0, 0));
  CHECK_OK(driver.mem_map(address, bytes, 0, handle, 0));
  const AccessDescription access;
  CHECK_OK(driver.mem_set_access(address, bytes, &access, 1));
  return address;
}

TEST(mapped_memory_is_shared_by_descriptor) {
  on_two_processes_each_version(
      [](StandIn& stand_in, const Channel& peer) {
        const Driver& driver = stand_in.driver();
        AllocationProperties properties;
        properties.requested_handle_types = HandleType::kPosixFileDescriptor;
        size_t bytes = 0;
        CHECK_OK(driver.mem_get_allocation_granularity(&bytes, &properties, Granularity::kMinimum));
        AllocationHandle handle = 0;
        CHECK_OK(driver.mem_create(&handle, bytes, &properties, 0));
        const DevicePtr memory = map_whole(driver, handle, bytes);
        IpcMemoryHandle legacy;
        CHECK(driver.ipc_get_mem_handle.code(&legacy, memory) == Code::kInvalidValue);

        stand_in.write(memory, "expandable");
        int fd = -1;
        CHECK_OK(driver.mem_export_to_shareable_handle(&fd, handle,
                                                       HandleType::kPosixFileDescriptor, 0));
        peer.send(bytes, std::span(&fd, 1));
        close(fd);
        CHECK_EQ(peer.receive<char>(), 'w');
        CHECK_EQ(stand_in.read(memory + bytes - 4, 4), std::string("back"));
      },
      [](StandIn& stand_in, const Channel& peer) {
        const Driver& driver = stand_in.driver();
        UniqueFd fd;
        const auto bytes = peer.receive<size_t>(&fd);
        void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
        AllocationHandle handle = 0;
        CHECK(driver.mem_import_from_shareable_handle.code(
                  &handle, shareable, HandleType::kPosixFileDescriptor) == Code::kOperatingSystem);
        CHECK_OK(driver.mem_import_from_shareable_handle(&handle, shareable,
                                                         HandleType::kPosixFileDescriptor));
        fd.reset();  // the driver has its own
        const DevicePtr memory = map_whole(driver, handle, bytes);
        CHECK_EQ(stand_in.read(memory, 10), std::string("expandable"));
        stand_in.write(memory + bytes - 4, "back");
        // Flags do not belong into a peer's memory.
        CHECK(driver.stream_write_value32.code(stand_in.stream(), memory, 1, kWriteDefault) ==
              Code::kNotSupported);
        peer.send('w');
      },
      {{"FAKE_CUDA_FAULTS", "ipc_denied:1"}});
}

// New memory, and its handle.
FabricHandle export_fabric(StandIn& stand_in, const std::string& content, HandleType types) {
  const Driver& driver = stand_in.driver();
  const DevicePtr memory = stand_in.reserve(testing::kMappingPage);
  stand_in.map_new(memory, testing::kMappingPage, types);
  stand_in.write(memory, content);
  AllocationHandle handle = 0;
  CHECK_OK(driver.mem_retain_allocation_handle(&handle, reinterpret_cast<void*>(memory)));
  FabricHandle fabric = {};
  CHECK_OK(driver.mem_export_to_shareable_handle(&fabric, handle, HandleType::kFabric, 0));
  int fd = -1;
  const Code code =
      driver.mem_export_to_shareable_handle.code(&fd, handle, HandleType::kPosixFileDescriptor, 0);
  CHECK(code == (types == HandleType::kFabric ? Code::kInvalidValue : Code::kSuccess));
  CHECK(driver.mem_export_to_shareable_handle.code(&fabric, handle, static_cast<HandleType>(9),
                                                   0) == Code::kInvalidValue);
  CHECK_OK(driver.mem_release(handle));
  return fabric;
}

TEST(mapped_memory_is_shared_by_fabric_handle) {
  on_two_processes_each_version(
      [](StandIn& stand_in, const Channel& peer) {
        int offered = 0;
        CHECK_OK(stand_in.driver().device_get_attribute(
            &offered, DeviceAttribute::kFabricHandleSupported, 0));
        CHECK_EQ(offered, 1);
        peer.send(export_fabric(stand_in, "fabric", HandleType::kFabric));
        peer.send(export_fabric(stand_in, "either", static_cast<HandleType>(9)));
        peer.receive<char>();
      },
      [](StandIn& stand_in, const Channel& peer) {
        const Driver& driver = stand_in.driver();
        const auto code_of_import = [&](FabricHandle fabric, AllocationHandle* handle) {
          return driver.mem_import_from_shareable_handle.code(handle, &fabric, HandleType::kFabric);
        };
        const auto fabric = peer.receive<FabricHandle>();
        AllocationHandle handle = 0;
        CHECK(code_of_import(fabric, &handle) == Code::kNotPermitted);  // the fault
        CHECK(code_of_import({}, &handle) == Code::kInvalidHandle);
        for (const auto& [shared, content] :
             {std::pair(fabric, "fabric"), std::pair(peer.receive<FabricHandle>(), "either")}) {
          CHECK(code_of_import(shared, &handle) == Code::kSuccess);
          const DevicePtr memory = map_whole(driver, handle, testing::kMappingPage);
          CHECK_EQ(stand_in.read(memory, 6), std::string(content));
        }
        peer.send('x');
      },
      {{"FAKE_CUDA_FABRIC", "yes"}, {"FAKE_CUDA_FAULTS", "fabric_denied:1"}});
}

TEST(memory_that_was_not_made_for_it_is_not_exported) {
  testing::on_each_version({}, [](StandIn& stand_in) {
    const Driver& driver = stand_in.driver();
    AllocationProperties properties;
    size_t bytes = 0;
    CHECK_OK(driver.mem_get_allocation_granularity(&bytes, &properties, Granularity::kMinimum));
    AllocationHandle handle = 0;
    CHECK_OK(driver.mem_create(&handle, bytes, &properties, 0));
    int fd = -1;
    CHECK(driver.mem_export_to_shareable_handle.code(&fd, handle, HandleType::kPosixFileDescriptor,
                                                     0) == Code::kInvalidValue);
    for (const int types : {8, 9}) {  // fabric handles, and descriptors as well
      properties.requested_handle_types = static_cast<HandleType>(types);
      CHECK(driver.mem_create.code(&handle, bytes, &properties, 0) == Code::kNotSupported);
    }
    const UniqueFd other(memfd_create("no device memory", MFD_CLOEXEC));
    CHECK(driver.mem_import_from_shareable_handle.code(
              &handle, reinterpret_cast<void*>(static_cast<intptr_t>(other.get())),
              HandleType::kPosixFileDescriptor) == Code::kInvalidValue);
  });
}

// The rule for all flags: pinned host memory that every process registers for itself.
TEST(a_stream_waits_for_the_bytes_and_the_flag_of_another_process) {
  struct Shared {
    uint32_t flag;
  };
  void* mapped =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  auto* const shared = static_cast<Shared*>(mapped);
  const auto flag_address = [shared](StandIn& stand_in) {
    CHECK_OK(stand_in.driver().mem_host_register(shared, sizeof(Shared),
                                                 kHostPortable | kHostDeviceMap));
    DevicePtr address = 0;
    CHECK_OK(stand_in.driver().mem_host_get_device_pointer(&address, &shared->flag, 0));
    return address;
  };
  constexpr uint32_t kRounds = 200;
  constexpr uint32_t kFirst = 0xffffffffu - kRounds / 2;  // the words wrap on the way
  shared->flag = kFirst;
  on_two_processes(
      {},
      [&](StandIn& stand_in, const Channel& peer) {
        const Driver& driver = stand_in.driver();
        const DevicePtr flag = flag_address(stand_in);
        const DevicePtr target = open_memory(stand_in, peer.receive<IpcMemoryHandle>());
        const DevicePtr values = stand_in.allocate(kRounds * sizeof(uint32_t));
        std::string numbers(kRounds * sizeof(uint32_t), '\0');
        for (uint32_t i = 0; i < kRounds; ++i) std::memcpy(&numbers[i * 4], &i, 4);
        stand_in.write(values, numbers);
        const Stream stream = stand_in.stream();
        for (uint32_t i = 0; i < kRounds; ++i) {
          CHECK_OK(driver.memcpy_async(target + i * 4, values + i * 4, 4, stream));
          CHECK_OK(driver.stream_write_value32(stream, flag, kFirst + 1 + i, kWriteDefault));
        }
        peer.receive<char>();
      },
      [&](StandIn& stand_in, const Channel& peer) {
        const Driver& driver = stand_in.driver();
        const DevicePtr flag = flag_address(stand_in);
        const DevicePtr target = stand_in.allocate(kRounds * sizeof(uint32_t));
        stand_in.write(target, std::string(kRounds * sizeof(uint32_t), '\xff'));
        const DevicePtr seen = stand_in.allocate(kRounds * sizeof(uint32_t));
        const Stream stream = stand_in.stream();
        for (uint32_t i = 0; i < kRounds; ++i) {
          CHECK_OK(driver.stream_wait_value32(stream, flag, kFirst + 1 + i, kWaitGreaterOrEqual));
          CHECK_OK(driver.memcpy_async(seen + i * 4, target + i * 4, 4, stream));
        }
        peer.send(export_memory(stand_in, target));
        CHECK_OK(driver.stream_synchronize(stream));
        const std::string numbers = stand_in.read(seen, kRounds * sizeof(uint32_t));
        for (uint32_t i = 0; i < kRounds; ++i) {
          uint32_t value = 0;
          std::memcpy(&value, &numbers[i * 4], 4);
          CHECK_EQ(value, i);
        }
        peer.send('x');
      });
  munmap(mapped, sizeof(Shared));
}

}  // namespace
}  // namespace freescale::cuda
