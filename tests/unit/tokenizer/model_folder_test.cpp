#include "lora_train/tokenizer/model_folder.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train::tokenizer {
namespace {

using testing_support::TemporaryFolder;

TEST(ModelFolder, WithoutFilesThereIsNeitherTokenizerNorTemplate) {
  const TemporaryFolder folder;
  EXPECT_EQ(load_tokenizer_if_present(folder.path()), nullptr);
  EXPECT_EQ(load_chat_template("tokenizer", folder.path()), nullptr);
  write_file_atomic(folder / "tokenizer_config.json", R"({"bos_token": null})");
  EXPECT_EQ(load_chat_template("tokenizer", folder.path()), nullptr);
  write_file_atomic(folder / "tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(load_chat_template("tokenizer", folder.path()), nullptr);
}

TEST(ModelFolder, AFileComesBeforeTheTemplateOfTheFolder) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "chat_template.jinja", "of the folder");
  write_file_atomic(folder / "mine.jinja", "mine");
  EXPECT_EQ(load_chat_template("tokenizer", folder.path())->source(), "of the folder");
  EXPECT_EQ(load_chat_template(folder / "mine.jinja", folder.path())->source(), "mine");
  EXPECT_THROW(load_chat_template(folder / "none.jinja", folder.path()), IoError);
}

TEST(ModelFolder, ABrokenTemplateIsNeverPassedOver) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "chat_template.jinja", "{% if %}");
  EXPECT_THROW(load_chat_template("tokenizer", folder.path()), FormatError);
  EXPECT_THROW(load_chat_template(folder / "chat_template.jinja", {}), FormatError);
  std::filesystem::remove(folder / "chat_template.jinja");
  write_file_atomic(folder / "tokenizer_config.json", "{");
  EXPECT_THROW(load_chat_template("tokenizer", folder.path()), FormatError);
}

}  // namespace
}  // namespace lora_train::tokenizer
