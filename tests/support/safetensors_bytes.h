// Safetensors files byte by byte, valid or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace lora_train::testing_support {

inline std::string u64_le(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

/// Length, header and data as they stand.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = "") {
  return u64_le(header.size()) + std::string(header) + std::string(data);
}

inline std::filesystem::path write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace lora_train::testing_support
