#pragma once

#include <string>
#include <string_view>

namespace freescale {

// Bytes of another process as a text that Python can show: what is not well-formed UTF-8 (a text
// that was cut within a character, or no text at all) becomes question marks, and so do control
// characters but the line's end.
std::string readable(std::string_view foreign);

}  // namespace freescale
