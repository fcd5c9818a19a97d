#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/device/segment.h"

namespace freescale {

// The operations a header can name. The numbers travel between processes: append only.
enum class OpKind : uint8_t {
  kNone = 0,
  kAllToAllSingle,
  kAllToAll,
  kAllGather,
  kAllGatherIntoTensor,
  kAllGatherCoalesced,
  kBroadcast,
  kScatter,
  kGather,
  kSend,
  kRecv,
  kBarrier,
  kAllReduce,
  kAllReduceCoalesced,
  kReduce,
  kReduceScatter,
  kReduceScatterTensor,
  kReduceScatterCoalesced,
  kCount,
};

// As users call it: "all_to_all_single", "all_reduce", ...
std::string_view op_name(OpKind op);

// The rank whose message is awaited is any rank of the group (recv without a source).
inline constexpr int kAnySource = -1;

// All that one rank sends to, or receives from, one peer in one operation: its segments in order.
// An empty message is a message: its header travels and is checked.
struct Message {
  int peer = 0;  // rank in the group; the own rank stands for a local copy
  std::vector<Segment> segments;

  size_t bytes() const { return total_bytes(segments); }
};

// Names of dtypes travel in a fixed field: torch's name, e.g. "float32", padded with zeros.
using DtypeName = std::array<char, 16>;

inline DtypeName padded_name(std::string_view name) {
  DtypeName padded{};
  name.copy(padded.data(), padded.size());
  return padded;
}

// What the ranks of one operation must agree on; compared on arrival, before a byte lands.
struct Signature {
  OpKind op = OpKind::kNone;
  DtypeName dtype{};
  uint64_t layout = 0;  // Layout::pack(): what else must agree

  void set_dtype(std::string_view name) { dtype = padded_name(name); }
  std::string_view dtype_name() const {
    size_t length = 0;
    while (length < dtype.size() && dtype[length] != '\0') ++length;
    return {dtype.data(), length};
  }
};

// The transfers of one collective as this rank sends and receives them. At most one message to and
// one from each peer. Messages to and from the own rank come as a pair of equal size.
struct Plan {
  Signature signature;
  std::vector<Message> sends;
  std::vector<Message> receives;
};

}  // namespace freescale
