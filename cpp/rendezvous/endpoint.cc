#include "cpp/rendezvous/endpoint.h"

#include <cinttypes>
#include <cstdio>

#include "cpp/base/text.h"

namespace freescale {
namespace {

// Text, so that whoever looks into the store can read it; the version comes first.
constexpr char kWrite[] = "freescale2 %016" PRIx64 "%016" PRIx64 " %016" PRIx64 "%016" PRIx64
                          " %016" PRIx64 "%016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %s";
constexpr char kRead[] = "freescale2 %16" SCNx64 "%16" SCNx64 " %16" SCNx64 "%16" SCNx64
                         " %16" SCNx64 "%16" SCNx64 " %16" SCNx64 " %16" SCNx64 " %99s";
constexpr std::string_view kRefusal = "freescale2 refused: ";

}  // namespace

std::string Endpoint::encode_refusal(std::string_view why) {
  return std::string(kRefusal).append(why);
}

std::string Endpoint::encode() const {
  char text[320];
  std::snprintf(text, sizeof(text), kWrite, engine[0], engine[1], knock[0], knock[1], welcome[0],
                welcome[1], group_id, host, socket.c_str());
  return text;
}

Result<Endpoint> Endpoint::decode(std::string_view text) {
  if (text.substr(0, kRefusal.size()) == kRefusal) {
    return Status::cancelled("it gave up: " + readable(text.substr(kRefusal.size())));
  }
  Endpoint endpoint;
  char socket[100] = {};
  const std::string copy(text);
  const int fields = std::sscanf(copy.c_str(), kRead, &endpoint.engine[0], &endpoint.engine[1],
                                 &endpoint.knock[0], &endpoint.knock[1], &endpoint.welcome[0],
                                 &endpoint.welcome[1], &endpoint.group_id, &endpoint.host, socket);
  if (fields != 9) {
    return Status::mismatch("it published an endpoint that this version cannot read: '" +
                            readable(copy.substr(0, 40)) + "'");
  }
  endpoint.socket = socket;
  return endpoint;
}

}  // namespace freescale
