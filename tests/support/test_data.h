// Where the test data lies: real tokenizers, templates, datasets and golden outputs, which are not in the repository.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace lora_train::testing_support {

/// A path below $LORA_TRAIN_TEST_DATA, or below ../shared/data of the repository root; nothing when it is not there.
inline std::optional<std::filesystem::path> find_test_data(const std::string& relative) {
  const char* given = std::getenv("LORA_TRAIN_TEST_DATA");
  const std::filesystem::path root = given != nullptr ? given : std::filesystem::path("../shared/data");
  const std::filesystem::path path = root / relative;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

/// A small file of a test, without the syncs that product files get.
inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// In a test body: `const auto path = ...` of data that must be there, or the test is skipped with the reason.
#define LORA_TRAIN_REQUIRE_DATA(variable, relative)                                                \
  const auto variable##_found = ::lora_train::testing_support::find_test_data(relative);           \
  if (!variable##_found)                                                                           \
    GTEST_SKIP() << "no " << (relative) << "; set LORA_TRAIN_TEST_DATA to the test data's folder"; \
  const std::filesystem::path variable = *variable##_found

}  // namespace lora_train::testing_support
