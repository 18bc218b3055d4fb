// Tokens that only the files beside tokenizer.json name. tests/parity/test_side_tokens.py compares them with transformers.
#include <gtest/gtest.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::tokenizer {
namespace {

using Files = std::vector<std::pair<std::string, std::string>>;  // name, content
using Ids = std::vector<std::int32_t>;
using testing_support::TemporaryFolder;
using testing_support::write_text;

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kMapFile = "special_tokens_map.json";
constexpr const char* kAddedFile = "added_tokens.json";
constexpr const char* kDecoder = R"("added_tokens_decoder": {"4": {"content": "<s>", "special": true}})";

class SideTokens : public testing::Test {
 protected:
  /// Characters a b c, "ab" and the added token <s>, and these files.
  static void fill(const TemporaryFolder& folder, const Files& files) {
    write_text(
        folder / "tokenizer.json",
        R"({"added_tokens": [{"id": 4, "content": "<s>", "special": true, "normalized": false}], "model": {"type":
                   "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3}, "merges": ["a b"]}, "decoder": {"type": "Fuse"}})");
    for (const auto& [name, content] : files) write_text(folder / name, content);
  }
  static std::string refusal(const Files& files) {
    const TemporaryFolder folder;
    fill(folder, files);
    return testing_support::refusal<FormatError>([&] { Tokenizer::load(folder.path()); });
  }
};

TEST_F(SideTokens, GetTheNextIdsInTheOrderOfTransformers) {
  const std::string decoder = std::string(", ") + kDecoder;
  struct Case {
    Files files;
    Ids ids;  // of <1>, <2> and <3>; 0 for one that is not a token
  };
  const std::vector<Case> cases = {
      {{{kConfigFile, R"({"extra_special_tokens": ["<2>", "<1>", "<2>", ""])" + decoder + "}"}}, {6, 5, 0}},
      {{{kConfigFile, R"({"additional_special_tokens": ["<1>", {"content": "<2>"}]})"}}, {5, 6, 0}},
      {{{kConfigFile, R"({"extra_special_tokens": ["<1>"], "additional_special_tokens": ["<2>"]})"}}, {5, 0, 0}},
      {{{kConfigFile, R"({"extra_special_tokens": null, "additional_special_tokens": ["<2>"]})"}}, {0, 0, 0}},
      {{{kConfigFile, R"({"extra_special_tokens": {"image": "<1>", "eos": "<s>"}, "pad_token": "<2>"})"}}, {6, 5, 0}},
      {{{kConfigFile, R"({"extra_special_tokens": ["<1>"], "mask_token": "<2>", "eos_token": "<3>"})"}}, {7, 6, 5}},
      {{{kMapFile, R"({"additional_special_tokens": ["<1>"], "pad_token": {"content": "<2>"}})"}}, {6, 5, 0}},
      {{{kConfigFile, "{" + std::string(kDecoder) + "}"}, {kMapFile, R"({"additional_special_tokens": ["<1>"]})"}},
       {0, 0, 0}},
      {{{kConfigFile, R"({"extra_special_tokens": ["<1>"]})"}, {kMapFile, R"({"extra_special_tokens": ["<2>"]})"}},
       {5, 6, 0}},
      {{{kConfigFile, R"({"extra_special_tokens": ["<1>"]})"}, {kMapFile, R"({"additional_special_tokens": ["<2>"]})"}},
       {5, 0, 0}},
      {{{kConfigFile, R"({"extra_special_tokens": ["<3>"]})"},
        {kMapFile, R"({"extra_special_tokens": {"x": "<1>"}, "additional_special_tokens": ["<2>"]})"}},
       {5, 6, 0}},
      {{{kConfigFile, R"({"pad_token": "<1>"})"}, {kMapFile, R"({"pad_token": "<2>"})"}}, {0, 5, 0}},
      {{{kAddedFile, R"({"<2>": 6, "<1>": 5})"}, {kMapFile, R"({"additional_special_tokens": ["<3>", "<2>"]})"}},
       {5, 6, 7}},
      {{{kConfigFile, "{" + std::string(kDecoder) + "}"}, {kAddedFile, R"({"<1>": 5})"}}, {0, 0, 0}},
  };
  for (const Case& each : cases) {
    const TemporaryFolder folder;
    fill(folder, each.files);
    const auto tokenizer = Tokenizer::load(folder.path());
    Ids ids;
    for (const char* token : {"<1>", "<2>", "<3>"}) ids.push_back(tokenizer->token_to_id(token).value_or(0));
    EXPECT_EQ(ids, each.ids) << each.files.front().second;
    const Ids found = tokenizer->encode("<1>b<2>c<3>").ids;
    for (const std::int32_t id : each.ids) EXPECT_EQ(std::ranges::count(found, id), id > 0) << id;
  }
}

TEST_F(SideTokens, AreRefusedWhereTransformersGivesOtherIdsOrTheModelHasNoRow) {
  for (const auto& [files, message] : std::vector<std::pair<Files, const char*>>{
           {{{kAddedFile, R"({"<1>": 6})"}},
            "added_tokens.json: <1>: transformers gives added token \"<1>\" the next free id, 5; write that, not 6"},
           {{{kConfigFile, R"({"added_tokens_decoder": {"7": {"content": "<1>"}}})"}}, "the next free id, 5"},
           {{{kConfigFile, R"({"pad_token": {"content": "<1>", "lstrip": true}})"}},
            "tokenizer_config.json: pad_token: lstrip, rstrip and single_word of \"<1>\" depend on tokenizer_class"},
           {{{kConfigFile, R"({"extra_special_tokens": {"x": "<1>", "y": "<2>"}})"}},
            "tokenizer_config.json: extra_special_tokens.y: \"<2>\" is the second new token with a name; list both"},
           {{{kConfigFile, R"({"extra_special_tokens": ["<1>", "<2>"]})"}, {"config.json", R"({"vocab_size": 6})"}},
            "tokenizer_config.json: extra_special_tokens[1]: \"<2>\" is new, and the model has no row for its id, 6 "
            "(vocab_size "
            "is 6); remove it, and name it in add_tokens if you need it"},
           {{{kAddedFile, R"({"<1>": 5})"}, {"config.json", R"({"vocab_size": 9, "text_config": {"vocab_size": 5}})"}},
            "added_tokens.json: <1>: \"<1>\" is new, and the model has no row for its id, 5 (vocab_size is 5)"}}) {
    EXPECT_SAYS(refusal(files), message);
  }
}

TEST_F(SideTokens, StayWhereTheyAreIfTokensAreAdded) {
  for (const auto& [name, content] :
       Files{{kConfigFile, R"({"extra_special_tokens": ["<2>", "<1>"]})"},
             {kAddedFile, R"({"<2>": 5, "<1>": 6})"},
             {kConfigFile, R"({"added_tokens_decoder": {"5": {"content": "<2>"}}, "pad_token": "<1>"})"}}) {
    const TemporaryFolder folder;
    fill(folder, {{name, content}});
    const auto tokenizer = Tokenizer::load(folder.path(), {.new_tokens = {"<new>"}});
    EXPECT_EQ(tokenizer->token_to_id("<new>"), 7);
    const std::string text = "a<1>b<2>c<new>";
    const Ids ids = {0, 6, 1, 5, 2, 7};
    EXPECT_EQ(tokenizer->encode(text).ids, ids);
    for (const auto& [file, bytes] : tokenizer->changed_files()) write_text(folder / file, bytes);
    EXPECT_EQ(Tokenizer::load(folder.path())->encode(text).ids, ids) << content;
    std::filesystem::remove(folder / name);
    EXPECT_EQ(Tokenizer::load(folder.path())->encode(text).ids, ids) << "tokenizer.json lists all: " << content;
  }
}

}  // namespace
}  // namespace lora_train::tokenizer
