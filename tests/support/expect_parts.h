// Expectations of parts: of a text, and of a JSON object.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lora_train::testing_support {

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
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
