// Bytes as hexadecimal digits, for comparisons.
#pragma once

#include <string>
#include <string_view>

namespace lora_train::gguf {

inline std::string hex(std::string_view bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

}  // namespace lora_train::gguf
