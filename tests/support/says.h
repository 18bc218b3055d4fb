// What texts and errors say, in one line of a test.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lora_train/base/error.h"

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

namespace lora_train::testing_support {

/// what() of the error that `action` throws; other errors than `Expected` pass.
template <typename Expected = Error, typename Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace lora_train::testing_support
