// tokenizer.json files made by hand: every flag, and every way to be wrong.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/loaded_tokenizer.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"
#include "tokenizer/tokenizer_files.h"
#include "unit/tokenizer/bad_json_case.h"

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

OrderedJson added(int id, const std::string& content, OrderedJson flags = OrderedJson::object()) {
  OrderedJson token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                       {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(flags);
  return token;
}

class TokenizerJson : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const OrderedJson& config = nullptr, const TokenizerOptions& options = {}) const {
    const TemporaryFolder folder;
    testing_support::write_text(folder / "tokenizer.json", json_.dump());
    if (!config.is_null()) testing_support::write_text(folder / "tokenizer_config.json", config.dump());
    return Tokenizer::load(folder.path(), options);
  }
  static Ids ids(const Tokenizer& tokenizer, const std::string& text) { return tokenizer.encode(text).ids; }
  Ids ids(const std::string& text) const { return ids(*load(), text); }

  OrderedJson json_ = small_json();
};

TEST_F(TokenizerJson, ReadsBothSpellingsOfMergesAndKeepsTheLastOfEqualOnes) {
  EXPECT_EQ(ids("abcab"), (Ids{5, 4}));
  EXPECT_EQ(ids("bc"), (Ids{2, 3}));
  json_["model"]["vocab"]["bc"] = 7;
  EXPECT_EQ(ids("bc"), (Ids{2, 3}));
  json_["model"]["ignore_merges"] = true;
  EXPECT_EQ(ids("bc"), (Ids{7})) << "a whole piece";
  json_["model"]["ignore_merges"] = false;
  json_["model"]["merges"] = {"a b", "b c"};
  EXPECT_EQ(ids("abc"), (Ids{4, 3}));
  for (int i = 0; i < 1000; ++i) json_["model"]["merges"].push_back("a b");
  EXPECT_EQ(ids("abc"), (Ids{1, 7})) << "as Hugging Face does";
}

TEST_F(TokenizerJson, FusesUnknownCharactersOnlyWhenAskedAndFallsBackToBytesOnlyWhenAllExist) {
  const Encoding fused = load()->encode("a\xC3\xA9zb", true);
  EXPECT_EQ(fused.ids, (Ids{1, 0, 2}));
  EXPECT_EQ(fused.offsets, (std::vector<ByteRange>{{0, 1}, {1, 4}, {4, 5}}));
  json_["model"]["fuse_unk"] = false;
  EXPECT_EQ(ids("a\xC3\xA9zb"), (Ids{1, 0, 0, 2}));
  json_["model"].erase("unk_token");
  EXPECT_EQ(ids("a\xC3\xA9zb"), (Ids{4})) << "without unk_token unknown characters are dropped";
  json_ = small_json();
  json_["model"]["byte_fallback"] = true;
  json_["model"]["vocab"]["<0xC3>"] = 7;
  EXPECT_EQ(ids("\xC3\xA9"), (Ids{0}));
  json_["model"]["vocab"]["<0xA9>"] = 8;
  EXPECT_EQ(ids("\xC3\xA9"), (Ids{7, 8}));
}

TEST_F(TokenizerJson, AddedTokensMatchLeftmostLongestWithTheirFlags) {
  json_["added_tokens"] = {added(7, "<x>"), added(8, "<x><y>"), added(9, "<y>")};
  EXPECT_EQ(ids("a<x><y><y>b<x>"), (Ids{1, 8, 9, 2, 7}));
  json_["added_tokens"] = {added(7, "<l>", {{"lstrip", true}}), added(8, "<r>", {{"rstrip", true}}),
                           added(9, "cab", {{"single_word", true}})};
  const auto tokenizer = load();
  EXPECT_EQ(ids(*tokenizer, "a  <l> b"), (Ids{1, 7, 6, 2}));
  EXPECT_EQ(ids(*tokenizer, "a <r> \n b"), (Ids{1, 6, 8, 2}));
  EXPECT_EQ(ids(*tokenizer, "a cab b"), (Ids{1, 6, 9, 6, 2}));
  EXPECT_EQ(ids(*tokenizer, "acab b"), (Ids{1, 3, 4, 6, 2}));
  EXPECT_EQ(tokenizer->encode("a  <l>", true).offsets.back(), ByteRange(1, 6));
  json_["added_tokens"] = {added(7, "<r>", {{"rstrip", true}}), added(8, "\n")};
  EXPECT_EQ(ids("<r>\nb"), (Ids{7, 8, 2})) << "white space that another token took";
}

TEST_F(TokenizerJson, NormalizedAddedTokensAreLookedForAfterNormalisation) {
  json_["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "z"}}}, {"content", "a"}};
  json_["added_tokens"] = {added(7, "z!", {{"normalized", true}}), added(8, "z?", {{"normalized", false}})};
  const auto tokenizer = load();
  EXPECT_EQ(ids(*tokenizer, "bz!"), (Ids{2, 7}));
  EXPECT_EQ(ids(*tokenizer, "ba!"), (Ids{2, 7})) << "its normal form is a!";
  EXPECT_EQ(ids(*tokenizer, "bz?"), (Ids{2, 8}));
  EXPECT_EQ(ids(*tokenizer, "ba?"), (Ids{2, 1, 0}));
}

TEST_F(TokenizerJson, SpecialTokensOfTheSideFiles) {
  json_["added_tokens"] = {added(7, "<s>", {{"special", true}}), added(8, "<e>", {{"special", true}})};
  const TemporaryFolder folder;
  testing_support::write_text(folder / "tokenizer.json", json_.dump());
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

TEST_F(TokenizerJson, SpecialTokensAreFoundInTextUnlessItIsReadAsText) {
  const OrderedJson config = {{"eos_token", "abc"}, {"additional_special_tokens", {"bc"}}};
  json_["model"]["vocab"]["bc"] = 7;
  const auto tokenizer = load(config);
  EXPECT_EQ(ids(*tokenizer, "cabcbc"), (Ids{3, 5, 7})) << "no list of added tokens has them";
  EXPECT_TRUE(tokenizer->is_special(5));
  EXPECT_EQ(tokenizer->eos_id(), 5);
  json_["added_tokens"] = {added(8, "<s>", {{"special", true}}), added(9, "<n>")};
  EXPECT_EQ(ids("<s>a<n>"), (Ids{8, 1, 9}));
  EXPECT_EQ(ids(*load(nullptr, {.special_tokens_in_text = false}), "<s>a<n>"), (Ids{0, 1, 9}));
}

TEST_F(TokenizerJson, TakesBosFromThePostProcessor) {
  json_["post_processor"] = OrderedJson::parse(R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "c", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]})");
  EXPECT_EQ(load()->bos_id(), 3);
  EXPECT_TRUE(load()->adds_bos());
  EXPECT_FALSE(load({{"bos_token", nullptr}})->adds_bos()) << "tokenizer_config.json says there is none";
}

TEST_F(TokenizerJson, MetaspaceDecoderDropsTheSpacesOfTheFirstToken) {
  json_["decoder"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  json_["model"]["vocab"]["__a_"] = 7;
  EXPECT_EQ(load()->decode(Ids{7, 7}), "a  a ");
  json_["decoder"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
  EXPECT_EQ(load()->decode(Ids{7}), "  a ");
}

TEST_F(TokenizerJson, WarnsOfLlama3PatternInMistralModelsAndChangesNothing) {
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  json_["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto warnings_of = [&](const char* model_type) {
    const TemporaryFolder folder;
    testing_support::write_text(folder / "tokenizer.json", json_.dump());
    testing_support::write_text(folder / "config.json", OrderedJson{{"model_type", model_type}}.dump());
    set_log_file(folder / "log");
    const auto tokenizer = Tokenizer::load(folder.path());
    set_log_file({});
    EXPECT_EQ(ids(*tokenizer, "abc"), (Ids{5}));
    return read_file(folder / "log");
  };
  EXPECT_SAYS(warnings_of("mistral"), "fix_mistral_regex");
  EXPECT_EQ(warnings_of("llama"), "");
}

TEST_F(TokenizerJson, FingerprintFollowsFilesAndOptionsAndInvalidUtf8IsRefused) {
  const auto first = load(), same = load();
  EXPECT_EQ(first->fingerprint(), same->fingerprint());
  EXPECT_NE(first->fingerprint(), load(OrderedJson{{"bos_token", "a"}})->fingerprint());
  EXPECT_NE(first->fingerprint(), load(nullptr, {.special_tokens_in_text = false})->fingerprint());
  const std::string said = testing_support::refusal<DataError>([&] { first->encode("ab\xFF"); });
  EXPECT_EQ(said.find("byte 2: "), 0U) << said;
}

TEST_F(TokenizerJson, EncodesTheSameFromManyThreads) {
  LORA_TRAIN_REQUIRE_DATA(folder, "qwen2.5");
  LORA_TRAIN_REQUIRE_DATA(lines, "text/multilingual.txt");
  const Tokenizer& tokenizer = testing_support::loaded_tokenizer(folder);
  const Ids first = ids(tokenizer, read_file(lines));
  const std::string text = tokenizer.decode(first);  // in normal form
  const Ids want = ids(tokenizer, text);
  EXPECT_EQ(first, want);
  std::vector<std::jthread> threads;
  std::vector<Ids> got(4);
  for (Ids& out : got) threads.emplace_back([&] { out = ids(tokenizer, text); });
  threads.clear();
  for (const Ids& out : got) EXPECT_EQ(out, want);
  EXPECT_TRUE(tokenizer.decode(want) == text);
}

TEST_F(TokenizerJson, SeesAStopRequestInsideALongTextAndWhileItIsRead) {
  const StopRequests requests;
  constexpr int kMany = 10000;
  std::string words, marks = "a";
  for (int i = 0; i < kMany; ++i) words += "ab c ";
  for (int i = 0; i < kMany; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";  // of classes 230 and 220
  const OrderedJson split = {{"type", "Split"}, {"pattern", {{"Regex", "\\s"}}}, {"behavior", "Isolated"}};
  for (const auto& [key, value, text] : std::vector<std::tuple<const char*, OrderedJson, std::string>>{
           {"normalizer", nullptr, words},
           {"pre_tokenizer", split, words},
           {"added_tokens", OrderedJson::array({added(7, "<x>")}), words},
           {"normalizer", {{"type", "NFC"}}, marks}}) {
    json_ = small_json();
    json_[key] = value;
    set_max_time(1000);
    const auto tokenizer = load();
    set_max_time(0);
    EXPECT_THROW(tokenizer->encode(text), StopError) << key;
  }
  for (int i = 0; i < 5000; ++i) json_["model"]["vocab"]["t" + std::to_string(i)] = 7 + i;
  EXPECT_THROW(load(), StopError);
}

void expect_refused(const std::string& bytes, const std::string& where, const std::string& message) {
  testing_support::expect_refused(make_json_tokenizer, bytes, where, message);
}

OrderedJson good_json() {
  OrderedJson json = small_json();
  json["added_tokens"] = OrderedJson::array({added(7, "<s>")});
  json["model"]["byte_fallback"] = true;
  return json;
}

TEST(MalformedTokenizerJson, AProcessorIsRefusedByName) {
  testing_support::expect_refused(
      make_json_tokenizer, good_json(),
      {{"/normalizer", R"({"type": "Lowercase"})", ": normalizer.type", "\"Lowercase\" is not supported"},
       {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})",
        ": normalizer.normalizers[1].type", "\"Nmt\""},
       {"/normalizer", "{}", ": normalizer", "\"type\" is missing"},
       {"/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a("}, "content": ""})",
        ": normalizer.pattern.Regex", "does not compile"},
       {"/pre_tokenizer", R"({"type": "Whitespace"})", ": pre_tokenizer.type", "\"Whitespace\" is not supported"},
       {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Deleted"})",
        ": pre_tokenizer.behavior", "\"Deleted\" is not supported; expected one of Isolated"},
       {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": 1})",
        ": pre_tokenizer.invert", "true or false"},
       {"/pre_tokenizer", R"({"type": "Digits", "individual_digits": "no"})", ": pre_tokenizer.individual_digits",
        "true or false"},
       {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]})",
        ": pre_tokenizer.pretokenizers[1]", "last"},
       {"/post_processor", R"({"type": "BertProcessing"})", ": post_processor", "BertProcessing"},
       {"/decoder", R"({"type": "WordPiece"})", ": decoder.type", "WordPiece"},
       {"/pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": false})", ": model.byte_fallback",
        "not supported"},
       {"/pre_tokenizer", R"({"type": "Split", "behavior": "Isolated"})", ": pre_tokenizer", "\"pattern\" is missing"},
       {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})", ": pre_tokenizer.replacement",
        "one character"},
       {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "sometimes"})",
        ": pre_tokenizer.prepend_scheme", "always, first, never"},
       {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": 7, "split": false})",
        ": pre_tokenizer.prepend_scheme", "expected a string"},
       {"/pre_tokenizer", R"({"type": "ByteLevel", "reversed": true})", ": pre_tokenizer", "\"reversed\""},
       {"/normalizer", R"({"type": "Prepend", "prepend": 7})", ": normalizer.prepend", "expected a string"},
       {"/normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": "a"})", ": normalizer.pattern",
        "empty"},
       {"/normalizer", R"({"type": "Sequence", "normalizers": {"type": "NFC"}})", ": normalizer.normalizers",
        "expected an array"},
       {"/decoder", R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})", ": decoder.start", "not in [0"},
       {"/decoder", R"({"type": "Strip", "content": "ab", "start": 1, "stop": 0})", ": decoder.content",
        "one character"},
       {"/decoder", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})", ": decoder.pattern",
        "\"Regex\" is not supported"},
       {"/decoder", R"({"type": "Sequence", "decoders": [3]})", ": decoder.decoders[0]", "expected an object"},
       {"/post_processor",
        R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "a"}}]})",
        ": post_processor.single", "one special token before it"},
       {"/post_processor",
        R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "?"}}, {"Sequence": {"id": "A"}}]})",
        ": post_processor", "\"?\" is not in the vocabulary"},
       {"/post_processor", R"({"type": "TemplateProcessing"})", ": post_processor", "\"single\" is missing"}});
}

TEST(MalformedTokenizerJson, AModelOrTokenIsRefusedByName) {
  testing_support::expect_refused(
      make_json_tokenizer, good_json(),
      {{"/extra", "1", "", "\"extra\" is not supported"},
       {"/model/type", "\"Unigram\"", ": model", "\"Unigram\" is not supported"},
       {"/model/dropout", "0.1", ": model.dropout", "dropout"},
       {"/model/continuing_subword_prefix", "\"##\"", ": model.continuing_subword_prefix", "affix"},
       {"/model/end_of_word_suffix", "\"</w>\"", ": model.end_of_word_suffix", "affix"},
       {"/model/new_feature", "true", ": model", "new_feature"},
       {"/model/unk_token", "\"zz\"", ": model.unk_token", "not in model.vocab"},
       {"/model/vocab", "[]", ": model.vocab", "expected an object"},
       {"/model/vocab/a", "\"1\"", ": model.vocab[\"a\"]", "expected an id"},
       {"/model/vocab/a", "-1", ": model.vocab[\"a\"]", "expected an id"},
       {"/model/vocab/a", "4000000000", ": model.vocab[\"a\"]", "expected an id"},
       {"/model/vocab/a", "2", ": model.vocab[\"b\"]", "occurs twice"},
       {"/model/merges/0", "\"a z\"", ": model.merges[0]", "\"az\" is not in model.vocab"},
       {"/model/merges/1", "\"ab\"", ": model.merges[1]", "one space"},
       {"/model/merges/1", "\"a b c\"", ": model.merges[1]", "one space"},
       {"/model/merges/0", "7", ": model.merges[0]", "expected"},
       {"/model/merges", "null", ": model.merges", "expected an array"},
       {"/added_tokens/0", R"({"content": "x"})", ": added_tokens[0]", "\"id\" is missing"},
       {"/added_tokens/0/id", "99999999999", ": added_tokens[0].id", "not in [0, 2^24)"},
       {"/added_tokens/0/content", "5", ": added_tokens[0].content", "expected a string"},
       {"/added_tokens/0/lstrip", "\"yes\"", ": added_tokens[0].lstrip", "true or false"},
       {"/added_tokens/0/id", "3", ": added_tokens[0]", "already belongs to \"c\""},
       {"/added_tokens/0/content", "\"ab\"", ": added_tokens[0]", "already has id 4"},
       {"/model", "null", ": model", "expected an object, found null"},
       {"/model/vocab", "null", ": model.vocab", "expected an object"},
       {"/model/vocab/a", "1.5", ": model.vocab[\"a\"]", "expected an id"},
       {"/model/vocab/a", "99999999999999999999", ": model.vocab[\"a\"]", "expected an id"},
       {"/model/unk_token", "5", ": model.unk_token", "expected a string"},
       {"/model/ignore_merges", "\"yes\"", ": model.ignore_merges", "true or false"},
       {"/model/merges/0", "\"a \"", ": model.merges[0]", "token \"\" is not in"},
       {"/model/merges/0", R"(["a", "b", "c"])", ": model.merges[0]", "expected"},
       {"/model/merges", "\"a b\"", ": model.merges", "expected an array"},
       {"/added_tokens", "{}", ": added_tokens", "expected an array"},
       {"/added_tokens/0/id", "-4", ": added_tokens[0].id", "not in [0, 2^24)"},
       {"/added_tokens/0/fuzzy", "true", ": added_tokens[0]", "\"fuzzy\""},
       {"/added_tokens/1", R"({"id": 9, "content": "<s>"})", ": added_tokens[1]", "already has id 7"},
       {"/model/vocab/a", "16777215", ": model.vocab[\"a\"]", "far above the 7 tokens"},
       {"/added_tokens/0/id", "16777215", ": added_tokens[0]", "far above the 7 tokens"}});
}

TEST(MalformedTokenizerJson, APatternIsRefusedWithWhatItUses) {
  OrderedJson json = good_json();
  for (const auto& [pattern, message] : std::vector<std::pair<const char*, const char*>>{
           {R"x(a()x", "does not compile"},
           {R"x(\C)x", "uses \\C, which is not supported"},
           {R"x((((a{60000}){60000}){60000}))x", "does not compile"},
           {R"x([a[bc]])x", "class in a class"},
           {R"x(\p{N}{1,3}+)x", "repetition {1,3}+, which is not supported"},
           {R"x(a{2}?)x", "repetition {2}?, which is not supported"},
           {R"x((?m:a.b))x", "a group that begins with (?m, which is not supported"}}) {
    SCOPED_TRACE(pattern);
    json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    expect_refused(json.dump(), ": pre_tokenizer.pattern.Regex", message);
  }
}

TEST(MalformedTokenizerJson, BrokenJsonIsRefusedWithItsLine) {
  expect_refused("", ":1", "not valid JSON at byte");
  expect_refused("{\n\"model\": {\n", ":3", "not valid JSON at byte");
  expect_refused("{\"model\": NaN}", ":1", "not valid JSON at byte");
  expect_refused("{} {}", ":1", "not valid JSON at byte");
  expect_refused("{\"a\": \"\xFF\"}", ":1", "not valid JSON at byte");
  expect_refused("{\"a\": 1e999}", "", "not valid JSON");
  expect_refused("[]", "", "expected an object, found array");
  expect_refused("null", "", "expected an object, found null");
  expect_refused(std::string(100000, '['), "", "nested deeper than 256 levels");
  std::string objects;
  for (int i = 0; i < 300; ++i) objects += "{\"a\": ";
  expect_refused(objects, "", "nested deeper than 256 levels");
  expect_refused(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "a": 2}, "merges": []}})", "",
                 "key \"a\" occurs twice");
}

TEST(MalformedTokenizerJson, MoreEqualMergesThanNewOnesAreRefused) {
  const std::string start = R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [)";
  for (const std::string merge : {R"("a b")", R"(["a", "b"])", "0", "null", "true", "1.5", "-1", "[]", "{}"}) {
    std::string text = start + merge;
    for (int i = 0; i < 1001; ++i) text += "," + merge;
    expect_refused(text + "]}}", ": model.merges[1001]", "repeats an earlier merge, as do 1000 others");
  }
}

}  // namespace
}  // namespace lora_train::tokenizer
