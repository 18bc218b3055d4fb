// tekken.json files made by hand: ids, decoding, and every way to be wrong.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"
#include "tokenizer/tokenizer_files.h"
#include "unit/tokenizer/bad_json_case.h"

namespace lora_train::tokenizer {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;

std::string base64(std::string_view bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8U | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i) out += at + i <= bytes.size() ? kDigits[bits >> (18 - 6 * i) & 63U] : '=';
  }
  return out;
}

// The 256 bytes, then: "ab" 256, "abc" 257, "bc" 258, "zz" 259, "zzzzz" 260; four special tokens, one of them unnamed.
// The last token of the list is beyond what config asks for.
OrderedJson small_tekken() {
  OrderedJson json = OrderedJson::parse(R"x({
    "config": {"pattern": "[^\\s]+|\\s+", "num_vocab_tokens": 262, "default_vocab_size": 265,
               "default_num_special_tokens": 4, "version": "v7"},
    "vocab": [],
    "special_tokens": [{"rank": 0, "token_str": "<unk>", "is_control": true},
                       {"rank": 1, "token_str": "<s>", "is_control": true},
                       {"rank": 2, "token_str": "</s>", "is_control": true}]})x");
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"ab", "abc", "bc", "zz", "zzzzz", "abab"}) tokens.emplace_back(token);
  for (std::size_t rank = 0; rank < tokens.size(); ++rank)
    json["vocab"].push_back({{"rank", rank}, {"token_bytes", base64(tokens[rank])}, {"token_str", nullptr}});
  return json;
}

std::unique_ptr<Tokenizer> load_tekken(const OrderedJson& json, const TokenizerOptions& options = {}) {
  return make_tekken(json.dump(), "tekken.json", {}, options);
}

TEST(Tekken, MergesByRankAndShiftsIdsBySpecialTokens) {
  const auto tokenizer = load_tekken(small_tekken());
  EXPECT_EQ(tokenizer->encode("abc").ids, (Ids{4 + 257}));
  EXPECT_EQ(tokenizer->encode("abbc").ids, (Ids{4 + 256, 4 + 258}));
  EXPECT_EQ(tokenizer->encode("abab").ids, (Ids{4 + 256, 4 + 256})) << "the last token is cut off";
  EXPECT_EQ(tokenizer->encode("zzz").ids, (Ids{4 + 259, 4 + 'z'}));
  EXPECT_EQ(tokenizer->encode("a zzzzz").ids, (Ids{4 + 'a', 4 + ' ', 4 + 260})) << "a whole piece is looked up first";
  EXPECT_EQ(tokenizer->encode("zzzzzz").ids, (Ids{4 + 259, 4 + 259, 4 + 259})) << "no merge gives it";
  EXPECT_EQ(tokenizer->vocab_size(), 265);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
}

TEST(Tekken, SpecialTokensInTextOnlyWhenAsked) {
  const Encoding found = load_tekken(small_tekken())->encode("ab<s>c<SPECIAL_3>", true);
  EXPECT_EQ(found.ids, (Ids{4 + 256, 1, 4 + 'c', 3}));
  EXPECT_EQ(found.offsets, (std::vector<ByteRange>{{0, 2}, {2, 5}, {5, 6}, {6, 17}}));
  const auto plain = load_tekken(small_tekken(), {.special_tokens_in_text = false});
  EXPECT_EQ(plain->encode("<s>").ids, (Ids{4 + '<', 4 + 's', 4 + '>'}));
}

TEST(Tekken, DecodesBytesBetweenSpecialTokens) {
  const auto tokenizer = load_tekken(small_tekken());
  EXPECT_EQ(tokenizer->decode(Ids{1, 4 + 0xC3, 4 + 0xA9, 2}), "<s>\xC3\xA9</s>");
  EXPECT_EQ(tokenizer->decode(Ids{1, 4 + 0xC3, 4 + 0xA9, 2}, true), "\xC3\xA9");
  EXPECT_EQ(tokenizer->decode(Ids{4 + 0xC3, 1, 4 + 0xA9}, true), "\xEF\xBF\xBD\xEF\xBF\xBD")
      << "bytes do not join across a special token";
  EXPECT_EQ(tokenizer->decode(Ids{-1, 265, 4 + 'a'}), "a");
  EXPECT_EQ(tokenizer->id_to_token(3), "<SPECIAL_3>");
  EXPECT_EQ(tokenizer->id_to_token(4 + 257), "abc");
  EXPECT_EQ(tokenizer->token_to_id("abc"), 4 + 257);
  EXPECT_EQ(tokenizer->token_to_id("</s>"), 2);
  EXPECT_TRUE(tokenizer->is_special(3));
  EXPECT_FALSE(tokenizer->is_special(4));
}

TEST(Tekken, AsTokenizerJsonHasTheSameIdsAndSpells) {
  const auto tekken = load_tekken(small_tekken());
  const auto json = make_json_tokenizer(tekken_as_json(small_tekken().dump(), "tekken.json"), "tokenizer.json", {}, {});
  for (const char* text :
       {"abc", "abbc", "abab", "zzz", "a zzzzz", "zzzzzz", "zzzzz ab<s>c<SPECIAL_3>", "\xC3\xA9 bcab\n\x01"}) {
    const Encoding expected = tekken->encode(text, true), got = json->encode(text, true);
    EXPECT_EQ(got.ids, expected.ids) << text;
    EXPECT_EQ(json->decode(got.ids), tekken->decode(expected.ids)) << text;
  }
  EXPECT_EQ(json->vocab_size(), tekken->vocab_size());
  EXPECT_EQ(json->bos_id(), 1);
  EXPECT_TRUE(json->adds_bos());
  EXPECT_TRUE(json->is_special(3));
  EXPECT_FALSE(json->is_special(4));
}

TEST(Tekken, AsTokenizerJsonHasTheMergesOfTheRanks) {
  const OrderedJson json = OrderedJson::parse(tekken_as_json(small_tekken().dump(), "tekken.json"));
  const OrderedJson expected = OrderedJson::parse(R"([["a", "b"], ["ab", "c"], ["b", "c"], ["z", "z"]])");
  EXPECT_EQ(json["model"]["merges"], expected) << "zzzzz would be three parts, and abab is not in the vocabulary";
}

TEST(Tekken, AsTokenizerJsonTwoTokensCannotShareASpelling) {
  OrderedJson json = small_tekken();
  json["special_tokens"][0]["token_str"] = "abc";
  EXPECT_SAYS(testing_support::refusal<FormatError>([&] { tekken_as_json(json.dump(), "tekken.json"); }),
              "\"abc\" is both");
}

TEST(Tekken, IsFoundInAFolder) {
  const testing_support::TemporaryFolder folder;
  testing_support::write_text(folder / "tekken.json", small_tekken().dump());
  EXPECT_TRUE(has_tokenizer(folder.path()));
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->encode("ab").ids, (Ids{4 + 256}));
  EXPECT_NE(tokenizer->fingerprint(), Tokenizer::load(folder.path(), {.special_tokens_in_text = false})->fingerprint());
  EXPECT_THROW(Tokenizer::load(folder.path(), {.file = TokenizerFile::kTokenizerJson}), FormatError);
}

TEST(Tekken, NeverDropsWhatThePatternLeavesOut) {
  OrderedJson json = small_tekken();
  json["config"]["pattern"] = "[a-z]+";
  EXPECT_EQ(load_tekken(json)->encode("ab").ids, (Ids{4 + 256}));
  for (const auto& [text, byte] : {std::pair{"ab cd", "byte 2 "}, {"<s>ab cd", "byte 5 "}}) {
    EXPECT_SAYS(testing_support::refusal<FormatError>([&, t = text] { load_tekken(json)->encode(t); }), byte);
  }
}

TEST(Base64, DecodesOnlyWhatIsOne) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("YQ=="), "a");
  EXPECT_EQ(decode_base64("YWI="), "ab");
  EXPECT_EQ(decode_base64("/+8A"), std::string("\xFF\xEF\x00", 3));
  for (const char* bad : {"Y", "YQ", "YQ=", "YQ===", "Y===", "YR==", "YW J", "YQ==YQ==", "\xC3\xA9=="})
    EXPECT_EQ(decode_base64(bad), std::nullopt) << bad;
}

TEST(Tekken, WhatIsWrongIsRefusedByName) {
  testing_support::expect_refused(
      make_tekken, small_tekken(),
      {{"/extra", "1", "", "\"extra\" is not supported"},
       {"/config/mode", "1", ": config", "\"mode\" is not supported"},
       {"/config", "null", ": config", "expected an object"},
       {"/config/version", "\"v99\"", ": config.version", "\"v99\" is not supported"},
       {"/config/version", "7", ": config.version", "expected a string"},
       {"/config/pattern", "7", ": config.pattern", "expected a string"},
       {"/config/pattern", "\"a(\"", ": config.pattern", "does not compile"},
       {"/config/default_vocab_size", "-1", ": config.default_vocab_size", "not in [0"},
       {"/config/default_vocab_size", "99999999999", ": config.default_vocab_size", "not in [0"},
       {"/config/default_vocab_size", "\"265\"", ": config.default_vocab_size", "an integer"},
       {"/config/default_vocab_size", "300", ": vocab", "has 262 tokens"},
       {"/config/default_vocab_size", "200", ": vocab", "256 bytes"},
       {"/config/default_num_special_tokens", "266", ": config.default_num_special_tokens",
        "more than default_vocab_size"},
       {"/config/default_num_special_tokens", "2", ": config.default_num_special_tokens", "there are 3 special tokens"},
       {"/vocab", "{}", ": vocab", "expected an array"},
       {"/vocab/3", "3", ": vocab[3]", "expected an object"},
       {"/vocab/3/score", "3", ": vocab[3]", "\"score\""},
       {"/vocab/3/rank", "4", ": vocab[3].rank", "expected 3"},
       {"/vocab/3/rank", "-3", ": vocab[3].rank", "not in [0"},
       {"/vocab/257/token_bytes", "\"?\"", ": vocab[257].token_bytes", "expected base64"},
       {"/vocab/257/token_bytes", "\"\"", ": vocab[257].token_bytes", "at least one byte"},
       {"/vocab/257/token_bytes", "5", ": vocab[257].token_bytes", "expected a string"},
       {"/vocab/65/token_bytes", "\"Qg==\"", ": vocab[65].token_bytes", "bytes in order"},
       {"/vocab/257/token_bytes", "\"YWI=\"", ": vocab[257]", "occur twice"},
       {"/special_tokens/1/rank", "5", ": special_tokens[1].rank", "expected 1, found 5"},
       {"/special_tokens/1/token_str", "\"<unk>\"", "", "\"<unk>\" occurs twice"},
       {"/special_tokens/1/token_str", "\"<SPECIAL_3>\"", "", "occurs twice"},
       {"/special_tokens/1/token_str", "\"\"", ": special_tokens[1].token_str", "without text"},
       {"/special_tokens/1/is_control", "1", ": special_tokens[1].is_control", "true or false"},
       {"/special_tokens/1/lstrip", "true", ": special_tokens[1]", "\"lstrip\""}});
}

TEST(Tekken, LaterVersionsMustNameTheirSpecialTokens) {
  OrderedJson json = small_tekken();
  json.erase("special_tokens");
  json["config"]["default_num_special_tokens"] = 20;
  json["config"]["default_vocab_size"] = 281;
  EXPECT_EQ(load_tekken(json)->id_to_token(19), "[TOOL_CONTENT]");
  json["config"]["version"] = "v11";
  testing_support::expect_refused(make_tekken, json.dump(), "", "\"special_tokens\" is missing");
}

TEST(Tekken, EveryTruncationIsRefused) {
  const std::string bytes = small_tekken().dump();
  for (std::size_t length = 0; length < bytes.size(); length += 97) {
    EXPECT_THROW(make_tekken(bytes.substr(0, length), "tekken.json", {}, {}), FormatError) << length;
  }
}

}  // namespace
}  // namespace lora_train::tokenizer
