#pragma once

#include <cstdint>

namespace freescale::ucx {

// What a message is, told in its header. Both ends have the same byte order and this layout, which
// the handshake makes sure of.
enum class MessageKind : uint8_t {
  kHandshake,  // before there is a link
  kRecord,
  kChunk,
  kCredit,  // `offset`: how many bytes of chunks of the level the receiver has taken in all
  kHeartbeat,
  kGoodbye,   // the sender closes its end; `offset`: how many records and chunks it has sent in all
  kFarewell,  // the answer, once all of them are there
  kGivenUp,   // it trusts the link no longer; the body says why
};

struct MessageHeader {
  uint64_t key = 0;  // the link at the receiver: secret, so that strangers and the dead are ignored
  MessageKind kind = MessageKind::kHandshake;
  uint8_t level = 0;
  uint16_t unused = 0;
  // Of records, and of the chunks of each level: UCX may let messages of several pieces overtake.
  uint32_t number = 0;
  uint64_t token = 0;  // of chunks: see ChunkTag
  uint64_t offset = 0;
};
static_assert(sizeof(MessageHeader) == 32);

}  // namespace freescale::ucx
