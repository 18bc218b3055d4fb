// tokenizer.json files that are wrong in one place each: the error names it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tokenizer/tokenizer_files.h"
#include "unit/tokenizer/bad_json_case.h"

namespace lora_train::tokenizer {
namespace {

using OrderedJson = nlohmann::ordered_json;

using testing_support::BadJsonCase;

void expect_refused(const std::string& bytes, const std::string& where, const std::string& message) {
  testing_support::expect_refused(make_json_tokenizer, bytes, where, message);
}

class BadTokenizerJson : public ::testing::TestWithParam<BadJsonCase> {};

TEST_P(BadTokenizerJson, IsRefusedByName) {
  const BadJsonCase& bad = GetParam();
  const OrderedJson json = OrderedJson::parse(R"({
    "added_tokens": [{"id": 7, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, " ": 6},
              "merges": ["a b", ["ab", "c"]]}})");
  make_json_tokenizer(json.dump(), "good", {}, {});
  expect_refused(bad.bytes(json), bad.where, bad.message);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTokenizerJson,
    ::testing::Values(
        BadJsonCase{"UnknownKey", "/extra", "1", "", "\"extra\" is not supported"},
        BadJsonCase{"Normalizer", "/normalizer", R"({"type": "Lowercase"})", ": normalizer.type",
                    "\"Lowercase\" is not supported"},
        BadJsonCase{"NormalizerInSequence", "/normalizer",
                    R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})",
                    ": normalizer.normalizers[1].type", "\"Nmt\""},
        BadJsonCase{"NormalizerNoType", "/normalizer", "{}", ": normalizer", "\"type\" is missing"},
        BadJsonCase{"ReplaceRegex", "/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a("}, "content": ""})",
                    ": normalizer.pattern.Regex", "does not compile"},
        BadJsonCase{"PreTokenizer", "/pre_tokenizer", R"({"type": "Whitespace"})", ": pre_tokenizer.type",
                    "\"Whitespace\" is not supported"},
        BadJsonCase{"SplitBehavior", "/pre_tokenizer",
                    R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Deleted"})",
                    ": pre_tokenizer.behavior", "\"Deleted\" is not supported; expected one of Isolated"},
        BadJsonCase{"SplitInvert", "/pre_tokenizer",
                    R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": 1})",
                    ": pre_tokenizer.invert", "true or false"},
        BadJsonCase{"DigitsFlag", "/pre_tokenizer", R"({"type": "Digits", "individual_digits": "no"})",
                    ": pre_tokenizer.individual_digits", "true or false"},
        BadJsonCase{"SplitPattern", "/pre_tokenizer",
                    R"({"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"})",
                    ": pre_tokenizer.pattern.Regex", "does not compile"},
        BadJsonCase{"ByteLevelNotLast", "/pre_tokenizer",
                    R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]})",
                    ": pre_tokenizer.pretokenizers[1]", "last"},
        BadJsonCase{"PostProcessor", "/post_processor", R"({"type": "BertProcessing"})", ": post_processor",
                    "BertProcessing"},
        BadJsonCase{"Decoder", "/decoder", R"({"type": "WordPiece"})", ": decoder.type", "WordPiece"},
        BadJsonCase{"Model", "/model/type", "\"Unigram\"", ": model", "\"Unigram\" is not supported"},
        BadJsonCase{"Dropout", "/model/dropout", "0.1", ": model.dropout", "dropout"},
        BadJsonCase{"Prefix", "/model/continuing_subword_prefix", "\"##\"", ": model.continuing_subword_prefix",
                    "affix"},
        BadJsonCase{"Suffix", "/model/end_of_word_suffix", "\"</w>\"", ": model.end_of_word_suffix", "affix"},
        BadJsonCase{"UnknownModelKey", "/model/new_feature", "true", ": model", "new_feature"},
        BadJsonCase{"UnkNotInVocabulary", "/model/unk_token", "\"zz\"", ": model.unk_token", "not in model.vocab"},
        BadJsonCase{"VocabularyIsArray", "/model/vocab", "[]", ": model.vocab", "expected an object"},
        BadJsonCase{"IdIsText", "/model/vocab/a", "\"1\"", ": model.vocab[\"a\"]", "expected an id"},
        BadJsonCase{"IdIsNegative", "/model/vocab/a", "-1", ": model.vocab[\"a\"]", "expected an id"},
        BadJsonCase{"IdIsHuge", "/model/vocab/a", "4000000000", ": model.vocab[\"a\"]", "expected an id"},
        BadJsonCase{"IdTwice", "/model/vocab/a", "2", ": model.vocab[\"b\"]", "occurs twice"},
        BadJsonCase{"MergeUnknown", "/model/merges/0", "\"a z\"", ": model.merges[0]", "\"az\" is not in model.vocab"},
        BadJsonCase{"MergeOneWord", "/model/merges/1", "\"ab\"", ": model.merges[1]", "one space"},
        BadJsonCase{"MergeThreeWords", "/model/merges/1", "\"a b c\"", ": model.merges[1]", "one space"},
        BadJsonCase{"MergeNumber", "/model/merges/0", "7", ": model.merges[0]", "expected"},
        BadJsonCase{"MergesMissing", "/model/merges", "null", ": model.merges", "expected an array"},
        BadJsonCase{"AddedNoId", "/added_tokens/0", R"({"content": "x"})", ": added_tokens[0]", "\"id\" is missing"},
        BadJsonCase{"AddedHugeId", "/added_tokens/0/id", "99999999999", ": added_tokens[0].id", "not in [0, 2^24)"},
        BadJsonCase{"AddedContentNumber", "/added_tokens/0/content", "5", ": added_tokens[0].content",
                    "expected a string"},
        BadJsonCase{"AddedFlag", "/added_tokens/0/lstrip", "\"yes\"", ": added_tokens[0].lstrip", "true or false"},
        BadJsonCase{"AddedIdTaken", "/added_tokens/0/id", "3", ": added_tokens[0]", "already belongs to \"c\""},
        BadJsonCase{"AddedOtherId", "/added_tokens/0/content", "\"ab\"", ": added_tokens[0]", "already has id 4"},
        BadJsonCase{"ModelMissing", "/model", "null", ": model", "expected an object, found null"},
        BadJsonCase{"VocabularyMissing", "/model/vocab", "null", ": model.vocab", "expected an object"},
        BadJsonCase{"IdIsFraction", "/model/vocab/a", "1.5", ": model.vocab[\"a\"]", "expected an id"},
        BadJsonCase{"IdBeyond64Bits", "/model/vocab/a", "99999999999999999999", ": model.vocab[\"a\"]",
                    "expected an id"},
        BadJsonCase{"UnkIsNumber", "/model/unk_token", "5", ": model.unk_token", "expected a string"},
        BadJsonCase{"IgnoreMergesIsText", "/model/ignore_merges", "\"yes\"", ": model.ignore_merges", "true or false"},
        BadJsonCase{"MergeEmptyHalf", "/model/merges/0", "\"a \"", ": model.merges[0]", "token \"\" is not in"},
        BadJsonCase{"MergeOfThree", "/model/merges/0", R"(["a", "b", "c"])", ": model.merges[0]", "expected"},
        BadJsonCase{"MergesAreText", "/model/merges", "\"a b\"", ": model.merges", "expected an array"},
        BadJsonCase{"ByteFallbackUnderByteLevel", "/pre_tokenizer",
                    R"({"type": "ByteLevel", "add_prefix_space": false})", ": model.byte_fallback", "not supported"},
        BadJsonCase{"SplitWithoutPattern", "/pre_tokenizer", R"({"type": "Split", "behavior": "Isolated"})",
                    ": pre_tokenizer", "\"pattern\" is missing"},
        BadJsonCase{"SplitOneByte", "/pre_tokenizer",
                    R"({"type": "Split", "pattern": {"Regex": "\\C"}, "behavior": "Isolated"})",
                    ": pre_tokenizer.pattern.Regex", "uses \\C, which is not supported"},
        BadJsonCase{
            "SplitHugeRepeat", "/pre_tokenizer",
            R"x({"type": "Split", "pattern": {"Regex": "(((a{60000}){60000}){60000})"}, "behavior": "Isolated"})x",
            ": pre_tokenizer.pattern.Regex", "does not compile"},
        BadJsonCase{"SplitClassInClass", "/pre_tokenizer",
                    R"({"type": "Split", "pattern": {"Regex": "[a[bc]]"}, "behavior": "Isolated"})",
                    ": pre_tokenizer.pattern.Regex", "class in a class"},
        BadJsonCase{"SplitPossessiveInterval", "/pre_tokenizer",
                    R"({"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}+"}, "behavior": "Isolated"})",
                    ": pre_tokenizer.pattern.Regex", "repetition {1,3}+, which is not supported"},
        BadJsonCase{"SplitLazyInterval", "/pre_tokenizer",
                    R"({"type": "Split", "pattern": {"Regex": "a{2}?"}, "behavior": "Isolated"})",
                    ": pre_tokenizer.pattern.Regex", "repetition {2}?, which is not supported"},
        BadJsonCase{"SplitOption", "/pre_tokenizer",
                    R"x({"type": "Split", "pattern": {"Regex": "(?m:a.b)"}, "behavior": "Isolated"})x",
                    ": pre_tokenizer.pattern.Regex", "a group that begins with (?m, which is not supported"},
        BadJsonCase{"MetaspaceTwoCharacters", "/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})",
                    ": pre_tokenizer.replacement", "one character"},
        BadJsonCase{"MetaspaceScheme", "/pre_tokenizer",
                    R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "sometimes"})",
                    ": pre_tokenizer.prepend_scheme", "always, first, never"},
        BadJsonCase{"MetaspaceSchemeIsNumber", "/pre_tokenizer",
                    R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": 7, "split": false})",
                    ": pre_tokenizer.prepend_scheme", "expected a string"},
        BadJsonCase{"ByteLevelUnknownKey", "/pre_tokenizer", R"({"type": "ByteLevel", "reversed": true})",
                    ": pre_tokenizer", "\"reversed\""},
        BadJsonCase{"PrependNumber", "/normalizer", R"({"type": "Prepend", "prepend": 7})", ": normalizer.prepend",
                    "expected a string"},
        BadJsonCase{"ReplaceNothing", "/normalizer",
                    R"({"type": "Replace", "pattern": {"String": ""}, "content": "a"})", ": normalizer.pattern",
                    "empty"},
        BadJsonCase{"NormalizersAreOne", "/normalizer", R"({"type": "Sequence", "normalizers": {"type": "NFC"}})",
                    ": normalizer.normalizers", "expected an array"},
        BadJsonCase{"StripNegative", "/decoder", R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})",
                    ": decoder.start", "not in [0"},
        BadJsonCase{"StripTwoCharacters", "/decoder", R"({"type": "Strip", "content": "ab", "start": 1, "stop": 0})",
                    ": decoder.content", "one character"},
        BadJsonCase{"DecoderReplaceRegex", "/decoder",
                    R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})", ": decoder.pattern",
                    "\"Regex\" is not supported"},
        BadJsonCase{"DecoderIsNumber", "/decoder", R"({"type": "Sequence", "decoders": [3]})", ": decoder.decoders[0]",
                    "expected an object"},
        BadJsonCase{"AddedTokensAreObject", "/added_tokens", "{}", ": added_tokens", "expected an array"},
        BadJsonCase{"AddedNegativeId", "/added_tokens/0/id", "-4", ": added_tokens[0].id", "not in [0, 2^24)"},
        BadJsonCase{"AddedUnknownFlag", "/added_tokens/0/fuzzy", "true", ": added_tokens[0]", "\"fuzzy\""},
        BadJsonCase{"AddedTwice", "/added_tokens/1", R"({"id": 9, "content": "<s>"})", ": added_tokens[1]",
                    "already has id 7"},
        BadJsonCase{"IdFarAbove", "/model/vocab/a", "16777215", ": model.vocab[\"a\"]", "far above the 7 tokens"},
        BadJsonCase{"AddedFarAbove", "/added_tokens/0/id", "16777215", ": added_tokens[0]", "far above the 7 tokens"},
        BadJsonCase{
            "PostProcessorTokenBehind", "/post_processor",
            R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "a"}}]})",
            ": post_processor.single", "one special token before it"},
        BadJsonCase{
            "PostProcessorUnknownToken", "/post_processor",
            R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "?"}}, {"Sequence": {"id": "A"}}]})",
            ": post_processor", "\"?\" is not in the vocabulary"},
        BadJsonCase{"PostProcessorNoTemplate", "/post_processor", R"({"type": "TemplateProcessing"})",
                    ": post_processor", "\"single\" is missing"}),
    testing_support::case_name);

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
}

TEST(MalformedTokenizerJson, AKeyThatOccursTwiceIsRefused) {
  expect_refused(R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "a": 2}, "merges": []}})", "",
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
