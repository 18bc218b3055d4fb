#include <gtest/gtest.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "merge_folder.h"
#include "support/temporary_folder.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;

/// model/ and adapter/, whose adapter_config.json names org/base.
class AdapterBase : public testing::Test {
 protected:
  AdapterBase() {
    testing_support::write_merge_model(model_);
    testing_support::write_merge_adapter(adapter_, model_, {});
  }

  void record(const fs::path& model) {
    write_file_atomic(adapter_ / storage::kBaseModelFile,
                      base_file_text(storage::open_model_weights(model).fingerprint()));
  }

  /// The same shapes with other weights.
  fs::path other_model() {
    const fs::path other = folder_ / "other";
    fs::copy(model_, other);
    for (const auto& entry : fs::directory_iterator(other)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::string bytes = read_file(entry.path());
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      write_file_atomic(entry.path(), bytes);
    }
    return other;
  }

  std::string said(const storage::ResolvedModel& model, bool is_allowed = false) {
    testing::internal::CaptureStderr();
    std::string refusal;
    try {
      check_base(adapter_, model, {is_allowed, "--the-flag"});
    } catch (const ConfigError& error) {
      refusal = std::string("refused: ") + error.what();
    }
    return refusal + testing::internal::GetCapturedStderr();
  }

  testing_support::TemporaryFolder folder_;
  fs::path model_ = folder_ / "model", adapter_ = folder_ / "adapter";
};

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
}

TEST_F(AdapterBase, ThatMovedIsNotMentioned) {
  record(model_);
  const fs::path moved = folder_ / "moved";
  fs::rename(model_, moved);
  EXPECT_EQ(said({moved, ""}), "");
}

TEST_F(AdapterBase, WithOtherWeightsIsRefusedUnderAnyName) {
  record(model_);
  const fs::path other = other_model();
  expect_parts(said({other, ""}), {"refused: " + adapter_.string(), "org/base", other.string(), "--the-flag"});
  expect_parts(said({other, "org/base"}), {"refused: ", "org/base"});
  const std::string allowed = said({other, ""}, true);
  EXPECT_FALSE(allowed.starts_with("refused")) << allowed;
  expect_parts(allowed, {"warning", "org/base", other.string()});
}

TEST_F(AdapterBase, KnownOnlyByNameIsWarnedOfUnderAnotherOne) {
  EXPECT_EQ(said({model_, "org/base"}), "");
  const std::string warning = said({model_, ""});
  EXPECT_FALSE(warning.starts_with("refused")) << warning;
  expect_parts(warning, {"warning", "org/base", model_.string()});
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1);

  auto config = nlohmann::json::parse(read_file(adapter_ / "adapter_config.json"));
  for (const std::string& name : {model_.string(), model_.string() + "/", std::string()}) {
    config["base_model_name_or_path"] = name;
    write_file_atomic(adapter_ / "adapter_config.json", config.dump());
    EXPECT_EQ(said({model_, ""}), "") << name;
  }
}

TEST_F(AdapterBase, FileOfAnotherToolCountsAsNone) {
  for (const char* text : {"", "[]", "{\"weights\": 1}", "{\"name\": \"x\"}", "{\"weights\": \"00\"}",
                           "{\"made_by\": \"lora-train\", \"version\": 2, \"weights\": \"00\"}"}) {
    write_file_atomic(adapter_ / storage::kBaseModelFile, text);
    EXPECT_EQ(said({model_, "org/base"}), "") << text;
  }
}

}  // namespace
}  // namespace lora_train::lora
