// Tokens that are added to a tokenizer, and the files that it is then saved as.
#include <gtest/gtest.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "special_tokens.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"
#include "unit/tokenizer/sentencepiece_bytes.h"

namespace lora_train::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;
using testing_support::TemporaryFolder;
using testing_support::write_text;

// Characters a b c and "ab"; an added token with the id after them.
const std::string kModel =
    R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3}, "merges": ["a b"]}, "decoder": {"type": "Fuse"}})";
const std::string kAdded = R"({"id": 4, "content": "<s>", "special": true, "normalized": false})";

const std::string kJson = R"({"added_tokens": [)" + kAdded + "], " + kModel;

std::unique_ptr<Tokenizer> load(const std::filesystem::path& folder, const std::vector<std::string>& tokens = {}) {
  TokenizerOptions options;
  options.new_tokens = tokens;
  return Tokenizer::load(folder, options);
}

std::string message(const std::filesystem::path& folder, const std::vector<std::string>& tokens) {
  return testing_support::refusal<ConfigError>([&] { load(folder, tokens); });
}

/// The tokenizer that the changed files of `tokenizer`, written over those of the folder, load as.
std::unique_ptr<Tokenizer> reload(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
  for (const auto& [name, text] : tokenizer.changed_files()) write_text(folder / name, text);
  return load(folder);
}

TEST(NewTokens, GetTheNextIdsAndAreFoundInTextBeforeAnythingElse) {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.json", kJson);
  const auto base = load(folder.path()), tokenizer = load(folder.path(), {"<b>", "bc"});
  EXPECT_EQ(tokenizer->token_to_id("<b>"), 5);
  EXPECT_EQ(tokenizer->token_to_id("bc"), 6);
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  EXPECT_EQ(tokenizer->encode("abc<b>ab<s>").ids, (Ids{0, 6, 5, 3, 4}));
  EXPECT_EQ(tokenizer->decode(Ids{0, 5, 4}, /*skip_special=*/true), "a<b>") << "they are not special";
  EXPECT_NE(tokenizer->fingerprint(), base->fingerprint());
  EXPECT_NE(tokenizer->fingerprint(), load(folder.path(), {"<b>", "bd"})->fingerprint());
  EXPECT_TRUE(base->changed_files().empty());
}

// Axolotl's `tokens`: AddedToken(token, normalized=False).
TEST(NewTokens, AreFoundInTheTextAsItIsWhereTheyAreVerbatim) {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.json",
             R"({"normalizer": {"type": "Prepend", "prepend": "c"}, "added_tokens": [)" + kAdded + "], " + kModel);
  TokenizerOptions options;
  options.new_tokens = {"<b>"};
  const auto normalized = Tokenizer::load(folder.path(), options);
  options.verbatim_tokens = {"<b>"};
  const auto verbatim = Tokenizer::load(folder.path(), options);
  const auto has_token = [](const Tokenizer& tokenizer) {
    return std::ranges::count(tokenizer.encode("a<b>").ids, tokenizer.token_to_id("<b>").value()) > 0;
  };
  EXPECT_FALSE(has_token(*normalized));
  EXPECT_TRUE(has_token(*verbatim));
  EXPECT_NE(normalized->fingerprint(), verbatim->fingerprint());
  EXPECT_TRUE(has_token(*reload(*verbatim, folder.path())));
}

TEST(NewTokens, TheFilesLoadAsTheSameTokenizer) {
  const std::vector<std::string> lists = {R"({"added_tokens": [)" + kAdded + "], ",
                                          R"({"added_tokens": [], )",
                                          R"({"added_tokens": [ ], )",
                                          R"({"added_tokens": null, )",
                                          "{",
                                          R"({"version": "a \" [ \\", "added_tokens": [)" + kAdded + "\n  ], "};
  const std::string token = "<\"\\\n\xC3\xA9>";
  for (const std::string& list : lists) {
    const TemporaryFolder folder;
    write_text(folder / "tokenizer.json", list + kModel);
    const auto tokenizer = load(folder.path(), {token, "<b>"});
    const std::string text = "ab" + token + "c<b>";
    const Ids ids = tokenizer->encode(text).ids;
    ASSERT_EQ(ids.size(), 4u) << list;
    const std::string& changed = tokenizer->changed_files().at("tokenizer.json");
    EXPECT_TRUE(changed.ends_with(kModel)) << "the rest stays as it is: " << changed;
    EXPECT_EQ(reload(*tokenizer, folder.path())->encode(text).ids, ids) << changed;
  }
}

TEST(NewTokens, AreListedInTokenizerConfigWhereItListsTokens) {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.json", kJson);
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "<s>"})");
  EXPECT_FALSE(load(folder.path(), {"<b>"})->changed_files().contains("tokenizer_config.json"));
  write_text(folder / "tokenizer_config.json",
             R"({"eos_token": "<s>", "added_tokens_decoder": {"4": {"content": "<s>", "special": true}}})");
  const auto tokenizer = load(folder.path(), {"<b>"});
  const Json config = Json::parse(tokenizer->changed_files().at("tokenizer_config.json"));
  EXPECT_EQ(config["added_tokens_decoder"]["5"],
            Json::parse(R"({"content": "<b>", "single_word": false, "lstrip": false,
                                                                 "rstrip": false, "normalized": true, "special": false})"));
  EXPECT_EQ(config["eos_token"], "<s>");
  EXPECT_EQ(reload(*tokenizer, folder.path())->token_to_id("<b>"), 5);
}

TEST(NewTokens, OfASentencePieceModelStandInItsSideFiles) {
  using testing_support::kPieces;
  using testing_support::model_bytes;
  for (const char* old : {"", R"({"<old>": 10})"}) {
    const TemporaryFolder folder;
    write_text(folder / "tokenizer.model", model_bytes(kPieces));
    if (*old != '\0') write_text(folder / "added_tokens.json", old);
    const std::int32_t next = load(folder.path())->vocab_size();
    const auto tokenizer = load(folder.path(), {"<b>"});
    EXPECT_EQ(tokenizer->token_to_id("<b>"), next);
    const Ids ids = tokenizer->encode("a<b>b<old>").ids;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), next), 1);
    EXPECT_EQ(tokenizer->changed_files().size(), 1u);
    EXPECT_EQ(reload(*tokenizer, folder.path())->encode("a<b>b<old>").ids, ids) << old;
  }
}

TEST(NewTokens, OneThatIsThereIsRefusedWithItsId) {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.json", kJson);
  EXPECT_SAYS(message(folder.path(), {"<b>", "<s>"}), "already has \"<s>\" with id 4: use it as it is");
  EXPECT_SAYS(message(folder.path(), {"ab"}), "with id 3");
}

}  // namespace
}  // namespace lora_train::tokenizer
