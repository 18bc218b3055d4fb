// Files of examples, and the data that a run makes of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "byte_tokenizer.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/data/prepare.h"
#include "support/temporary_folder.h"

namespace lora_train::data {

/// Examples "example 0", "example 1", ...
inline std::string texts(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += "{\"text\": \"example " + std::to_string(i) + "\"}\n";
  return out;
}

class PrepareFixture : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  void TearDown() override { set_log_level(LogLevel::kInfo); }

  DatasetSpec dataset(const std::string& name, std::string_view bytes) {
    write_file_atomic(folder_ / name, bytes);
    DatasetSpec spec;
    spec.path = (folder_ / name).string();
    return spec;
  }
  DataSection training_on(std::string_view rows, const std::string& name = "t.jsonl") {
    DataSection section;
    section.datasets = {dataset(name, rows)};
    return section;
  }
  PreparedData prepare(const DataSection& section, bool need_train = true) const {
    return prepare_data(section, context_, need_train);
  }

  testing_support::TemporaryFolder folder_;
  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  DataContext context_{.tokenizer = &tokenizer_, .chat_template = &template_, .seed = 42};
};

}  // namespace lora_train::data
