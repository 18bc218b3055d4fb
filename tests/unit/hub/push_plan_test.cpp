#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/hub/push.h"
#include "support/temporary_folder.h"

namespace lora_train::hub {
namespace {

using testing_support::TemporaryFolder;

std::vector<std::string> paths_of(const PushPlan& plan) {
  std::vector<std::string> paths;
  for (const PushFile& file : plan.files) paths.push_back(file.path);
  return paths;
}

void write_files(const std::filesystem::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    make_folders((folder / name).parent_path());
    write_file_atomic(folder / name, name);
  }
}

TEST(PushPlan, TakesTheFilesOfAnAdapterAndNotThoseOfItsCheckpoint) {
  const TemporaryFolder folder;
  write_files(folder.path(),
              {"adapter_config.json", "adapter_model.safetensors", "README.md", ".cache", "optimizer.safetensors",
               "trainer_state.json", "manifest.json", "logs/a.txt", "additional_chat_templates/t.jinja"});
  const PushPlan plan = plan_push(folder.path(), "org/name");
  EXPECT_EQ(paths_of(plan), (std::vector<std::string>{"README.md", "adapter_config.json", "adapter_model.safetensors",
                                                      "additional_chat_templates/t.jinja"}));
  EXPECT_EQ(plan.skipped, (std::vector<std::string>{".cache", "logs", "manifest.json", "optimizer.safetensors",
                                                    "trainer_state.json"}));
  EXPECT_TRUE(plan.has_card);
}

TEST(PushPlan, ARunIsItsResultAndOtherFoldersAreRefused) {
  const TemporaryFolder folder;
  for (const auto& other : {folder.path(), folder / "nowhere"}) EXPECT_THROW(plan_push(other, "org/name"), FormatError);
  write_files(folder.path(), {"run.json", "model/config.json"});
  EXPECT_EQ(plan_push(folder.path(), "org/name").folder, folder.path() / "model");
  write_files(folder.path(), {"adapter/adapter_config.json"});
  EXPECT_EQ(plan_push(folder.path(), "org/name").folder, folder.path() / "adapter");
}

TEST(PushPlan, TheCardNamesTheRepository) {
  const TemporaryFolder folder;
  write_files(folder.path(), {"adapter_config.json"});
  write_file_atomic(
      folder.path() / "README.md",
      "model = PeftModel.from_pretrained(base, \"/home/me/runs/a\")\nvllm serve B --lora-modules x=/home/me/runs/a\n");
  const PushPlan plan = plan_push(folder.path(), "org/name");
  EXPECT_EQ(plan.files.front().text,
            "model = PeftModel.from_pretrained(base, \"org/name\")\nvllm serve B --lora-modules x=org/name\n");
  EXPECT_EQ(plan.files.front().num_bytes, plan.files.front().text->size());
}

}  // namespace
}  // namespace lora_train::hub
