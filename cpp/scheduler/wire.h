#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace freescale {

// The header of every record between two engines (docs/adr/0004-header-format.md). Both run on one
// host and were built from one source (the handshake checks the protocol's version), so the fields
// travel as they lie in memory.

enum class RecordKind : uint8_t {
  kInline = 1,      // a message whose payload follows
  kAnnounce,        // a message that waits for its grant; no payload
  kGrant,           // receiver to sender: the destination is ready, send the chunks
  kPulled,          // receiver to sender: the whole announced message was read; its buffer is free
  kCancel,          // an operation is given up; the payload says why
  kGroupClosed,     // the sender's rank has left the group; the payload says why
  kAnnounceDevice,  // as kAnnounce, of a message in device memory; its grant has a payload
  kDeviceNews,      // from the sender of a device message: DeviceTransfer::take_news()
  kDeviceReply,     // the same from its receiver
  kMemberLost,      // from `sequence` on the sender can do no collective of the group: it has lost
                    // another member; the payload says whom and why
};

// In WireHeader::bytes_back: this rank awaits no message from the receiver in this operation.
inline constexpr uint64_t kNothingBack = ~uint64_t{0};

struct WireHeader {
  static constexpr uint32_t kMagic = 0x46535031;  // "FSP1"

  uint32_t magic = kMagic;
  RecordKind kind = RecordKind::kInline;
  uint8_t op = 0;
  int8_t priority = 0;
  uint8_t point_to_point = 0;
  uint64_t group = 0;
  uint64_t sequence = 0;               // collectives
  uint32_t part = 0;                   // collectives
  uint32_t tag = 0;                    // point-to-point
  uint64_t bytes = 0;                  // of this message
  uint64_t bytes_back = kNothingBack;  // what the sender awaits from the receiver
  uint64_t layout = 0;
  uint64_t token = 0;         // the operation of whoever sends this record
  uint64_t peer_token = 0;    // the operation of whoever receives it, where known
  uint64_t address = 0;       // of an announced message that may be read directly
  uint32_t inline_taken = 0;  // how many inline messages of the receiver this side has taken
  int32_t sender = 0;         // rank in the group
  uint64_t revocations = 0;   // Link::revocations() of the sender when it announced
  std::array<char, 16> dtype{};
};
static_assert(std::is_trivially_copyable_v<WireHeader> && sizeof(WireHeader) == 112);

}  // namespace freescale
