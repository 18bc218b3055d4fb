#include "data/read/json_examples.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace lora_train::data {
namespace {

std::string nested(int levels) {
  const auto depth = static_cast<std::size_t>(levels - 1);
  return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
}

TEST(JsonExamples, KeepsValuesAndTheOrderOfKeys) {
  const JsonExample example =
      parse_json_example(R"( {"b": [1, -2.5, null], "a": {"x": true, "y": "\u00e9\u20ac\ud83d\ude00"}} )");
  ASSERT_FALSE(example.problem) << example.problem->message;
  EXPECT_EQ(example.value.dump(),
            "{\"b\":[1,-2.5,null],\"a\":{\"x\":true,\"y\":\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"}}");
  EXPECT_FALSE(parse_json_example(nested(64)).problem) << "levels";
  EXPECT_FALSE(parse_json_example(R"({"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]})").problem) << "keys of other objects";
}

/// What is refused for one reason, and the byte where.
struct BadTexts {
  const char* message;  ///< a part of it
  std::vector<std::pair<std::string, std::size_t>> texts;
};

TEST(JsonExamples, BadTextIsRefusedAtTheByte) {
  const std::vector<BadTexts> cases = {
      {"invalid JSON", {{"", 0}}},
      {"unexpected end of input", {{"{\"a\": 1", 7}}},
      {"missing closing quote", {{"{\"a\": \"xy", 9}, {"{\"a", 3}}},
      {"invalid number", {{"{\"a\": -", 7}}},
      {"invalid literal", {{"{\"a\": tru", 9}, {"{a: 1}", 1}, {"{'a': 1}", 1}, {"{\"a\": 1} // x", 9}}},
      {"expected ':'", {{"{\"a\" 1}", 5}}},
      {"expected '}'", {{"{\"a\": 1 \"b\": 2}", 10}, {"{\"a\": 01}", 7}}},
      {"control character", {{"{\"a\": \"x\ty\"}", 8}, {"{\"a\": \"x\x01\"}", 8}, {"{\"a\": \"x\ny\"}", 8}}},
      {"expected string literal", {{"{\"a\": 1,}", 8}}},
      {"expected end of input", {{"{\"a\": 1} {}", 9}}},
      {"NaN and Infinity", {{"{\"a\": NaN}", 6}, {"{\"a\": Infinity}", 6}, {"{\"a\": -Infinity}", 7}}},
      {"out of range", {{"{\"a\": 1e999}", 10}}},
      {"forbidden character", {{"{\"a\": \"\\x\"}", 8}}},
      {"4 hex digits", {{"{\"a\": \"\\u12\"}", 11}}},
      {"surrogate", {{"{\"a\": \"\\ud800x\"}", 13}, {"{\"a\": \"\\udc00\"}", 12}}},
      {"ill-formed UTF-8",
       {{"{\"a\": \"\x80\"}", 7},
        {"{\"a\": \"\xE2\x82\"}", 9},
        {"{\"a\": \"\xC0\xAF\"}", 7},
        {"{\"a\": \"\xED\xA0\x80\"}", 8},
        {"{\"a\": \"\xF4\x90\x80\x80\"}", 8}}},
      {"NUL", {{std::string("{\"a\": 1}\0{}", 11), 8}, {std::string("{\"a\": 1}\0", 9), 8}}},
      {"beyond 64 bits", {{"{\"a\": 9223372036854775808}", 25}, {"{\"a\": [-99999999999999999999]}", 28}}},
      {"expected an object", {{"[1]", 0}, {"17 ", 2}, {"null", 3}, {"\"text\"", 5}, {std::string(1 << 17, '['), 0}}},
      {"duplicate key \"a\"", {{"{\"a\": 1, \"b\": 2, \"a\": 3}", 19}, {"{\"a\": 1, \"\\u0061\": 3}", 16}}},
      {"duplicate key \"r\"", {{"{\"m\": [{\"r\": 1, \"r\": 2}]}", 18}}},
      {"deeper than 64", {{nested(65), 68}}}};
  for (const auto& [message, texts] : cases) {
    for (const auto& [text, offset] : texts) {
      SCOPED_TRACE(text.substr(0, 80));
      const JsonExample example = parse_json_example(text);
      ASSERT_TRUE(example.problem);
      EXPECT_EQ(example.problem->offset, offset) << example.problem->message;
      EXPECT_SAYS(example.problem->message, message);
    }
  }
}

TEST(JsonExamples, BoundsTheFieldsOfOneObject) {
  std::string example = "{\"k\": 0";
  for (int i = 1; i < 10'000; ++i) example += ",\"k" + std::to_string(i) + "\": 0";
  EXPECT_FALSE(parse_json_example(example + "}").problem);
  const JsonExample more = parse_json_example(example + ", \"last\": 0}");
  ASSERT_TRUE(more.problem);
  EXPECT_EQ(more.problem->message, "an object with more than 10,000 fields");
}

TEST(JsonExamples, AValueMayBeOfAnyKind) {
  for (const char* text : {"5", "\"a\"", "null", "true", "[1,[2]]", "{\"a\":1}", " 1.5 "}) {
    const JsonExample example = parse_json_value(text);
    EXPECT_FALSE(example.problem) << text;
    EXPECT_EQ(example.value, Json::parse(text)) << text;
  }
  EXPECT_TRUE(parse_json_value("").problem);
  EXPECT_TRUE(parse_json_value("18446744073709551615").problem);
}

TEST(JsonExamples, MessagesNeverQuoteTheFile) {
  const JsonExample example = parse_json_example("{\"a\": \"" + std::string(100000, 'x') + "\xFF");
  ASSERT_TRUE(example.problem);
  EXPECT_LT(example.problem->message.size(), 200U);
  EXPECT_EQ(example.problem->message.find('\xFF'), std::string::npos);
}

}  // namespace
}  // namespace lora_train::data
