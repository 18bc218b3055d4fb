// Parts: of a text, and of a JSON object.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace lora_train::testing_support {

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
}

/// Without their ends.
inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// How often `part` is in it.
inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// "a b " of an object with the members a and b.
template <typename Json>
std::string keys_of(const Json& object) {
  std::string keys;
  for (const auto& item : object.items()) keys += item.key() + " ";
  return keys;
}

/// That `found` has the members of `expected`, and its objects those of the objects there.
template <typename Json>
void expect_members(const Json& found, const Json& expected) {
  for (const auto& [name, value] : expected.items()) {
    if (!found.contains(name)) {
      ADD_FAILURE() << name << " is missing in " << found;
    } else if (value.is_object() && !value.empty()) {
      expect_members(found.at(name), value);
    } else {
      EXPECT_EQ(found.at(name), value) << name;
    }
  }
}

/// `expected` as text.
template <typename Json>
void expect_members(const Json& found, const char* expected) {
  expect_members(found, Json::parse(expected));
}

}  // namespace lora_train::testing_support
