// tokenizer.json files made by hand: every flag, and every way to be wrong.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::tokenizer {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;
using testing_support::TemporaryFolder;

// Characters a b c and "ab", "abc" by merges; no pre-tokenizer.
OrderedJson small_json() {
  return OrderedJson::parse(R"({
    "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true,
              "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, " ": 6},
              "merges": ["a b", ["ab", "c"]]}})");
}

std::unique_ptr<Tokenizer> load_json(const OrderedJson& json, const OrderedJson& config = nullptr,
                                     const TokenizerOptions& options = {}) {
  const TemporaryFolder folder;
  testing_support::write_text(folder / "tokenizer.json", json.dump());
  if (!config.is_null()) testing_support::write_text(folder / "tokenizer_config.json", config.dump());
  return Tokenizer::load(folder.path(), options);
}

Ids ids(const Tokenizer& tokenizer, const std::string& text) { return tokenizer.encode(text).ids; }

OrderedJson added(int id, const std::string& content, OrderedJson flags = OrderedJson::object()) {
  OrderedJson token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                       {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(flags);
  return token;
}

TEST(TokenizerJson, ReadsBothSpellingsOfMerges) {
  const auto tokenizer = load_json(small_json());
  EXPECT_EQ(ids(*tokenizer, "abcab"), (Ids{5, 4}));
  EXPECT_EQ(ids(*tokenizer, "bc"), (Ids{2, 3}));
}

TEST(TokenizerJson, KeepsTheLastOfEqualMergesAsHuggingFaceDoes) {
  OrderedJson json = small_json();
  json["model"]["vocab"]["bc"] = 7;
  json["model"]["merges"] = {"a b", "b c"};
  EXPECT_EQ(ids(*load_json(json), "abc"), (Ids{4, 3}));
  for (int i = 0; i < 1000; ++i) json["model"]["merges"].push_back("a b");
  EXPECT_EQ(ids(*load_json(json), "abc"), (Ids{1, 7}));
}

TEST(TokenizerJson, FusesUnknownCharactersOnlyWhenAsked) {
  OrderedJson json = small_json();
  const Encoding fused = load_json(json)->encode("a\xC3\xA9zb", true);
  EXPECT_EQ(fused.ids, (Ids{1, 0, 2}));
  EXPECT_EQ(fused.offsets, (std::vector<ByteRange>{{0, 1}, {1, 4}, {4, 5}}));
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(ids(*load_json(json), "a\xC3\xA9zb"), (Ids{1, 0, 0, 2}));
  json["model"].erase("unk_token");
  EXPECT_EQ(ids(*load_json(json), "a\xC3\xA9zb"), (Ids{4})) << "without unk_token unknown characters are dropped";
}

TEST(TokenizerJson, FallsBackToBytesOnlyWhenAllExist) {
  OrderedJson json = small_json();
  json["model"]["byte_fallback"] = true;
  json["model"]["vocab"]["<0xC3>"] = 7;
  EXPECT_EQ(ids(*load_json(json), "\xC3\xA9"), (Ids{0}));
  json["model"]["vocab"]["<0xA9>"] = 8;
  EXPECT_EQ(ids(*load_json(json), "\xC3\xA9"), (Ids{7, 8}));
}

TEST(TokenizerJson, IgnoreMergesTakesWholePieces) {
  OrderedJson json = small_json();
  json["model"]["vocab"]["bc"] = 7;
  EXPECT_EQ(ids(*load_json(json), "bc"), (Ids{2, 3}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(ids(*load_json(json), "bc"), (Ids{7}));
}

TEST(TokenizerJson, AddedTokensMatchLeftmostLongest) {
  OrderedJson json = small_json();
  json["added_tokens"] = {added(7, "<x>"), added(8, "<x><y>"), added(9, "<y>")};
  EXPECT_EQ(ids(*load_json(json), "a<x><y><y>b<x>"), (Ids{1, 8, 9, 2, 7}));
}

TEST(TokenizerJson, AddedTokenFlags) {
  OrderedJson json = small_json();
  json["added_tokens"] = {added(7, "<l>", {{"lstrip", true}}), added(8, "<r>", {{"rstrip", true}}),
                          added(9, "cab", {{"single_word", true}})};
  const auto tokenizer = load_json(json);
  EXPECT_EQ(ids(*tokenizer, "a  <l> b"), (Ids{1, 7, 6, 2}));
  EXPECT_EQ(ids(*tokenizer, "a <r> \n b"), (Ids{1, 6, 8, 2}));
  EXPECT_EQ(ids(*tokenizer, "a cab b"), (Ids{1, 6, 9, 6, 2}));
  EXPECT_EQ(ids(*tokenizer, "acab b"), (Ids{1, 3, 4, 6, 2}));
  EXPECT_EQ(tokenizer->encode("a  <l>", true).offsets.back(), ByteRange(1, 6));
}

TEST(TokenizerJson, NormalizedAddedTokensAreLookedForAfterNormalisation) {
  OrderedJson json = small_json();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "z"}}}, {"content", "a"}};
  json["added_tokens"] = {added(7, "z!", {{"normalized", true}}), added(8, "z?", {{"normalized", false}})};
  const auto tokenizer = load_json(json);
  EXPECT_EQ(ids(*tokenizer, "bz!"), (Ids{2, 7}));
  EXPECT_EQ(ids(*tokenizer, "ba!"), (Ids{2, 7})) << "its normal form is a!";
  EXPECT_EQ(ids(*tokenizer, "bz?"), (Ids{2, 8}));
  EXPECT_EQ(ids(*tokenizer, "ba?"), (Ids{2, 1, 0}));
}

TEST(TokenizerJson, SpecialTokensCanBeReadAsText) {
  OrderedJson json = small_json();
  json["added_tokens"] = {added(7, "<s>", {{"special", true}}), added(8, "<n>")};
  const TokenizerOptions options{.special_tokens_in_text = false};
  EXPECT_EQ(ids(*load_json(json), "<s>a<n>"), (Ids{7, 1, 8}));
  EXPECT_EQ(ids(*load_json(json, nullptr, options), "<s>a<n>"), (Ids{0, 1, 8}));
}

TEST(TokenizerJson, SpecialTokensOfTheSideFiles) {
  OrderedJson json = small_json();
  json["added_tokens"] = {added(7, "<s>", {{"special", true}}), added(8, "<e>", {{"special", true}})};
  const TemporaryFolder folder;
  testing_support::write_text(folder / "tokenizer.json", json.dump());
  testing_support::write_text(folder / "generation_config.json", R"({"eos_token_id": [8, 7]})");
  EXPECT_EQ(Tokenizer::load(folder.path())->eos_id(), 8);
  EXPECT_EQ(Tokenizer::load(folder.path())->bos_id(), std::nullopt);
  testing_support::write_text(
      folder / "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "<s>", "pad_token": null, "add_bos_token": true,
                        "added_tokens_decoder": {"9": {"content": "<new>", "special": true}}})");
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->bos_id(), 7);
  EXPECT_EQ(tokenizer->eos_id(), 7);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->generation_eos_ids(), (Ids{8, 7}));
  EXPECT_EQ(ids(*tokenizer, "a<new>"), (Ids{1, 9})) << "known to tokenizer_config.json only";
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  EXPECT_TRUE(tokenizer->is_special(9));
  EXPECT_EQ(tokenizer->decode(Ids{7, 5, 9}, true), "abc");
  EXPECT_EQ(tokenizer->decode(Ids{7, 5, 9}, false), "<s>abc<new>");
}

TEST(TokenizerJson, ATokenInWhiteSpaceThatAnotherTookCountsAllTheSame) {
  OrderedJson json = small_json();
  json["added_tokens"] = {added(7, "<r>", {{"rstrip", true}}), added(8, "\n")};
  EXPECT_EQ(ids(*load_json(json), "<r>\nb"), (Ids{7, 8, 2}));
}

TEST(TokenizerJson, NamedSpecialTokensAreFoundInText) {
  const OrderedJson config = {{"eos_token", "abc"}, {"additional_special_tokens", {"bc"}}};
  OrderedJson json = small_json();
  json["model"]["vocab"]["bc"] = 7;
  const auto tokenizer = load_json(json, config);
  EXPECT_EQ(ids(*tokenizer, "cabcbc"), (Ids{3, 5, 7})) << "no list of added tokens has them";
  EXPECT_TRUE(tokenizer->is_special(5));
  EXPECT_EQ(tokenizer->eos_id(), 5);
}

TEST(TokenizerJson, RefusesANamedSpecialTokenThatTheVocabularyLacks) {
  try {
    load_json(small_json(), {{"pad_token", "<pad>"}});
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_NE(error.where().find("pad_token"), std::string::npos);
    EXPECT_NE(error.message().find("\"<pad>\" is not in the vocabulary"), std::string::npos);
  }
}

TEST(TokenizerJson, TakesBosFromThePostProcessor) {
  OrderedJson json = small_json();
  json["post_processor"] = OrderedJson::parse(R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "c", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]})");
  EXPECT_EQ(load_json(json)->bos_id(), 3);
  EXPECT_TRUE(load_json(json)->adds_bos());
  EXPECT_FALSE(load_json(json, {{"bos_token", nullptr}})->adds_bos()) << "tokenizer_config.json says there is none";
}

TEST(TokenizerJson, MetaspaceDecoderDropsTheSpacesOfTheFirstToken) {
  OrderedJson json = small_json();
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  json["model"]["vocab"]["__a_"] = 7;
  EXPECT_EQ(load_json(json)->decode(Ids{7, 7}), "a  a ");
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
  EXPECT_EQ(load_json(json)->decode(Ids{7}), "  a ");
}

// Byte-level, with Llama 3's pattern.
OrderedJson llama3_json() {
  OrderedJson json = small_json();
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return json;
}

TEST(TokenizerJson, WarnsOfLlama3PatternInMistralModelsAndChangesNothing) {
  const auto warnings_of = [](const char* model_type) {
    const TemporaryFolder folder;
    testing_support::write_text(folder / "tokenizer.json", llama3_json().dump());
    testing_support::write_text(folder / "config.json", OrderedJson{{"model_type", model_type}}.dump());
    set_log_file(folder / "log");
    const auto tokenizer = Tokenizer::load(folder.path());
    set_log_file({});
    EXPECT_EQ(ids(*tokenizer, "abc"), (Ids{5}));
    return read_file(folder / "log");
  };
  EXPECT_NE(warnings_of("mistral").find("fix_mistral_regex"), std::string::npos);
  EXPECT_EQ(warnings_of("llama"), "");
}

TEST(TokenizerJson, FingerprintFollowsFilesAndOptions) {
  const auto first = load_json(small_json()), same = load_json(small_json());
  EXPECT_EQ(first->fingerprint(), same->fingerprint());
  EXPECT_NE(first->fingerprint(), load_json(small_json(), OrderedJson{{"bos_token", "a"}})->fingerprint());
  EXPECT_NE(first->fingerprint(), load_json(small_json(), nullptr, {.special_tokens_in_text = false})->fingerprint());
}

TEST(TokenizerJson, RefusesInvalidUtf8WithItsPlace) {
  const auto tokenizer = load_json(small_json());
  try {
    tokenizer->encode("ab\xFF");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.where(), "byte 2");
  }
}

TEST(TokenizerJson, NamesTheLineOfBrokenJson) {
  const TemporaryFolder folder;
  testing_support::write_text(folder / "tokenizer.json", "{\n\"model\": {\n");
  try {
    Tokenizer::load(folder.path());
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_EQ(error.where(), (folder / "tokenizer.json").string() + ":3");
  }
  testing_support::write_text(folder / "tokenizer.json", std::string(100000, '['));
  EXPECT_THROW(Tokenizer::load(folder.path()), FormatError);
}

TEST(TokenizerJson, NamesAFolderWithoutTokenizer) {
  const TemporaryFolder folder;
  EXPECT_THROW(Tokenizer::load(folder.path()), FormatError);
}

TEST(TokenizerJson, EncodesTheSameFromManyThreads) {
  LORA_TRAIN_REQUIRE_DATA(folder, "qwen2.5");
  LORA_TRAIN_REQUIRE_DATA(lines, "text/multilingual.txt");
  const auto tokenizer = Tokenizer::load(folder);
  const Ids first = ids(*tokenizer, read_file(lines));
  const std::string text = tokenizer->decode(first);  // in normal form
  const Ids want = ids(*tokenizer, text);
  EXPECT_EQ(first, want);
  std::vector<std::jthread> threads;
  std::vector<Ids> got(4);
  for (Ids& out : got) threads.emplace_back([&] { out = ids(*tokenizer, text); });
  threads.clear();
  for (const Ids& out : got) EXPECT_EQ(out, want);
  EXPECT_TRUE(tokenizer->decode(want) == text);
}

TEST(TokenizerJson, SeesAStopRequestInsideALongText) {
  const StopRequests requests;
  constexpr int kMany = 10000;
  std::string words, marks = "a";
  for (int i = 0; i < kMany; ++i) words += "ab c ";
  for (int i = 0; i < kMany; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";  // of classes 230 and 220
  const auto one_word = load_json(small_json());
  OrderedJson json = small_json();
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "\\s"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const auto split = load_json(json);
  json["pre_tokenizer"] = nullptr;
  json["added_tokens"] = OrderedJson::array({added(7, "<x>")});
  const auto with_added = load_json(json);
  json["added_tokens"] = OrderedJson::array();
  json["normalizer"] = {{"type", "NFC"}};
  const auto normalized = load_json(json);
  set_max_time(0);
  EXPECT_THROW(one_word->encode(words), StopError);
  EXPECT_THROW(split->encode(words), StopError);
  EXPECT_THROW(with_added->encode(words), StopError);
  EXPECT_THROW(normalized->encode(marks), StopError);
}

TEST(TokenizerJson, SeesAStopRequestWhileItIsRead) {
  const StopRequests requests;
  OrderedJson json = small_json();
  for (int i = 0; i < 5000; ++i) json["model"]["vocab"]["t" + std::to_string(i)] = 7 + i;
  set_max_time(0);
  EXPECT_THROW(load_json(json), StopError);
}

}  // namespace
}  // namespace lora_train::tokenizer
