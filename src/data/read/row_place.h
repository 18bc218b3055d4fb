// How places in dataset files are written.
#pragma once

#include <cstdint>
#include <string>

namespace lora_train::data {

/// "file:line:byte", both from 1.
inline std::string place(const std::string& file, std::uint64_t line, std::size_t byte) {
  return file + ":" + std::to_string(line) + ":" + std::to_string(byte);
}

}  // namespace lora_train::data
