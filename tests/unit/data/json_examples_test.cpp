#include "data/read/json_examples.h"

#include <gtest/gtest.h>

#include <ostream>

namespace lora_train::data {
namespace {

TEST(JsonExamples, KeepsValuesAndTheOrderOfKeys) {
  const JsonExample example =
      parse_json_example(R"( {"b": [1, -2.5, null], "a": {"x": true, "y": "\u00e9\u20ac\ud83d\ude00"}} )");
  ASSERT_FALSE(example.problem) << example.problem->message;
  EXPECT_EQ(example.value.dump(),
            "{\"b\":[1,-2.5,null],\"a\":{\"x\":true,\"y\":\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"}}");
}

struct BadText {
  const char* name;
  std::string text;
  std::size_t offset;
  const char* message;  ///< a part of it
};

void PrintTo(const BadText& bad, std::ostream* out) { *out << bad.name; }

class BadJsonExample : public testing::TestWithParam<BadText> {};

TEST_P(BadJsonExample, IsRefusedAtTheByte) {
  const JsonExample example = parse_json_example(GetParam().text);
  ASSERT_TRUE(example.problem);
  EXPECT_EQ(example.problem->offset, GetParam().offset) << example.problem->message;
  EXPECT_NE(example.problem->message.find(GetParam().message), std::string::npos) << example.problem->message;
}

std::string nested(int levels) {
  return "{\"a\":" + std::string(static_cast<std::size_t>(levels - 1), '[') +
         std::string(static_cast<std::size_t>(levels - 1), ']') + "}";
}

INSTANTIATE_TEST_SUITE_P(
    All, BadJsonExample,
    testing::Values(
        BadText{"empty", "", 0, "invalid JSON"}, BadText{"cut_object", "{\"a\": 1", 7, "unexpected end of input"},
        BadText{"cut_string", "{\"a\": \"xy", 9, "missing closing quote"},
        BadText{"cut_key", "{\"a", 3, "missing closing quote"}, BadText{"cut_number", "{\"a\": -", 7, "invalid number"},
        BadText{"cut_literal", "{\"a\": tru", 9, "invalid literal"},
        BadText{"no_colon", "{\"a\" 1}", 5, "expected ':'"},
        BadText{"no_comma", "{\"a\": 1 \"b\": 2}", 10, "expected '}'"},
        BadText{"unquoted_key", "{a: 1}", 1, "invalid literal"},
        BadText{"raw_tab", "{\"a\": \"x\ty\"}", 8, "control character"},
        BadText{"trailing_comma", "{\"a\": 1,}", 8, "expected string literal"},
        BadText{"single_quotes", "{'a': 1}", 1, "invalid literal"},
        BadText{"two_objects", "{\"a\": 1} {}", 9, "expected end of input"},
        BadText{"comment", "{\"a\": 1} // x", 9, "invalid literal"},
        BadText{"nan", "{\"a\": NaN}", 6, "NaN and Infinity"},
        BadText{"infinity", "{\"a\": Infinity}", 6, "NaN and Infinity"},
        BadText{"minus_infinity", "{\"a\": -Infinity}", 7, "NaN and Infinity"},
        BadText{"leading_zero", "{\"a\": 01}", 7, "expected '}'"},
        BadText{"huge_number", "{\"a\": 1e999}", 10, "out of range"},
        BadText{"raw_control", "{\"a\": \"x\x01\"}", 8, "control character"},
        BadText{"raw_line_feed", "{\"a\": \"x\ny\"}", 8, "control character"},
        BadText{"bad_escape", "{\"a\": \"\\x\"}", 8, "forbidden character"},
        BadText{"short_unicode_escape", "{\"a\": \"\\u12\"}", 11, "4 hex digits"},
        BadText{"lone_high_surrogate", "{\"a\": \"\\ud800x\"}", 13, "surrogate"},
        BadText{"lone_low_surrogate", "{\"a\": \"\\udc00\"}", 12, "surrogate"},
        BadText{"utf8_stray_continuation", "{\"a\": \"\x80\"}", 7, "ill-formed UTF-8"},
        BadText{"utf8_cut", "{\"a\": \"\xE2\x82\"}", 9, "ill-formed UTF-8"},
        BadText{"utf8_overlong", "{\"a\": \"\xC0\xAF\"}", 7, "ill-formed UTF-8"},
        BadText{"utf8_surrogate", "{\"a\": \"\xED\xA0\x80\"}", 8, "ill-formed UTF-8"},
        BadText{"utf8_past_10ffff", "{\"a\": \"\xF4\x90\x80\x80\"}", 8, "ill-formed UTF-8"},
        BadText{"nul_between", std::string("{\"a\": 1}\0{}", 11), 8, "NUL"},
        BadText{"nul_after", std::string("{\"a\": 1}\0", 9), 8, "NUL"},
        BadText{"int65", "{\"a\": 9223372036854775808}", 25, "beyond 64 bits"},
        BadText{"int66", "{\"a\": [-99999999999999999999]}", 28, "beyond 64 bits"},
        BadText{"array", "[1]", 0, "expected an object"}, BadText{"number", "17 ", 2, "expected an object"},
        BadText{"null", "null", 3, "expected an object"}, BadText{"string", "\"text\"", 5, "expected an object"},
        BadText{"duplicate_key", "{\"a\": 1, \"b\": 2, \"a\": 3}", 19, "duplicate key \"a\""},
        BadText{"duplicate_nested", "{\"m\": [{\"r\": 1, \"r\": 2}]}", 18, "duplicate key \"r\""},
        BadText{"duplicate_escaped", "{\"a\": 1, \"\\u0061\": 3}", 16, "duplicate key \"a\""},
        BadText{"too_deep", nested(65), 68, "deeper than 64"},
        BadText{"bottomless", std::string(1 << 20, '['), 0, "expected an object"}),
    [](const auto& test) { return test.param.name; });

TEST(JsonExamples, AllowsSixtyFourLevels) { EXPECT_FALSE(parse_json_example(nested(64)).problem); }

TEST(JsonExamples, AllowsTheSameKeyInDifferentObjects) {
  EXPECT_FALSE(parse_json_example(R"({"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]})").problem);
}

TEST(JsonExamples, BoundsTheFieldsOfOneObject) {
  std::string example = "{\"k\": 0";
  for (int i = 1; i < 10'000; ++i) {
    example += ",\"k" + std::to_string(i) + "\": 0";
  }
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

TEST(JsonExamples, ArrayHandsOverExamplesAndGoesOnAfterABadOne) {
  std::vector<std::string> seen;
  const auto problem = parse_json_array(R"([{"a":1}, 5, [2], {"a":1,"a":2}, {"b":[1]}])", [&](JsonExample&& example) {
    seen.push_back(std::to_string(example.offset) + (example.problem ? "!" : example.value.dump()));
  });
  EXPECT_FALSE(problem);
  EXPECT_EQ(seen, (std::vector<std::string>{"1{\"a\":1}", "11!", "13!", "18!", "33{\"b\":[1]}"}));
}

TEST(JsonExamples, BrokenArrayReturnsThePlace) {
  int examples = 0;
  const auto problem = parse_json_array("[{\"a\":1}, {\"b\":", [&](JsonExample&&) { ++examples; });
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->offset, 15U);
  EXPECT_EQ(examples, 1);
}

}  // namespace
}  // namespace lora_train::data
