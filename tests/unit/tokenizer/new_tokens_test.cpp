// Tokens that are added to a tokenizer, and the files that it is then saved as.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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

class NewTokens : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const std::vector<std::string>& tokens = {}) const {
    TokenizerOptions options;
    options.new_tokens = tokens;
    return Tokenizer::load(folder_.path(), options);
  }
  /// The tokenizer that the changed files of `tokenizer`, written over those of the folder, load as.
  std::unique_ptr<Tokenizer> reload(const Tokenizer& tokenizer) const {
    for (const auto& [name, text] : tokenizer.changed_files()) {
      if (!text.empty()) write_text(folder_ / name, text);
    }
    return load();
  }
  void write(const char* name, const std::string& text) const { write_text(folder_ / name, text); }

  TemporaryFolder folder_;
};

TEST_F(NewTokens, GetTheNextIdsAndAreFoundInTextBeforeAnythingElse) {
  write("tokenizer.json", kJson);
  const auto base = load(), tokenizer = load({"<b>", "bc"});
  EXPECT_EQ(tokenizer->token_to_id("<b>"), 5);
  EXPECT_EQ(tokenizer->token_to_id("bc"), 6);
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  EXPECT_EQ(tokenizer->encode("abc<b>ab<s>").ids, (Ids{0, 6, 5, 3, 4}));
  EXPECT_EQ(tokenizer->decode(Ids{0, 5, 4}, /*skip_special=*/true), "a<b>") << "they are not special";
  EXPECT_NE(tokenizer->fingerprint(), base->fingerprint());
  EXPECT_NE(tokenizer->fingerprint(), load({"<b>", "bd"})->fingerprint());
  EXPECT_TRUE(base->changed_files().empty());
}

// tekken.json: the 256 bytes and "ab" after three special tokens.
std::string tekken_json() {
  nlohmann::json json = {{"config",
                          {{"pattern", "[^\\s]+|\\s+"},
                           {"num_vocab_tokens", 257},
                           {"default_vocab_size", 260},
                           {"default_num_special_tokens", 3},
                           {"version", "v13"}}}};
  for (int rank = 0; rank < 3; ++rank)
    json["special_tokens"].push_back({{"rank", rank},
                                      {"token_str", std::vector<std::string>{"<s>", "</s>", "<pad>"}.at(rank)},
                                      {"is_control", true}});
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int rank = 0; rank < 257; ++rank) {
    const std::string byte = {kDigits[rank >> 2 & 63], kDigits[(rank & 3) << 4], '=', '='};
    json["vocab"].push_back({{"rank", rank}, {"token_bytes", rank == 256 ? "YWI=" : byte}, {"token_str", nullptr}});
  }
  return json.dump();
}

TEST_F(NewTokens, OfATekkenJsonAreInATokenizerJsonInItsPlace) {
  write("tekken.json", tekken_json());
  write("tokenizer_config.json", R"({"tokenizer_class": "MistralCommonBackend", "note": 1})");
  const auto base = load(), tokenizer = load({"<b>"});
  EXPECT_EQ(base->vocab_size(), 260);
  EXPECT_EQ(tokenizer->token_to_id("<b>"), 260);
  const std::string text = "<s>abc ab<b>\xC3\xA9</s>";
  const Ids ids = {0, 259, 3 + 'c', 3 + ' ', 259, 260, 3 + 0xC3, 3 + 0xA9, 1};
  EXPECT_EQ(tokenizer->encode(text).ids, ids);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->pad_id(), 2);
  EXPECT_EQ(tokenizer->changed_files().at("tekken.json"), "") << "it goes";
  const auto config = nlohmann::json::parse(tokenizer->changed_files().at("tokenizer_config.json"));
  const nlohmann::json expected = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"note", 1},
                                   {"bos_token", "<s>"},
                                   {"eos_token", "</s>"},
                                   {"pad_token", "<pad>"}};
  EXPECT_EQ(config, expected);
  std::filesystem::remove(folder_ / "tekken.json");
  const auto again = reload(*tokenizer);
  EXPECT_EQ(again->encode(text).ids, ids);
  EXPECT_EQ(again->decode(ids), text);
  EXPECT_EQ(again->eos_id(), 1);
  EXPECT_TRUE(again->adds_bos());
  EXPECT_FALSE(again->is_special(260));
}

// Axolotl's `tokens`: AddedToken(token, normalized=False).
TEST_F(NewTokens, AreFoundInTheTextAsItIsWhereTheyAreVerbatim) {
  write("tokenizer.json",
        R"({"normalizer": {"type": "Prepend", "prepend": "c"}, "added_tokens": [)" + kAdded + "], " + kModel);
  TokenizerOptions options;
  options.new_tokens = {"<b>"};
  const auto normalized = Tokenizer::load(folder_.path(), options);
  options.verbatim_tokens = {"<b>"};
  const auto verbatim = Tokenizer::load(folder_.path(), options);
  const auto has_token = [](const Tokenizer& tokenizer) {
    return std::ranges::count(tokenizer.encode("a<b>").ids, tokenizer.token_to_id("<b>").value()) > 0;
  };
  EXPECT_FALSE(has_token(*normalized));
  EXPECT_TRUE(has_token(*verbatim));
  EXPECT_NE(normalized->fingerprint(), verbatim->fingerprint());
  EXPECT_TRUE(has_token(*reload(*verbatim)));
}

TEST_F(NewTokens, TheFilesLoadAsTheSameTokenizer) {
  const std::vector<std::string> lists = {R"({"added_tokens": [)" + kAdded + "], ",
                                          R"({"added_tokens": [], )",
                                          R"({"added_tokens": [ ], )",
                                          R"({"added_tokens": null, )",
                                          "{",
                                          R"({"version": "a \" [ \\", "added_tokens": [)" + kAdded + "\n  ], "};
  const std::string token = "<\"\\\n\xC3\xA9>";
  for (const std::string& list : lists) {
    write("tokenizer.json", list + kModel);
    const auto tokenizer = load({token, "<b>"});
    const std::string text = "ab" + token + "c<b>";
    const Ids ids = tokenizer->encode(text).ids;
    ASSERT_EQ(ids.size(), 4u) << list;
    const std::string& changed = tokenizer->changed_files().at("tokenizer.json");
    EXPECT_TRUE(changed.ends_with(kModel)) << "the rest stays as it is: " << changed;
    EXPECT_EQ(reload(*tokenizer)->encode(text).ids, ids) << changed;
  }
}

TEST_F(NewTokens, AreListedInTokenizerConfigWhereItListsTokens) {
  write("tokenizer.json", kJson);
  write("tokenizer_config.json", R"({"eos_token": "<s>"})");
  EXPECT_FALSE(load({"<b>"})->changed_files().contains("tokenizer_config.json"));
  write("tokenizer_config.json",
        R"({"eos_token": "<s>", "added_tokens_decoder": {"4": {"content": "<s>", "special": true}}})");
  const auto tokenizer = load({"<b>"});
  const Json config = Json::parse(tokenizer->changed_files().at("tokenizer_config.json"));
  EXPECT_EQ(config["added_tokens_decoder"]["5"],
            Json::parse(R"({"content": "<b>", "single_word": false, "lstrip": false,
                                                                 "rstrip": false, "normalized": true, "special": false})"));
  EXPECT_EQ(config["eos_token"], "<s>");
  EXPECT_EQ(reload(*tokenizer)->token_to_id("<b>"), 5);
}

TEST_F(NewTokens, OfASentencePieceModelStandInItsSideFiles) {
  using testing_support::kPieces;
  using testing_support::model_bytes;
  for (const char* old : {"", R"({"<old>": 10})"}) {
    write("tokenizer.model", model_bytes(kPieces));
    std::filesystem::remove(folder_ / "tokenizer_config.json");
    if (*old != '\0') write("added_tokens.json", old);
    const std::int32_t next = load()->vocab_size();
    const auto tokenizer = load({"<b>"});
    EXPECT_EQ(tokenizer->token_to_id("<b>"), next);
    const Ids ids = tokenizer->encode("a<b>b<old>").ids;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), next), 1);
    EXPECT_EQ(tokenizer->changed_files().size(), 1u);
    EXPECT_EQ(reload(*tokenizer)->encode("a<b>b<old>").ids, ids) << old;
  }
}

TEST_F(NewTokens, OneThatIsThereIsRefusedWithItsId) {
  write("tokenizer.json", kJson);
  const auto said = [&](const std::vector<std::string>& tokens) {
    return testing_support::refusal<ConfigError>([&] { load(tokens); });
  };
  EXPECT_SAYS(said({"<b>", "<s>"}), "already has \"<s>\" with id 4: use it as it is");
  EXPECT_SAYS(said({"ab"}), "with id 3");
}

}  // namespace
}  // namespace lora_train::tokenizer
