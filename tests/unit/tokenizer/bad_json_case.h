// Tokenizer files that are wrong in one place each, for tables of them.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lora_train/base/error.h"

namespace lora_train::testing_support {

struct BadJsonCase {
  const char* name;
  const char* pointer;  // JSON pointer to what is replaced
  const char* value;
  const char* where;    // behind the file's name
  const char* message;  // part of it

  /// `good` with the replacement.
  std::string bytes(nlohmann::ordered_json good) const {
    good[nlohmann::ordered_json::json_pointer(pointer)] = nlohmann::ordered_json::parse(value);
    return good.dump();
  }
};

inline void PrintTo(const BadJsonCase& c, std::ostream* out) { *out << c.name; }
inline std::string case_name(const testing::TestParamInfo<BadJsonCase>& c) { return c.param.name; }

/// That `make`, such as make_tekken, refuses the bytes of a file and names the place in it.
template <class Make>
void expect_refused(Make make, const std::string& bytes, const std::string& where, const std::string& message) {
  try {
    make(bytes, "file", {}, {});
    FAIL() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.where(), "file" + where);
    EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    EXPECT_EQ(error.exit_code(), ExitCode::kFormat);
  }
}

}  // namespace lora_train::testing_support
