// What the targets of parsers share: a parser takes its input or refuses it with one of our errors, and says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "input_file.h"
#include "lora_train/base/error.h"

namespace lora_train::fuzz {

/// True when `function` came to its end. What is no Error of ours leaves, and ends the program.
template <class Function>
bool accepts(const Function& function) {
  try {
    function();
    return true;
  } catch (const Error& error) {
    if (error.message().empty()) fail("an error without a message");
    if (error.where().empty()) fail("an error without a place: " + error.message());
    if (error.exit_code() == ExitCode::kInternal) fail("an internal error: " + error.message());
    return false;
  }
}

inline void require(bool condition, const std::string& what) {
  if (!condition) fail(what);
}

inline constexpr std::string_view kSeparator = "\n====\n";

/// Exactly `count` parts of an input that stands for several files; empty where it has fewer.
inline std::vector<std::string_view> split(const std::uint8_t* data, std::size_t size, std::size_t count) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const std::size_t end = rest.find(kSeparator);
    parts.push_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + kSeparator.size());
  }
  parts.push_back(rest);
  return parts;
}

}  // namespace lora_train::fuzz
