// Tokenizer files that are wrong in one place each, for tables of them.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/refusal.h"

namespace lora_train::testing_support {

struct BadJsonCase {
  const char* pointer;  // JSON pointer to what is replaced
  const char* value;
  const char* where;    // behind the file's name
  const char* message;  // part of it
};

/// That `make`, such as make_tekken, refuses the bytes of a file and names the place in it.
template <class Make>
void expect_refused(Make make, const std::string& bytes, const std::string& where, const std::string& message) {
  try {
    make(bytes, "file", {}, {});
    ADD_FAILURE() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.where(), "file" + where);
    EXPECT_SAYS(error.message(), message);
  }
}

/// The same of each case: `good` with the replacement.
template <class Make>
void expect_refused(Make make, const nlohmann::ordered_json& good, const std::vector<BadJsonCase>& cases) {
  make(good.dump(), "good", {}, {});
  for (const auto& [pointer, value, where, message] : cases) {
    SCOPED_TRACE(std::string(pointer) + " " + value);
    nlohmann::ordered_json bad = good;
    bad[nlohmann::ordered_json::json_pointer(pointer)] = nlohmann::ordered_json::parse(value);
    expect_refused(make, bad.dump(), where, message);
  }
}

}  // namespace lora_train::testing_support
