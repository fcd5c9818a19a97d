#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "cpp/base/unique_fd.h"
#include "cpp/device/cuda_types.h"

namespace fake_cuda {

using freescale::UniqueFd;
using freescale::cuda::AllocationHandle;
using freescale::cuda::Code;
using freescale::cuda::DevicePtr;
using freescale::cuda::HandleType;

// Device memory: a memfd, so that other processes can map it, with a page at its end that says what
// it is. Goes with the last region that maps it.
struct Physical {
  UniqueFd fd;
  size_t bytes = 0;
  int device = 0;
  bool foreign = false;       // of another process
  uint64_t handle_types = 0;  // bits of HandleType

  // Null if there is no memory.
  static std::shared_ptr<Physical> create(size_t bytes, int device);
  // The memory of another process; null if that is not what the descriptor leads to.
  static std::shared_ptr<Physical> adopt(UniqueFd fd);
};

// Addresses that a program may give to the driver. Device memory lies at addresses that no program
// can read or write, as with a real device; the driver itself uses a second mapping, `bytes_at`.
struct Region {
  enum class Kind { kAllocated, kPooled, kImported, kMapped, kHost };

  ~Region();

  Kind kind = Kind::kAllocated;
  DevicePtr start = 0;
  size_t bytes = 0;
  uint64_t buffer_id = 0;
  std::shared_ptr<Physical> physical;  // null for host memory
  std::byte* bytes_at = nullptr;       // what lies at `start`
  std::set<int> access;                // devices that may use it (kMapped)
  int opens = 0;                       // how often it was opened (kImported)
  bool owns_mapping = false;           // bytes_at is unmapped with the region
  size_t reserved = 0;                 // addresses given back with the region

  bool usable_by(int device) const;
};

// Addresses of cuMemAddressReserve.
struct Reservation {
  DevicePtr start = 0;
  size_t bytes = 0;
  uint64_t last_buffer_id = 0;  // of what was mapped there, and is no more
};

// A resolved piece of memory. Keeps its region for as long as somebody reads or writes there.
struct Place {
  std::shared_ptr<Region> region;  // null: host memory the driver does not know ("pageable")
  std::byte* data = nullptr;

  bool is_host() const { return region == nullptr || region->kind == Region::Kind::kHost; }
  // Of the memory that is no host memory.
  int device() const { return region->physical->device; }
};

// Every region of the process. Thread-safe.
class AddressSpace {
 public:
  static AddressSpace& get();

  // Gives the addresses of what was freed last with as many pages, if there was any.
  Code allocate(DevicePtr* address, size_t bytes, int device, Region::Kind kind);
  Code free(DevicePtr address);
  // What `allocate` gave of a device and nobody has freed.
  size_t allocated_bytes(int device);
  // The region that holds an address; null if none does.
  std::shared_ptr<Region> find(DevicePtr address);
  // Memory that a copy or an operation of `device` may use: none if a part of it lies outside its
  // region, or the device has no access.
  std::optional<Place> resolve(DevicePtr address, size_t bytes, int device);
  // How much of a range that starts here lies on the same mapping; all, if it lies on none.
  size_t bytes_on_mapping(DevicePtr address, size_t bytes);

  // Opened again, memory lies where it lies already.
  Code import(DevicePtr* address, std::shared_ptr<Physical> physical);
  Code close(DevicePtr address);

  Code allocate_host(void** address, size_t bytes);
  Code free_host(void* address);
  Code register_host(void* address, size_t bytes);
  Code unregister_host(void* address);
  Code host_device_pointer(DevicePtr* address, void* host);

  Code reserve(DevicePtr* address, size_t bytes);
  Code unreserve(DevicePtr address, size_t bytes);
  // The reservation around an address, if there is one.
  std::optional<Reservation> find_reservation(DevicePtr address);
  int reservations();
  Code map(DevicePtr address, size_t bytes, std::shared_ptr<Physical> physical);
  Code unmap(DevicePtr address, size_t bytes);
  Code set_access(DevicePtr address, size_t bytes, int device, bool accessible);

 private:
  struct Tables;
  AddressSpace();
  Tables& tables_;
};

// The handles of cuMemCreate and its kin, each with a count of its owners. Thread-safe.
class AllocationHandles {
 public:
  static AllocationHandles& get();
  // A handle with one more owner; the same one for the same memory.
  AllocationHandle own(std::shared_ptr<Physical> physical);
  std::shared_ptr<Physical> find(AllocationHandle handle);
  Code release(AllocationHandle handle);

 private:
  struct Tables;
  AllocationHandles();
  Tables& tables_;
};

inline constexpr size_t kPage = 4096;
inline size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace fake_cuda
