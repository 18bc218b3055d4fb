#include "lora_train/config/value/value.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lora_train {
namespace {

TEST(Value, NumbersAreShortAndReadBack) {
  EXPECT_EQ(number_value(2e-4).text, "0.0002");
  EXPECT_EQ(number_value(1e-8).text, "1.0e-8");
  EXPECT_EQ(number_value(1.5e-10).text, "1.5e-10");
  EXPECT_EQ(number_value(32).text, "32");
  EXPECT_EQ(number_value(0).text, "0");
  EXPECT_EQ(number_value(1e20).text, "1.0e+20");
  for (const double number : {0.1, 1.0 / 3, 1e-300, 1.7e308, -2.5e-7, 123456789.125}) {
    EXPECT_EQ(parse_number(number_value(number).text), number) << number_value(number).text;
  }
}

TEST(Value, TextsReadBackFromYamlAndJson) {
  const std::vector<std::string> texts = {"plain",       "a: b",        "# no comment", "true", "off", "null",
                                          "~",           "12",          "1e3",          "",     " ",   "quote\"s",
                                          "back\\slash", "line\nbreak", "tab\t",        "\x7f", "[x]", "{x}",
                                          "-",           "*a",          "caf\xc3\xa9",  "n",    "Y",   "C:\\dir",
                                          "a,b",         "'",           "@x",           "%x",   "a #b"};
  for (const auto& text : texts) {
    const Value yaml = parse_yaml("k: [" + to_flow_yaml(text_value(text)) + "]", {"t", 0});
    const Value& read = yaml.find("k")->items.at(0);
    EXPECT_TRUE(read.is_scalar()) << text;
    EXPECT_EQ(read.text, text);
    EXPECT_EQ(nlohmann::json::parse(to_json_text(text_value(text))).get<std::string>(), text);
  }
}

TEST(Value, DollarBraceIsDoubledSoThatItIsNoVariable) {
  EXPECT_EQ(to_flow_yaml(text_value("a${B}c$d")), "\"a$${B}c$d\"");
  EXPECT_EQ(to_json_text(text_value("a${B}")), "\"a${B}\"");
}

TEST(Value, ListsAndMapsInOneLine) {
  Value map;
  map.kind = Value::Kind::kMap;
  map.members = {{"a", integer_value(1)}, {"b c", list_value({bool_value(true), null_value(), text_value("x")})}};
  EXPECT_EQ(to_flow_yaml(map), "{a: 1, \"b c\": [true, null, x]}");
  EXPECT_EQ(to_json_text(map), "{\"a\": 1, \"b c\": [true, null, \"x\"]}");
}

}  // namespace
}  // namespace lora_train
