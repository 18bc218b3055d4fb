// Which adapter and which base a command uses.
#include "flags/open_model.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/storage/run_marker.h"
#include "support/refusal.h"
#include "support/small_checkpoint.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;
using testing_support::refusal;
using testing_support::TemporaryFolder;
using testing_support::write_text;

constexpr const char* kConfig = "adapter_config.json";

void write_adapter(const fs::path& folder, const std::string& base = "") {
  fs::create_directories(folder);
  write_text(folder / kConfig, R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], )"
                               R"("base_model_name_or_path": ")" +
                                   base + "\"}");
}

/// The folder of a run with checkpoint-5.
void write_stopped_run(const fs::path& folder) {
  storage::write_new_marker(folder, false);
  const testing_support::SmallCheckpoint checkpoint(5);
  run_folder::save(folder, checkpoint.contents());
}

TEST(FindAdapter, ARunIsTheAdapterInIt) {
  const TemporaryFolder folder;
  write_stopped_run(folder.path());
  write_adapter(folder / "adapter");
  EXPECT_EQ(find_adapter(folder.path()), folder / "adapter");
  EXPECT_EQ(find_adapter(folder / "adapter"), folder / "adapter");
  write_adapter(folder.path());  // of another tool that wrote into the same folder
  EXPECT_EQ(find_adapter(folder.path()), folder / "adapter");
  fs::remove_all(folder / "adapter");
  EXPECT_EQ(find_adapter(folder.path()), folder.path());
  EXPECT_EQ(find_adapter(""), "");
}

TEST(FindAdapter, SaysWhatAFolderWithoutOneIs) {
  const TemporaryFolder folder;
  const std::string run = folder.path(), nope = folder / "nope";
  EXPECT_EQ(refusal<FormatError>([&] { find_adapter(nope); }),
            nope + ": no such folder; expected a PEFT folder, or the output_dir of a run");
  EXPECT_EQ(find_adapter(run), run) << "its reader says what is wrong with it";
  write_stopped_run(run);
  const std::string start = run + " is a run that has not ended: there is no adapter/ in it. Its newest checkpoint: ";
  EXPECT_EQ(refusal<ConfigError>([&] { find_adapter(run); }),
            "--adapter: " + start + "--adapter " + run + "/checkpoint-5.");
  EXPECT_EQ(refusal<ConfigError>([&] { find_adapter(run, "init_adapter"); }),
            "init_adapter: " + start + "init_adapter: " + run + "/checkpoint-5.");
  fs::create_directory(folder / "model");
  write_text(folder / "model/config.json", "{}");
  EXPECT_EQ(refusal<ConfigError>([&] { find_adapter(run); }),
            "--adapter: " + run + " is a run that trained all weights: there is no adapter. Its model: --model " + run +
                "/model.");
}

TEST(FindAdapter, AResultThatIsOlderThanItsRunIsWarnedOfOnce) {
  const TemporaryFolder folder;
  const std::string adapter = folder / "adapter";
  write_stopped_run(folder.path());
  write_adapter(adapter);
  const auto said = [&] {
    testing::internal::CaptureStderr();
    find_adapter(folder.path());
    return testing::internal::GetCapturedStderr();
  };
  write_text(folder / "adapter/README.md", "Trained with lora-train 1.0: 5 steps, r 4.\n");
  EXPECT_EQ(said(), "") << "it is of the newest checkpoint";
  write_text(folder / "adapter/README.md", "Trained with lora-train 1.0: 1 step, r 4.\n");
  write_text(folder / "summary.json", R"({"status": "done"})");
  EXPECT_EQ(said(), "");
  write_text(folder / "summary.json", R"({"status": "stopped"})");
  EXPECT_TRUE(said().ends_with(
      adapter +
      ": is an earlier result of the run, from step 1, which has continued since and has not ended. Its newest "
      "checkpoint: " +
      (folder / "checkpoint-5").string() + ".\n"));
  EXPECT_EQ(said(), "");
}

TEST(FindBase, OneThatIsNotThereIsToldWithItsPlaceAndAWay) {
  const TemporaryFolder folder;
  write_adapter(folder.path(), "models/mine/x");
  EXPECT_EQ(
      refusal<FormatError>([&] { find_base(folder.path()); }),
      (folder / kConfig).string() +
          ": base_model_name_or_path is \"models/mine/x\": no such folder, and not a Hugging Face Hub name of the "
          "form org/name[@revision] (seen from " +
          fs::current_path().string() + "). Pass the base model with --model DIR.");
  write_adapter(folder.path(), folder.path());
  EXPECT_EQ(find_base(folder.path()), folder.path());
  EXPECT_EQ(find_base(""), "");
}

}  // namespace
}  // namespace lora_train::cli
