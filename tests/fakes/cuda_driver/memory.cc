#include "tests/fakes/cuda_driver/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace fake_cuda {
namespace {

using Kind = Region::Kind;

// The last page of device memory.
struct Label {
  static constexpr uint64_t kMagic = 0x4d454d4f5259;
  uint64_t magic;
  size_t bytes;
  int device;
};

// Addresses nobody can use, with an unused page on either side. 0 if there are none.
DevicePtr reserve_addresses(size_t bytes) {
  void* start = mmap(nullptr, bytes + 2 * kPage, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start == MAP_FAILED ? 0 : reinterpret_cast<DevicePtr>(start) + kPage;
}

void release_addresses(DevicePtr start, size_t bytes) {
  munmap(reinterpret_cast<void*>(start - kPage), bytes + 2 * kPage);
}

std::byte* map_physical(const Physical& physical, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, physical.fd.get(), 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

ino_t inode(const Physical& physical) {
  struct stat about{};
  fstat(physical.fd.get(), &about);
  return about.st_ino;
}

uint64_t next_id() {
  static uint64_t last = 0;  // under the lock of the address space
  return ++last;
}

// Memory at reserved addresses, which are the region's from then on; null if there is no room.
std::shared_ptr<Region> make_region(Kind kind, std::shared_ptr<Physical> physical, size_t bytes,
                                    DevicePtr start) {
  auto region = std::make_shared<Region>();
  region->kind = kind;
  region->bytes = bytes;
  region->buffer_id = next_id();
  region->bytes_at = map_physical(*physical, whole_pages(bytes));
  region->owns_mapping = region->bytes_at != nullptr;
  region->start = start;
  region->reserved = start != 0 ? whole_pages(bytes) : 0;
  region->physical = std::move(physical);
  return region->owns_mapping && region->reserved > 0 ? region : nullptr;
}

}  // namespace

std::shared_ptr<Physical> Physical::create(size_t bytes, int device) {
  auto physical = std::make_shared<Physical>();
  physical->fd = UniqueFd(memfd_create("device-memory", MFD_CLOEXEC));
  physical->bytes = bytes;
  physical->device = device;
  const auto label_at = static_cast<off_t>(whole_pages(bytes));
  const Label label{Label::kMagic, bytes, device};
  const bool made = physical->fd.valid() &&
                    ftruncate(physical->fd.get(), label_at + static_cast<off_t>(kPage)) == 0 &&
                    pwrite(physical->fd.get(), &label, sizeof(label), label_at) == sizeof(label);
  return made ? physical : nullptr;
}

std::shared_ptr<Physical> Physical::adopt(UniqueFd fd) {
  struct stat about{};
  Label label{};
  if (!fd.valid() || fstat(fd.get(), &about) != 0 ||
      pread(fd.get(), &label, sizeof(label), about.st_size - static_cast<off_t>(kPage)) !=
          sizeof(label) ||
      label.magic != Label::kMagic) {
    return nullptr;
  }
  auto physical = std::make_shared<Physical>();
  physical->fd = std::move(fd);
  physical->bytes = label.bytes;
  physical->device = label.device;
  physical->foreign = true;
  return physical;
}

Region::~Region() {
  if (owns_mapping) munmap(bytes_at, whole_pages(bytes));
  if (reserved > 0) release_addresses(start, reserved);
}

bool Region::usable_by(int device) const {
  // What cuMemAlloc gave, or was opened by IPC, was checked then.
  return kind != Kind::kMapped || access.contains(device);
}

struct AddressSpace::Tables {
  std::mutex mutex;
  std::map<DevicePtr, std::shared_ptr<Region>> regions;
  std::map<DevicePtr, Reservation> reservations;
  std::map<size_t, std::vector<DevicePtr>> freed;     // addresses to give again, by bytes
  std::map<DevicePtr, std::shared_ptr<Region>> host;  // by the address on the host
  std::map<ino_t, std::shared_ptr<Region>> imported;

  template <typename Value>
  static auto at_or_before(std::map<DevicePtr, Value>& map, DevicePtr address) {
    auto next = map.upper_bound(address);
    return next == map.begin() ? map.end() : std::prev(next);
  }

  std::shared_ptr<Region> find(DevicePtr address) {
    const auto found = at_or_before(regions, address);
    const bool inside = found != regions.end() && address - found->first < found->second->bytes;
    return inside ? found->second : nullptr;
  }

  // The host memory the driver knows that an address of the host lies in.
  std::shared_ptr<Region> find_host(DevicePtr address) {
    const auto found = at_or_before(host, address);
    const bool inside = found != host.end() && address - found->first < found->second->bytes;
    return inside ? found->second : nullptr;
  }

  DevicePtr take_addresses(size_t bytes) {
    std::vector<DevicePtr>& starts = freed[bytes];
    if (starts.empty()) return reserve_addresses(bytes);
    const DevicePtr start = starts.back();
    starts.pop_back();
    return start;
  }

  Reservation* find_reservation(DevicePtr address) {
    const auto found = at_or_before(reservations, address);
    const bool inside = found != reservations.end() && address - found->first < found->second.bytes;
    return inside ? &found->second : nullptr;
  }

  Code remove(DevicePtr address, Kind kind) {
    const auto found = regions.find(address);
    if (found == regions.end() || found->second->kind != kind) return Code::kInvalidValue;
    regions.erase(found);
    return Code::kSuccess;
  }

  bool overlaps_host(DevicePtr address, size_t bytes) {
    const auto next = host.lower_bound(address);
    return find_host(address) != nullptr || (next != host.end() && next->first < address + bytes);
  }

  // `region` lies at `address` of the host as well.
  void add_host(std::shared_ptr<Region> region, DevicePtr address) {
    region->kind = Kind::kHost;
    region->buffer_id = next_id();
    region->bytes_at = reinterpret_cast<std::byte*>(address);
    host[address] = region;
    regions[region->start] = region;
  }

  std::shared_ptr<Region> remove_host(void* address) {
    const auto found = host.find(reinterpret_cast<DevicePtr>(address));
    if (found == host.end()) return nullptr;
    std::shared_ptr<Region> region = found->second;
    host.erase(found);
    regions.erase(region->start);
    return region;
  }
};

AddressSpace::AddressSpace() : tables_(*new Tables()) {}

AddressSpace& AddressSpace::get() {
  static AddressSpace* const space = new AddressSpace();
  return *space;
}

Code AddressSpace::allocate(DevicePtr* address, size_t bytes, int device, Kind kind) {
  if (bytes == 0) return Code::kInvalidValue;
  std::shared_ptr<Physical> physical = Physical::create(bytes, device);
  if (physical == nullptr) return Code::kOutOfMemory;
  const std::lock_guard lock(tables_.mutex);
  std::shared_ptr<Region> region =
      make_region(kind, std::move(physical), bytes, tables_.take_addresses(whole_pages(bytes)));
  if (region == nullptr) return Code::kOutOfMemory;
  *address = region->start;
  tables_.regions[region->start] = std::move(region);
  return Code::kSuccess;
}

Code AddressSpace::free(DevicePtr address) {
  const std::lock_guard lock(tables_.mutex);
  const auto found = tables_.regions.find(address);
  if (found == tables_.regions.end() || found->second->kind != Kind::kAllocated) {
    return Code::kInvalidValue;
  }
  Region& region = *found->second;
  tables_.freed[std::exchange(region.reserved, 0)].push_back(address);
  tables_.regions.erase(found);
  return Code::kSuccess;
}

size_t AddressSpace::allocated_bytes(int device) {
  const std::lock_guard lock(tables_.mutex);
  size_t bytes = 0;
  for (const auto& [start, region] : tables_.regions) {
    const bool counts = region->kind == Kind::kAllocated && region->physical->device == device;
    if (counts) bytes += region->bytes;
  }
  return bytes;
}

std::shared_ptr<Region> AddressSpace::find(DevicePtr address) {
  const std::lock_guard lock(tables_.mutex);
  return tables_.find(address);
}

std::optional<Place> AddressSpace::resolve(DevicePtr address, size_t bytes, int device) {
  const std::lock_guard lock(tables_.mutex);
  std::shared_ptr<Region> region = tables_.find(address);
  DevicePtr start = region != nullptr ? region->start : 0;
  if (region == nullptr && (region = tables_.find_host(address)) != nullptr) {
    start = reinterpret_cast<DevicePtr>(region->bytes_at);
  }
  if (region == nullptr) return Place{nullptr, reinterpret_cast<std::byte*>(address)};
  const size_t offset = address - start;
  if (bytes > region->bytes - offset || !region->usable_by(device)) return std::nullopt;
  return Place{region, region->bytes_at + offset};
}

size_t AddressSpace::bytes_on_mapping(DevicePtr address, size_t bytes) {
  const std::lock_guard lock(tables_.mutex);
  const std::shared_ptr<Region> region = tables_.find(address);
  if (region == nullptr || region->kind != Kind::kMapped) return bytes;
  return std::min(bytes, region->bytes - (address - region->start));
}

Code AddressSpace::import(DevicePtr* address, std::shared_ptr<Physical> physical) {
  const std::lock_guard lock(tables_.mutex);
  std::shared_ptr<Region>& region = tables_.imported[inode(*physical)];
  if (region == nullptr) {
    const size_t bytes = physical->bytes;
    region = make_region(Kind::kImported, std::move(physical), bytes,
                         reserve_addresses(whole_pages(bytes)));
    if (region == nullptr) return Code::kMapFailed;
    tables_.regions[region->start] = region;
  }
  ++region->opens;
  *address = region->start;
  return Code::kSuccess;
}

Code AddressSpace::close(DevicePtr address) {
  const std::lock_guard lock(tables_.mutex);
  const std::shared_ptr<Region> region = tables_.find(address);
  if (region == nullptr || region->kind != Kind::kImported || region->start != address) {
    return Code::kInvalidValue;
  }
  if (--region->opens > 0) return Code::kSuccess;
  tables_.imported.erase(inode(*region->physical));
  return tables_.remove(address, Kind::kImported);
}

Code AddressSpace::allocate_host(void** address, size_t bytes) {
  if (bytes == 0) return Code::kInvalidValue;
  void* data =
      mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return Code::kOutOfMemory;
  const std::lock_guard lock(tables_.mutex);
  auto region = std::make_shared<Region>();
  region->start = reinterpret_cast<DevicePtr>(data);  // the same on the device
  region->bytes = bytes;
  region->owns_mapping = true;
  tables_.add_host(std::move(region), reinterpret_cast<DevicePtr>(data));
  *address = data;
  return Code::kSuccess;
}

Code AddressSpace::free_host(void* address) {
  const std::lock_guard lock(tables_.mutex);
  const auto found = tables_.host.find(reinterpret_cast<DevicePtr>(address));
  if (found == tables_.host.end() || !found->second->owns_mapping) return Code::kInvalidValue;
  tables_.remove_host(address);
  return Code::kSuccess;
}

Code AddressSpace::register_host(void* address, size_t bytes) {
  const auto host = reinterpret_cast<DevicePtr>(address);
  if (address == nullptr || bytes == 0) return Code::kInvalidValue;
  const std::lock_guard lock(tables_.mutex);
  if (tables_.overlaps_host(host, bytes)) return Code::kHostMemoryAlreadyRegistered;
  auto region = std::make_shared<Region>();
  // At another address on the device, as devices may have it
  // (kCanUseHostPointerForRegisteredMemory): who confuses the two is told so.
  region->start = reserve_addresses(whole_pages(bytes));
  if (region->start == 0) return Code::kOutOfMemory;
  region->reserved = whole_pages(bytes);
  region->bytes = bytes;
  tables_.add_host(std::move(region), host);
  return Code::kSuccess;
}

Code AddressSpace::unregister_host(void* address) {
  const std::lock_guard lock(tables_.mutex);
  const auto found = tables_.host.find(reinterpret_cast<DevicePtr>(address));
  if (found == tables_.host.end() || found->second->owns_mapping) {
    return Code::kHostMemoryNotRegistered;
  }
  tables_.remove_host(address);
  return Code::kSuccess;
}

Code AddressSpace::host_device_pointer(DevicePtr* address, void* host) {
  const std::lock_guard lock(tables_.mutex);
  const std::shared_ptr<Region> region = tables_.find_host(reinterpret_cast<DevicePtr>(host));
  if (region == nullptr) return Code::kInvalidValue;
  *address = region->start + (static_cast<std::byte*>(host) - region->bytes_at);
  return Code::kSuccess;
}

Code AddressSpace::reserve(DevicePtr* address, size_t bytes) {
  if (bytes == 0 || bytes % kPage != 0) return Code::kInvalidValue;
  const std::lock_guard lock(tables_.mutex);
  *address = reserve_addresses(bytes);
  if (*address == 0) return Code::kOutOfMemory;
  tables_.reservations[*address] = {*address, bytes, 0};
  return Code::kSuccess;
}

Code AddressSpace::unreserve(DevicePtr address, size_t bytes) {
  const std::lock_guard lock(tables_.mutex);
  const auto found = tables_.reservations.find(address);
  if (found == tables_.reservations.end() || found->second.bytes != bytes) {
    return Code::kInvalidValue;
  }
  const auto mapped = tables_.regions.lower_bound(address);
  if (mapped != tables_.regions.end() && mapped->first < address + bytes) {
    return Code::kInvalidValue;
  }
  release_addresses(address, bytes);
  tables_.reservations.erase(found);
  return Code::kSuccess;
}

std::optional<Reservation> AddressSpace::find_reservation(DevicePtr address) {
  const std::lock_guard lock(tables_.mutex);
  const Reservation* found = tables_.find_reservation(address);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

int AddressSpace::reservations() {
  const std::lock_guard lock(tables_.mutex);
  return static_cast<int>(tables_.reservations.size());
}

Code AddressSpace::map(DevicePtr address, size_t bytes, std::shared_ptr<Physical> physical) {
  const std::lock_guard lock(tables_.mutex);
  const Reservation* reserved = tables_.find_reservation(address);
  const bool inside = reserved != nullptr && address + bytes <= reserved->start + reserved->bytes;
  const auto next = tables_.regions.lower_bound(address);
  const bool is_free = tables_.find(address) == nullptr &&
                       (next == tables_.regions.end() || next->first >= address + bytes);
  if (!inside || !is_free || bytes == 0 || bytes > whole_pages(physical->bytes)) {
    return Code::kInvalidValue;
  }
  auto region = std::make_shared<Region>();
  region->kind = Kind::kMapped;
  region->start = address;
  region->bytes = bytes;
  region->buffer_id = next_id();
  region->bytes_at = map_physical(*physical, bytes);
  region->owns_mapping = region->bytes_at != nullptr;
  region->physical = std::move(physical);
  if (!region->owns_mapping) return Code::kOutOfMemory;
  tables_.regions[address] = std::move(region);
  return Code::kSuccess;
}

Code AddressSpace::unmap(DevicePtr address, size_t bytes) {
  const std::lock_guard lock(tables_.mutex);
  const std::shared_ptr<Region> region = tables_.find(address);
  if (region == nullptr || region->kind != Kind::kMapped || region->start != address ||
      region->bytes != bytes) {
    return Code::kInvalidValue;
  }
  tables_.find_reservation(address)->last_buffer_id = region->buffer_id;
  return tables_.remove(address, Kind::kMapped);
}

Code AddressSpace::set_access(DevicePtr address, size_t bytes, int device, bool accessible) {
  const std::lock_guard lock(tables_.mutex);
  // All mappings in the range; it must end with one.
  DevicePtr at = address;
  while (at < address + bytes) {
    const auto found = tables_.regions.find(at);
    if (found == tables_.regions.end() || found->second->kind != Kind::kMapped) {
      return Code::kInvalidValue;
    }
    accessible ? void(found->second->access.insert(device))
               : void(found->second->access.erase(device));
    at += found->second->bytes;
  }
  return at == address + bytes ? Code::kSuccess : Code::kInvalidValue;
}

struct AllocationHandles::Tables {
  struct Entry {
    std::shared_ptr<Physical> physical;
    int owners = 0;
  };
  std::mutex mutex;
  std::map<AllocationHandle, Entry> entries;
  AllocationHandle last = 0;
};

AllocationHandles::AllocationHandles() : tables_(*new Tables()) {}

AllocationHandles& AllocationHandles::get() {
  static AllocationHandles* const handles = new AllocationHandles();
  return *handles;
}

AllocationHandle AllocationHandles::own(std::shared_ptr<Physical> physical) {
  const std::lock_guard lock(tables_.mutex);
  for (auto& [handle, entry] : tables_.entries) {
    if (entry.physical != physical) continue;
    ++entry.owners;
    return handle;
  }
  tables_.entries[++tables_.last] = {std::move(physical), 1};
  return tables_.last;
}

std::shared_ptr<Physical> AllocationHandles::find(AllocationHandle handle) {
  const std::lock_guard lock(tables_.mutex);
  const auto found = tables_.entries.find(handle);
  return found == tables_.entries.end() ? nullptr : found->second.physical;
}

Code AllocationHandles::release(AllocationHandle handle) {
  const std::lock_guard lock(tables_.mutex);
  const auto found = tables_.entries.find(handle);
  if (found == tables_.entries.end()) return Code::kInvalidValue;
  if (--found->second.owners == 0) tables_.entries.erase(found);
  return Code::kSuccess;
}

}  // namespace fake_cuda
