#include <gtest/gtest.h>

#include "hub_api.h"

namespace lora_train::hub {
namespace {

using Names = std::vector<std::string>;

Names needed(const Names& paths) {
  std::vector<RepositoryFile> files;
  for (const std::string& path : paths) files.push_back({path, 1, "", DigestKind::kGitSha1});
  Names names;
  for (const RepositoryFile& file : needed_files(files, "org/name").needed) names.push_back(file.path);
  return names;
}

TEST(NeededFiles, AreConfigTokenizerTemplatesAndSafetensors) {
  const Names wanted = {"config.json",
                        "generation_config.json",
                        "merges.txt",
                        "vocab.json",
                        "tokenizer.model",
                        "tekken.json",
                        "chat_template.jinja",
                        "additional_chat_templates/tools.jinja",
                        "model-00001-of-00002.safetensors",
                        "model.safetensors.index.json",
                        "README.md",
                        "LICENSE",
                        "adapter_config.json"};
  EXPECT_EQ(needed(wanted), wanted);
}

TEST(NeededFiles, OtherFormatsAndFoldersStay) {
  EXPECT_EQ(needed({"model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json", "model.gguf",
                    "model.onnx", "onnx/model.onnx", "original/params.json", "tf_model.h5", "modeling_x.py",
                    ".gitattributes", "image.png"}),
            Names{"model.safetensors"});
}

TEST(NeededFiles, TheSecondCopyOfMistralStaysUnlessItIsTheOnlyOne) {
  EXPECT_EQ(needed({"consolidated.safetensors", "model.safetensors"}), Names{"model.safetensors"});
  EXPECT_EQ(needed({"consolidated.safetensors"}), Names{"consolidated.safetensors"});
}

TEST(NeededFiles, AModelInOtherFormatsAloneIsRefused) {
  EXPECT_THROW(needed({"config.json", "pytorch_model.bin"}), FormatError);
  EXPECT_EQ(needed({"config.json", "tokenizer.json"}), (Names{"config.json", "tokenizer.json"}));  // enough for plan
}

}  // namespace
}  // namespace lora_train::hub
