// What every refusal of a broken file promises, for tables of them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::testing_support {

/// That `action` throws an error of this exit code whose place ends in `place` and whose message holds all `words`, and
/// that stays readable, whatever the file holds.
inline void expect_refused(const std::function<void()>& action, const std::string& place,
                           const std::vector<std::string>& words, ExitCode code = ExitCode::kFormat,
                           std::size_t max_message = 10'000) {
  try {
    action();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), code) << error.what();
    EXPECT_TRUE(error.where().ends_with(place) && !error.where().empty()) << error.where() << " is not at " << place;
    for (const auto& part : words) {
      EXPECT_NE(error.message().find(part), std::string::npos) << part << " is not in " << error.message();
    }
    EXPECT_LT(error.message().size(), max_message);
  }
}

}  // namespace lora_train::testing_support
