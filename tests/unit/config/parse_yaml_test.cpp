#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

std::string error_of(const std::string& text) {
  try {
    parse_yaml(text, {"p.yaml", 0});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ParseYaml, KeepsOrderKindsAndLines) {
  const Value map = parse_yaml("# comment\nb: 1\na:\n  - x\n  - {k: \"null\"}\nn: null\ne:\n", {"p.yaml", 0});
  ASSERT_TRUE(map.is_map());
  ASSERT_EQ(map.members.size(), 4u);
  EXPECT_EQ(map.members[0].name, "b");
  EXPECT_EQ(map.find("b")->place.text(), "p.yaml:2");
  EXPECT_EQ(map.find("a")->items.at(1).find("k")->text, "null");
  EXPECT_TRUE(map.find("a")->items.at(1).find("k")->quoted);
  EXPECT_EQ(map.find("a")->items.at(1).place.line, 5);
  EXPECT_TRUE(map.find("n")->is_null());
  EXPECT_TRUE(map.find("e")->is_null());
  EXPECT_EQ(map.find("missing"), nullptr);
}

TEST(ParseYaml, AKeyWithoutAValueHasItsOwnLine) {
  const Value map = parse_yaml("a:\n\n# comment\nb:\nc: {d:, e: 1}\nf:\n  g:\n  h: ~\ni:\n-\n- x\nj:\n", {"p.yaml", 0});
  for (const auto& [name, line] : {std::pair{"a", 1}, {"b", 4}, {"c", 5}, {"j", 12}}) {
    EXPECT_EQ(map.find(name)->place.line, line) << name;
  }
  EXPECT_EQ(map.find("c")->find("d")->place.line, 5);
  EXPECT_EQ(map.find("f")->find("g")->place.line, 7);
  EXPECT_EQ(map.find("f")->find("h")->place.line, 8);
  EXPECT_EQ(map.find("i")->items.at(0).place.line, 10);
  EXPECT_EQ(map.find("i")->items.at(1).place.line, 11);
}

TEST(ParseYaml, ReadsJsonWithTabsAndEscapes) {
  const Value map = parse_yaml("{\n\t\"a\": [1, 2e-4],\n\t\"b\": \"x\\n\\u00e9\\/\",\n\t\"c\": null, \"d\": true\n}\n",
                               {"p.json", 0});
  EXPECT_EQ(map.find("a")->items.at(1).text, "2e-4");
  EXPECT_EQ(map.find("b")->text, "x\n\xc3\xa9/");
  EXPECT_EQ(map.find("b")->place.line, 3);
  EXPECT_TRUE(map.find("c")->is_null());
}

TEST(ParseYaml, EmptyIsNull) {
  EXPECT_TRUE(parse_yaml("", {"p", 0}).is_null());
  EXPECT_TRUE(parse_yaml("# nothing\n", {"p", 0}).is_null());
}

TEST(ParseYaml, MergeKeysAddWhatTheMapDoesNotSay) {
  const Value map = parse_yaml(
      "x: &x {a: 1, b: 2}\ny: &y\n  b: 3\n  c: 4\none:\n  <<: *x\n  a: 5\nboth:\n  d: 6\n  <<: [*y, *x]\nchain:\n  <<: "
      "{<<: *x, e: 7}\n",
      {"p", 0});
  EXPECT_EQ(to_flow_yaml(*map.find("one")), "{a: \"5\", b: \"2\"}");
  EXPECT_EQ(to_flow_yaml(*map.find("both")), "{d: \"6\", b: \"3\", c: \"4\", a: \"1\"}");
  ASSERT_NE(map.find("both")->find("c"), nullptr);
  EXPECT_EQ(map.find("both")->find("c")->place.line, 4);
  EXPECT_EQ(map.find("one")->find("b")->place.line, 1);
  EXPECT_EQ(map.find("chain")->members.size(), 3u);
}

TEST(ParseYaml, AMergeKeyMayStandAtTheTop) {
  const Value map = parse_yaml("x-base: &base {seed: 1, lora_r: 8}\n<<: *base\nlora_r: 4\n", {"p", 0});
  ASSERT_NE(map.find("seed"), nullptr);
  EXPECT_EQ(map.find("seed")->text, "1");
  EXPECT_EQ(map.find("lora_r")->text, "4");
  EXPECT_EQ(map.find("<<"), nullptr);
}

TEST(ParseYaml, RefusesMergeKeysOfOtherValues) {
  EXPECT_EQ(error_of("a: 1\n<<: 3\n"), "p.yaml:2: <<: expected a map or a list of maps, such as `<<: *base`.");
  EXPECT_NE(error_of("a: &a {b: 1}\n<<: [*a, 2]\n").find("p.yaml:2: <<: expected a map"), std::string::npos);
  EXPECT_NE(error_of("a: &a {b: 1}\n<<: *a\n<<: *a\n").find("p.yaml:3: <<: occurs twice"), std::string::npos);
  EXPECT_EQ(parse_yaml("\"<<\": 3\n", {"p", 0}).find("<<")->text, "3") << "quoted, it is a key like others";
}

TEST(ParseYaml, AnchorsAreCopied) {
  const Value map = parse_yaml("a: &x {p: 1}\nb: *x\n", {"p", 0});
  EXPECT_EQ(map.find("b")->find("p")->text, "1");
}

TEST(ParseYaml, MistakesNameTheLine) {
  EXPECT_EQ(error_of("a: 1\nb: 2\na: 3\n"), "p.yaml:3: a: occurs twice in one map (first at p.yaml:1). Keep one.");
  EXPECT_EQ(error_of("a:\n\t- 1\n"), "p.yaml:2: a tab in the indentation. YAML allows only spaces.");
  EXPECT_TRUE(error_of("a: [1, 2\nb: 3\n").starts_with("p.yaml:2: not valid YAML or JSON"))
      << error_of("a: [1, 2\nb: 3\n");
  for (const char* open_quote :
       {"a: \"x\n", "a: 'x\n\n", "a: \"x\nb: 2\n", "a: \"x\nb: 2 # c\n \n", "{\"a\": \"x\n}\n"}) {
    EXPECT_TRUE(error_of(open_quote).starts_with("p.yaml:")) << open_quote << error_of(open_quote);
  }
  EXPECT_TRUE(error_of("? [a]\n: 1\n").starts_with("p.yaml:1: a key must be text")) << error_of("? [a]\n: 1\n");
  EXPECT_TRUE(error_of("a: 1\n---\nb: 2\n").find("more than one YAML document") != std::string::npos);
  EXPECT_TRUE(error_of(std::string("a: 1\0b", 6)).find("NUL byte") != std::string::npos);
  EXPECT_TRUE(error_of("a: \"x\\N\"\n").find("do not give valid UTF-8") != std::string::npos)
      << error_of("a: \"x\\N\"\n");
  EXPECT_TRUE(error_of("a: *nowhere\n").starts_with("p.yaml:1: not valid")) << error_of("a: *nowhere\n");
}

// As json.dumps writes them. An escaped backslash begins no escape; half a pair is none.
TEST(ParseYaml, TakesThePairsOfEscapesThatJsonHas) {
  const Value map = parse_yaml(R"({"a": "\ud83d\ude00 \\ud83d\\ude00"})", {"p.json", 0});
  EXPECT_EQ(map.find("a")->text, "\xF0\x9F\x98\x80 \\ud83d\\ude00");
  for (const std::string half : {"\\ud83d", "\\ud83d\\u0041", "\\ude00\\ud83d", "\\ud83d\\ude0"}) {
    EXPECT_TRUE(error_of("{\"a\": \"" + half + "\"}").starts_with("p.yaml:1: not valid YAML or JSON")) << half;
  }
}

TEST(ParseYaml, BoundsWhatAFileCanExpandTo) {
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string name = "a" + std::to_string(i), last = "*a" + std::to_string(i - 1);
    bomb += name + ": &" + name + " [" + last;
    for (int j = 1; j < 10; ++j) bomb += "," + last;
    bomb += "]\n";
  }
  EXPECT_NE(error_of(bomb).find("more than 10000 values"), std::string::npos);
  EXPECT_NE(error_of("a: " + std::string(100'000, '[')).find("p.yaml:1: not valid"), std::string::npos);
  EXPECT_NE(error_of(std::string(5 << 20, 'x')).find("larger than 4 MiB"), std::string::npos);
}

}  // namespace
}  // namespace lora_train
