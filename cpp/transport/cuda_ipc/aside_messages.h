#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "cpp/base/priority.h"
#include "cpp/device/cuda_types.h"
#include "cpp/transport/cuda_ipc/allocation_notice.h"

namespace freescale::cuda {

// What the lanes of two processes say to each other beside the records, as it lies in memory: each
// message is one of these, told apart by their first field.

enum class AsideKind : uint32_t { kHello = 1, kNotice, kGone, kRing };

// A word of the sender's FlagSegment, and what it holds before anything was counted in it.
struct AsideWord {
  uint32_t index = 0;
  uint32_t start = 0;
};

// The first of all, with the descriptor of the sender's FlagSegment.
struct AsideHello {
  AsideKind kind = AsideKind::kHello;
  Uuid device = {};
  // Where the receiver finds out whether its device reaches the sender's, and what it reads there.
  ExportedPiece access_target;
  uint64_t access_contents = 0;
  // By level: counts the chunks that the sender has taken out of the receiver's rings.
  std::array<AsideWord, kPriorityLevels> emptied = {};
};

// A ring through which messages of a level are going to come, with its descriptor.
struct AsideRing {
  AsideKind kind = AsideKind::kRing;
  uint32_t level = 0;
  AsideWord filled;  // counts the chunks that are in it
};

// An allocation that later grants name; with a descriptor if it is opened by one.
struct AsideNotice {
  AsideKind kind = AsideKind::kNotice;
  AllocationNotice notice;
};

// An allocation that was freed.
struct AsideGone {
  AsideKind kind = AsideKind::kGone;
  uint64_t allocation = 0;
};

// What a receiver tells in its grant; as many pieces as it says follow.
struct DeviceGrant {
  uint32_t ready_index = 0;  // words of the receiver's segment: its memory may be written...
  uint32_t ready_value = 0;
  uint32_t arrived_index = 0;  // ...and it was
  uint32_t arrived_value = 0;
  uint64_t pieces = 0;
};

static_assert(std::is_trivially_copyable_v<AsideHello> &&
              std::is_trivially_copyable_v<AsideNotice> &&
              std::is_trivially_copyable_v<AsideGone> && std::is_trivially_copyable_v<AsideRing> &&
              std::is_trivially_copyable_v<DeviceGrant>);

}  // namespace freescale::cuda
