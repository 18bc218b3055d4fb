// What a call says when it refuses, for comparison with what is promised.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lora_train/base/error.h"

namespace lora_train::testing_support {

/// "where: message" of the error that `action` throws, "accepted" where it throws none. Other errors than Kind go on.
template <class Kind = Error, class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Kind& error) {
    return error.what();
  }
  return "accepted";
}

inline testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

/// That `part` is in `text`.
#define EXPECT_SAYS(text, part) EXPECT_TRUE(::lora_train::testing_support::says(text, part))

}  // namespace lora_train::testing_support
