#include "cpp/transport/cuda_ipc/access_probe.h"

#include <map>
#include <mutex>
#include <span>

#include "cpp/base/random.h"
#include "cpp/device/driver_stream.h"

namespace freescale::cuda {
namespace {

// So far apart that no two lie in one transaction.
constexpr size_t kPlaceBytes = 64;
// The first place is for what the owner has written.
constexpr size_t kPlaces = AccessTarget::kBytes / kPlaceBytes - 1;

DevicePtr host_address(const uint64_t& word) { return reinterpret_cast<DevicePtr>(&word); }

// With a current context; over when it returns.
Status copy_word(const DriverStream& stream, DevicePtr to, DevicePtr from) {
  const CopyPiece piece{to, from, sizeof(uint64_t)};
  Status status = stream.copy(std::span(&piece, 1), false);
  return status.ok() ? stream.synchronize() : status;
}

}  // namespace

Result<const AccessTarget*> AccessTarget::of_device(const PrimaryContext& context) {
  static std::mutex mutex;
  static std::map<Device, const AccessTarget*> targets;
  const std::lock_guard lock(mutex);
  if (const auto known = targets.find(context.device()); known != targets.end()) {
    return known->second;
  }
  Result<DriverStream> stream = DriverStream::create(context);
  if (!stream.ok()) return stream.status();
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  DevicePtr address = 0;
  if (Status status = context.driver().mem_alloc(&address, kBytes); !status.ok()) return status;
  const uint64_t contents = random_u64();
  Status status = copy_word(stream.value(), address, host_address(contents));
  if (!status.ok()) {
    context.driver().mem_free.code(address);
    return status;
  }
  return targets[context.device()] = new AccessTarget(address, contents);
}

Result<bool> reaches(const PrimaryContext& context, DevicePtr target, uint64_t contents,
                     uint32_t place) {
  Result<DriverStream> stream = DriverStream::create(context);
  if (!stream.ok()) return stream.status();
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  uint64_t seen = 0;
  uint64_t back = 0;
  const uint64_t mark = random_u64();
  const DevicePtr mine = target + kPlaceBytes * (1 + place % kPlaces);
  Status status = copy_word(stream.value(), host_address(seen), target);
  if (status.ok()) status = copy_word(stream.value(), mine, host_address(mark));
  if (status.ok()) status = copy_word(stream.value(), host_address(back), mine);
  if (!status.ok()) return status;
  return seen == contents && back == mark;
}

}  // namespace freescale::cuda
