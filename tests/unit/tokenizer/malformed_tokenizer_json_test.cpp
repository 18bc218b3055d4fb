// tokenizer.json files that are wrong in one place each: the error names it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "tokenizer/json_tokenizer.h"

namespace lora_train::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

void expect_refused(const std::string& bytes, const std::string& where, const std::string& message) {
  try {
    make_json_tokenizer(bytes, "tokenizer.json", {}, {});
    FAIL() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.where(), "tokenizer.json" + where);
    EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    EXPECT_EQ(error.exit_code(), ExitCode::kFormat);
  }
}

struct BadCase {
  const char* name;
  const char* pointer;  // JSON pointer to what is replaced
  const char* value;
  const char* where;    // behind "tokenizer.json"
  const char* message;  // part of it
};

void PrintTo(const BadCase& c, std::ostream* out) { *out << c.name; }

class BadTokenizerJson : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadTokenizerJson, IsRefusedByName) {
  const BadCase& bad = GetParam();
  Json json = Json::parse(R"({
    "added_tokens": [{"id": 7, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, " ": 6},
              "merges": ["a b", ["ab", "c"]]}})");
  make_json_tokenizer(json.dump(), "good", {}, {});
  json[Json::json_pointer(bad.pointer)] = Json::parse(bad.value);
  expect_refused(json.dump(), bad.where, bad.message);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTokenizerJson,
    ::testing::Values(
        BadCase{"UnknownKey", "/extra", "1", "", "\"extra\" is not supported"},
        BadCase{"Normalizer", "/normalizer", R"({"type": "Lowercase"})", ": normalizer", "\"Lowercase\" is not built"},
        BadCase{"NormalizerInSequence", "/normalizer",
                R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})",
                ": normalizer.normalizers[1]", "\"Nmt\""},
        BadCase{"NormalizerNoType", "/normalizer", "{}", ": normalizer", "\"type\" is missing"},
        BadCase{"ReplaceRegex", "/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a("}, "content": ""})",
                ": normalizer.pattern.Regex", "does not compile"},
        BadCase{"PreTokenizer", "/pre_tokenizer", R"({"type": "Whitespace"})", ": pre_tokenizer",
                "\"Whitespace\" is not built"},
        BadCase{"SplitBehavior", "/pre_tokenizer",
                R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Deleted"})", ": pre_tokenizer.behavior",
                "\"Deleted\" is none of Isolated"},
        BadCase{"SplitInvert", "/pre_tokenizer",
                R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": 1})",
                ": pre_tokenizer.invert", "true or false"},
        BadCase{"DigitsFlag", "/pre_tokenizer", R"({"type": "Digits", "individual_digits": "no"})",
                ": pre_tokenizer.individual_digits", "true or false"},
        BadCase{"SplitPattern", "/pre_tokenizer",
                R"({"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"})",
                ": pre_tokenizer.pattern.Regex", "does not compile"},
        BadCase{"ByteLevelNotLast", "/pre_tokenizer",
                R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]})",
                ": pre_tokenizer.pretokenizers[1]", "last"},
        BadCase{"PostProcessor", "/post_processor", R"({"type": "BertProcessing"})", ": post_processor",
                "BertProcessing"},
        BadCase{"Decoder", "/decoder", R"({"type": "WordPiece"})", ": decoder", "WordPiece"},
        BadCase{"Model", "/model/type", "\"Unigram\"", ": model", "\"Unigram\" is not built"},
        BadCase{"Dropout", "/model/dropout", "0.1", ": model.dropout", "dropout"},
        BadCase{"Prefix", "/model/continuing_subword_prefix", "\"##\"", ": model.continuing_subword_prefix", "affix"},
        BadCase{"Suffix", "/model/end_of_word_suffix", "\"</w>\"", ": model.end_of_word_suffix", "affix"},
        BadCase{"UnknownModelKey", "/model/new_feature", "true", ": model", "new_feature"},
        BadCase{"UnkNotInVocabulary", "/model/unk_token", "\"zz\"", ": model.unk_token", "not in model.vocab"},
        BadCase{"VocabularyIsArray", "/model/vocab", "[]", ": model.vocab", "expected an object"},
        BadCase{"IdIsText", "/model/vocab/a", "\"1\"", ": model.vocab[\"a\"]", "expected an id"},
        BadCase{"IdIsNegative", "/model/vocab/a", "-1", ": model.vocab[\"a\"]", "expected an id"},
        BadCase{"IdIsHuge", "/model/vocab/a", "4000000000", ": model.vocab[\"a\"]", "expected an id"},
        BadCase{"IdTwice", "/model/vocab/a", "2", ": model.vocab[\"b\"]", "occurs twice"},
        BadCase{"MergeUnknown", "/model/merges/0", "\"a z\"", ": model.merges[0]", "\"az\" is not in model.vocab"},
        BadCase{"MergeOneWord", "/model/merges/1", "\"ab\"", ": model.merges[1]", "one space"},
        BadCase{"MergeThreeWords", "/model/merges/1", "\"a b c\"", ": model.merges[1]", "one space"},
        BadCase{"MergeNumber", "/model/merges/0", "7", ": model.merges[0]", "expected"},
        BadCase{"MergesMissing", "/model/merges", "null", ": model.merges", "expected an array"},
        BadCase{"AddedNoId", "/added_tokens/0", R"({"content": "x"})", ": added_tokens[0]", "\"id\" is missing"},
        BadCase{"AddedHugeId", "/added_tokens/0/id", "99999999999", ": added_tokens[0].id", "not in [0, 2^24)"},
        BadCase{"AddedContentNumber", "/added_tokens/0/content", "5", ": added_tokens[0].content", "expected a string"},
        BadCase{"AddedFlag", "/added_tokens/0/lstrip", "\"yes\"", ": added_tokens[0].lstrip", "true or false"},
        BadCase{"AddedIdTaken", "/added_tokens/0/id", "3", ": added_tokens[0]", "already belongs to \"c\""},
        BadCase{"AddedOtherId", "/added_tokens/0/content", "\"ab\"", ": added_tokens[0]", "id 4 in model.vocab"},
        BadCase{"ModelMissing", "/model", "null", ": model", "expected an object, found null"},
        BadCase{"VocabularyMissing", "/model/vocab", "null", ": model.vocab", "expected an object"},
        BadCase{"IdIsFraction", "/model/vocab/a", "1.5", ": model.vocab[\"a\"]", "expected an id"},
        BadCase{"IdBeyond64Bits", "/model/vocab/a", "99999999999999999999", ": model.vocab[\"a\"]", "expected an id"},
        BadCase{"UnkIsNumber", "/model/unk_token", "5", ": model.unk_token", "expected a string"},
        BadCase{"IgnoreMergesIsText", "/model/ignore_merges", "\"yes\"", ": model.ignore_merges", "true or false"},
        BadCase{"MergeEmptyHalf", "/model/merges/0", "\"a \"", ": model.merges[0]", "token \"\" is not in"},
        BadCase{"MergeOfThree", "/model/merges/0", R"(["a", "b", "c"])", ": model.merges[0]", "expected"},
        BadCase{"MergesAreText", "/model/merges", "\"a b\"", ": model.merges", "expected an array"},
        BadCase{"ByteFallbackUnderByteLevel", "/pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": false})",
                ": model.byte_fallback", "not built"},
        BadCase{"SplitWithoutPattern", "/pre_tokenizer", R"({"type": "Split", "behavior": "Isolated"})",
                ": pre_tokenizer", "\"pattern\" is missing"},
        BadCase{"SplitOneByte", "/pre_tokenizer",
                R"({"type": "Split", "pattern": {"Regex": "\\C"}, "behavior": "Isolated"})",
                ": pre_tokenizer.pattern.Regex", "does not compile"},
        BadCase{"SplitHugeRepeat", "/pre_tokenizer",
                R"x({"type": "Split", "pattern": {"Regex": "(((a{60000}){60000}){60000})"}, "behavior": "Isolated"})x",
                ": pre_tokenizer.pattern.Regex", "does not compile"},
        BadCase{"SplitClassInClass", "/pre_tokenizer",
                R"({"type": "Split", "pattern": {"Regex": "[a[bc]]"}, "behavior": "Isolated"})",
                ": pre_tokenizer.pattern.Regex", "class in a class"},
        BadCase{"SplitPossessiveInterval", "/pre_tokenizer",
                R"({"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}+"}, "behavior": "Isolated"})",
                ": pre_tokenizer.pattern.Regex", "repetition {1,3}+, which is not built"},
        BadCase{"SplitLazyInterval", "/pre_tokenizer",
                R"({"type": "Split", "pattern": {"Regex": "a{2}?"}, "behavior": "Isolated"})",
                ": pre_tokenizer.pattern.Regex", "repetition {2}?, which is not built"},
        BadCase{"SplitOption", "/pre_tokenizer",
                R"x({"type": "Split", "pattern": {"Regex": "(?m:a.b)"}, "behavior": "Isolated"})x",
                ": pre_tokenizer.pattern.Regex", "option (?m, which is not built"},
        BadCase{"MetaspaceTwoCharacters", "/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})",
                ": pre_tokenizer.replacement", "one character"},
        BadCase{"MetaspaceScheme", "/pre_tokenizer",
                R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "sometimes"})",
                ": pre_tokenizer.prepend_scheme", "always, first, never"},
        BadCase{"ByteLevelUnknownKey", "/pre_tokenizer", R"({"type": "ByteLevel", "reversed": true})",
                ": pre_tokenizer", "\"reversed\""},
        BadCase{"PrependNumber", "/normalizer", R"({"type": "Prepend", "prepend": 7})", ": normalizer.prepend",
                "expected a string"},
        BadCase{"ReplaceNothing", "/normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": "a"})",
                ": normalizer.pattern", "empty"},
        BadCase{"NormalizersAreOne", "/normalizer", R"({"type": "Sequence", "normalizers": {"type": "NFC"}})",
                ": normalizer.normalizers", "expected an array"},
        BadCase{"StripNegative", "/decoder", R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})",
                ": decoder.start", "not in [0"},
        BadCase{"StripTwoCharacters", "/decoder", R"({"type": "Strip", "content": "ab", "start": 1, "stop": 0})",
                ": decoder.content", "one character"},
        BadCase{"DecoderReplaceRegex", "/decoder", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})",
                ": decoder.pattern", "\"Regex\" is not supported"},
        BadCase{"DecoderIsNumber", "/decoder", R"({"type": "Sequence", "decoders": [3]})", ": decoder.decoders[0]",
                "expected an object"},
        BadCase{"AddedTokensAreObject", "/added_tokens", "{}", ": added_tokens", "expected an array"},
        BadCase{"AddedNegativeId", "/added_tokens/0/id", "-4", ": added_tokens[0].id", "not in [0, 2^24)"},
        BadCase{"AddedUnknownFlag", "/added_tokens/0/fuzzy", "true", ": added_tokens[0]", "\"fuzzy\""},
        BadCase{"AddedTwice", "/added_tokens/1", R"({"id": 9, "content": "<s>"})", ": added_tokens[1]", "id 7 before"},
        BadCase{"IdFarAbove", "/model/vocab/a", "16777215", ": model.vocab[\"a\"]", "far above the 7 tokens"},
        BadCase{"AddedFarAbove", "/added_tokens/0/id", "16777215", ": added_tokens[0]", "far above the 7 tokens"},
        BadCase{
            "PostProcessorTokenBehind", "/post_processor",
            R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "a"}}]})",
            ": post_processor.single", "one special token before it"},
        BadCase{
            "PostProcessorUnknownToken", "/post_processor",
            R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "?"}}, {"Sequence": {"id": "A"}}]})",
            ": post_processor", "\"?\" is not in the vocabulary"},
        BadCase{"PostProcessorNoTemplate", "/post_processor", R"({"type": "TemplateProcessing"})", ": post_processor",
                "\"single\" is missing"}),
    [](const auto& c) { return std::string(c.param.name); });

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
  expect_refused("{\"model\": " + std::string(300, '{'), "", "nested deeper than 256 levels");
}

TEST(MalformedTokenizerJson, AKeyThatOccursTwiceIsRefused) {
  expect_refused(R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "a": 2}, "merges": []}})", "",
                 "key \"a\" occurs twice");
}

}  // namespace
}  // namespace lora_train::tokenizer
