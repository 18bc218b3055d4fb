#include "hub_api.h"

#include <gtest/gtest.h>

#include <sstream>

#include "lora_train/base/text.h"

namespace lora_train::hub {
namespace {

TEST(HubApi, PathsThatLeadOutAreNotSafe) {
  for (const char* safe : {"a", "a/b.json", ".gitattributes", "a..b/c", "data/train 1.jsonl"})
    EXPECT_TRUE(is_safe_path(safe)) << safe;
  for (const char* bad : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_safe_path(bad)) << bad;
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
}

TEST(HubApi, FindsTheNextPage) {
  EXPECT_EQ(next_link("<https://hub/x?cursor=1>; rel=\"next\""), "https://hub/x?cursor=1");
  EXPECT_EQ(next_link("<https://hub/a>; rel=\"prev\", <https://hub/b>; rel=\"next\""), "https://hub/b");
  for (const char* none : {"", "<https://hub/a>; rel=\"prev\"", "<broken", ">x<", "rel=\"next\""})
    EXPECT_EQ(next_link(none), "") << none;
}

/// The files of a repository that are needed, in its order.
std::string needed(const std::string& paths) {
  std::vector<RepositoryFile> files;
  std::istringstream stream(paths);
  for (std::string path; stream >> path;) files.push_back({path, 1, "", DigestKind::kGitSha1});
  std::vector<std::string> names;
  for (const RepositoryFile& file : needed_files(files, "org/name").needed) names.push_back(file.path);
  return join(names, " ");
}

TEST(NeededFiles, AreConfigTokenizerTemplatesAndSafetensors) {
  const std::string wanted =
      "config.json generation_config.json merges.txt vocab.json tokenizer.model tekken.json chat_template.jinja "
      "additional_chat_templates/tools.jinja model-00001-of-00002.safetensors model.safetensors.index.json README.md "
      "LICENSE adapter_config.json";
  EXPECT_EQ(needed(wanted), wanted);
  EXPECT_EQ(needed("config.json tokenizer.json"), "config.json tokenizer.json") << "enough for plan";
}

TEST(NeededFiles, OtherFormatsAndFoldersStay) {
  EXPECT_EQ(needed("model.safetensors pytorch_model.bin pytorch_model.bin.index.json model.gguf model.onnx "
                   "onnx/model.onnx original/params.json tf_model.h5 modeling_x.py .gitattributes image.png"),
            "model.safetensors");
  EXPECT_THROW(needed("config.json pytorch_model.bin"), FormatError);
}

TEST(NeededFiles, TheSecondCopyOfMistralStaysUnlessItIsTheOnlyOne) {
  EXPECT_EQ(needed("consolidated.safetensors model.safetensors"), "model.safetensors");
  EXPECT_EQ(needed("consolidated.safetensors"), "consolidated.safetensors");
}

TEST(Digest, Sha256OfTheStandard) {
  Digest digest(DigestKind::kSha256, 3);
  digest.update("a");
  digest.update("bc");
  EXPECT_EQ(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, GitSha1IsWhatGitHashObjectPrints) {
  EXPECT_EQ(Digest(DigestKind::kGitSha1, 0).hex(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  Digest digest(DigestKind::kGitSha1, 6);
  digest.update("hello\n");
  EXPECT_EQ(digest.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST(Upload, PartsCoverTheFileInOrder) {
  const auto parts = plan_parts({{"chunk_size", "4"}, {"00001", "a"}, {"00003", "c"}, {"00002", "b"}}, 10);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].url + parts[1].url + parts[2].url, "abc");
  EXPECT_EQ(parts[1].begin, 4U);
  EXPECT_EQ(parts[1].end, 8U);
  EXPECT_EQ(parts[2].end, 10U);
}

TEST(Upload, PartsThatDoNotCoverTheFileAreRefused) {
  using Headers = std::map<std::string, std::string>;
  for (const Headers& headers :
       {Headers{}, Headers{{"1", "a"}}, Headers{{"chunk_size", "0"}, {"1", "a"}},
        Headers{{"chunk_size", "x"}, {"1", "a"}}, Headers{{"chunk_size", "4"}, {"1", "a"}, {"3", "c"}},
        Headers{{"chunk_size", "5"}, {"1", "a"}}, Headers{{"chunk_size", "5"}, {"1", "a"}, {"3", "c"}},
        Headers{{"chunk_size", "5"}, {"0", "a"}, {"1", "b"}}})
    EXPECT_THROW(plan_parts(headers, 10), std::invalid_argument);
}

TEST(Upload, Base64OfTheStandard) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64(std::string("\0\xff", 2)), "AP8=");
}

}  // namespace
}  // namespace lora_train::hub
