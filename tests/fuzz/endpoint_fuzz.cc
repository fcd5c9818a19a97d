// What other ranks published in the store: any text is refused, or read and written back the same.

#include <cstdint>

#include "cpp/rendezvous/endpoint.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace freescale;
  const Result<Endpoint> read =
      Endpoint::decode(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!read.ok()) return 0;
  const std::string text = read.value().encode();
  const Result<Endpoint> again = Endpoint::decode(text);
  fuzz::require(again.ok() && again.value().encode() == text);
  fuzz::require(again.value().socket == read.value().socket);
  return 0;
}
