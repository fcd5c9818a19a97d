#include "cpp/base/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace freescale {
namespace {

uint8_t byte_at(std::string_view text, size_t place) {
  return place < text.size() ? static_cast<uint8_t>(text[place]) : 0;
}

// Bytes of the well-formed UTF-8 character (Unicode 15, table 3-7) that begins the text, or 0.
size_t character_bytes(std::string_view text) {
  const uint8_t first = byte_at(text, 0);
  if (first < 0x80) return (first >= ' ' && first != 0x7f) || first == '\n' ? 1 : 0;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // No longer forms than needed, no surrogates, nothing beyond U+10FFFF.
  const uint8_t lowest = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t highest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte_at(text, 1) < lowest || byte_at(text, 1) > highest) return 0;
  for (size_t place = 2; place < bytes; ++place) {
    if ((byte_at(text, place) & 0xc0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

std::string readable(std::string_view foreign) {
  std::string text;
  text.reserve(foreign.size());
  while (!foreign.empty()) {
    const size_t bytes = character_bytes(foreign);
    if (bytes > 0) {
      text += foreign.substr(0, bytes);
    } else {
      text += '?';
    }
    foreign.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return text;
}

}  // namespace freescale
