#include "lora_train/config/value/value.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/config/value/findings.h"
#include "support/refusal.h"

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

TEST(Scalar, NumbersInAnySpellingAreOne) {
  for (const char* text : {"2e-4", "2.0e-4", "0.0002", "2E-4", "+2e-4", ".0002", "0.2e-3"}) {
    ASSERT_TRUE(parse_number(text).has_value()) << text;
    EXPECT_EQ(*parse_number(text), 2e-4) << text;
  }
}

TEST(Scalar, RefusesWhatIsNoFiniteNumber) {
  for (const char* text :
       {"", "-", "+", "nan", "inf", "-inf", ".inf", "1e999", "0x10", "1 ", " 1", "1,5", "1e", "--1", "1_000"}) {
    EXPECT_FALSE(parse_number(text).has_value()) << text;
    EXPECT_FALSE(parse_integer(text).has_value()) << text;
  }
}

TEST(Scalar, IntegersMayHaveExponentOrZeroFraction) {
  EXPECT_EQ(parse_integer("200"), 200);
  EXPECT_EQ(parse_integer("-3"), -3);
  EXPECT_EQ(parse_integer("1e3"), 1000);
  EXPECT_EQ(parse_integer("200.0"), 200);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  EXPECT_FALSE(parse_integer("9223372036854775808").has_value());
  EXPECT_FALSE(parse_integer("1.5").has_value());
}

TEST(Scalar, BoolWords) {
  for (const char* text : {"true", "True", "on", "ON", "yes"}) EXPECT_EQ(parse_bool(text), true) << text;
  for (const char* text : {"false", "False", "off", "Off", "no"}) EXPECT_EQ(parse_bool(text), false) << text;
  for (const char* text : {"1", "0", "", "maybe", "t"}) EXPECT_FALSE(parse_bool(text).has_value()) << text;
}

TEST(Scalar, Durations) {
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("10m"), 600);
  EXPECT_EQ(parse_duration("2h30m"), 9000);
  EXPECT_EQ(parse_duration("1d"), 86400);
  EXPECT_EQ(parse_duration("1.5h"), 5400);
  for (const char* text : {"", "m", "10x", "30m2h", "10m5", "5m5m", "h2"}) EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Scalar, DurationTextReadsBack) {
  EXPECT_EQ(duration_text(600), "10m");
  EXPECT_EQ(duration_text(9000), "2h30m");
  for (const double seconds : {0.5, 1.0, 59.0, 61.0, 3601.0, 86400.0, 1e10}) {
    EXPECT_EQ(parse_duration(duration_text(seconds)), seconds) << duration_text(seconds);
  }
}

std::string set(Value& root, const std::string& path, const std::string& text) {
  const auto steps = parse_setting_path(path);
  return steps ? set_at(root, *steps, 1, text_value(text)) : "no path";
}

TEST(SettingPath, Parses) {
  const auto steps = parse_setting_path("a.b[0].c[+]");
  ASSERT_TRUE(steps.has_value());
  ASSERT_EQ(steps->size(), 5u);
  EXPECT_EQ((*steps)[1].name, "b");
  EXPECT_EQ((*steps)[2].index, 0u);
  EXPECT_TRUE((*steps)[4].is_append);
  for (const char* path : {"", ".a", "a.", "a..b", "[0]", "a[", "a[x]", "a[-1]", "a[]"}) {
    EXPECT_FALSE(parse_setting_path(path).has_value()) << path;
  }
}

TEST(SettingPath, ReachesInsideAndAppends) {
  Value root;
  EXPECT_EQ(set(root, "datasets[+].path", "a"), "");
  EXPECT_EQ(set(root, "datasets[+].path", "b"), "");
  EXPECT_EQ(set(root, "datasets[0].type", "text"), "");
  EXPECT_EQ(set(root, "datasets[0].path", "c"), "");
  EXPECT_EQ(set(root, "datasets[1].field_map.text", "body"), "");
  EXPECT_EQ(to_flow_yaml(root), "[{path: c, type: text}, {path: b, field_map: {text: body}}]");
}

TEST(SettingPath, ShortFormsGrow) {
  Value root = text_value("a.jsonl");
  EXPECT_EQ(set(root, "datasets[+].path", "b"), "");
  EXPECT_EQ(set(root, "datasets[0].weight", "2"), "");
  EXPECT_EQ(to_flow_yaml(root), "[{path: a.jsonl, weight: \"2\"}, {path: b}]");
}

TEST(SettingPath, SaysWhatIsWrong) {
  Value list = list_value({text_value("a")});
  EXPECT_EQ(set(list, "k[3]", "x"), "there is no item 3: the list has 1. [+] appends one.");
  EXPECT_EQ(set(list, "k.name", "x"), ".name: this is a list. Use [0] or [+] first.");
  Value map;
  map.kind = Value::Kind::kMap;
  EXPECT_EQ(set(map, "k[0]", "x"), "this is a map. Name one of its keys.");
}

template <class Kind>
std::string message_of(const Findings& findings) {
  return testing_support::refusal<Kind>([&] { findings.throw_mistakes(); });
}

TEST(Findings, AreSortedByFileAndLineAndThoseWithoutAPlaceComeLast) {
  Findings findings;
  EXPECT_NO_THROW(findings.throw_mistakes());
  findings.mistake({}, "d", "wrong.");
  findings.mistake({"b.yaml", 9}, "a", "wrong.");
  findings.mistake({"a.yaml", 1}, "c", "wrong.");
  findings.mistake({"b.yaml", 2}, "b", "wrong.");
  findings.mistake({"b.yaml", 2}, "b", "wrong in another way.");
  findings.hint("Read more.");
  findings.hint("Read more.");
  EXPECT_EQ(message_of<ConfigError>(findings),
            "b.yaml:2: b: wrong.\nb.yaml:9: a: wrong.\na.yaml:1: c: wrong.\nd: wrong.\nRead more.");
}

TEST(Findings, OfOneKindEndWithItsCodeAndOfSeveralAsAUsageError) {
  Findings findings;
  findings.mistake({"a", 1}, "model", "not there.", ExitCode::kFormat);
  EXPECT_EQ(message_of<FormatError>(findings), "a:1: model: not there.");
  findings.mistake({"a", 2}, "datasets[0].path", "not there.", ExitCode::kData);
  EXPECT_EQ(message_of<ConfigError>(findings), "a:1: model: not there.\na:2: datasets[0].path: not there.");
}

TEST(Findings, ConcernAKeyAndWhatIsInside) {
  Findings findings;
  findings.mistake({}, "datasets[1].weight", "wrong.");
  EXPECT_TRUE(findings.is_wrong("datasets"));
  EXPECT_TRUE(findings.is_wrong("datasets[1]"));
  EXPECT_TRUE(findings.is_wrong("datasets[1].weight"));
  EXPECT_FALSE(findings.is_wrong("datasets[0]"));
  EXPECT_FALSE(findings.is_wrong("data"));
}

TEST(Findings, APlaceIsReadBackFromItsText) {
  for (const Place& place : {Place{"a.yaml", 12}, Place{"--set", 0}, Place{"a:b.yaml", 3}, Place{"a.yaml:", 0}}) {
    const Place again = parse_place(place.text());
    EXPECT_EQ(again.file, place.file);
    EXPECT_EQ(again.line, place.line);
  }
}

std::string error_of(const std::string& text) {
  return testing_support::refusal<ConfigError>([&] { parse_yaml(text, {"p.yaml", 0}); });
}

struct BrokenText {
  std::string text;
  const char *start, *part = "";
};

void expect_broken(const std::vector<BrokenText>& cases) {
  for (const auto& [text, start, part] : cases) {
    const std::string error = error_of(text);
    EXPECT_TRUE(error.starts_with(start) && error.find(part) != error.npos) << text.substr(0, 100) << "\n" << error;
  }
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
  for (const char* nothing : {"", "# nothing\n"}) EXPECT_TRUE(parse_yaml(nothing, {"p", 0}).is_null());
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
  EXPECT_EQ(parse_yaml("a: &x {p: 1}\nb: *x\n", {"p", 0}).find("b")->find("p")->text, "1");
}

TEST(ParseYaml, RefusesMergeKeysOfOtherValues) {
  expect_broken({
      {"a: 1\n<<: 3\n", "p.yaml:2: <<: expected a map or a list of maps, such as `<<: *base`."},
      {"a: &a {b: 1}\n<<: [*a, 2]\n", "p.yaml:2: <<: expected a map"},
      {"a: &a {b: 1}\n<<: *a\n<<: *a\n", "p.yaml:3: <<: occurs twice"},
  });
  EXPECT_EQ(parse_yaml("\"<<\": 3\n", {"p", 0}).find("<<")->text, "3") << "quoted, it is a key like others";
}

TEST(ParseYaml, MistakesNameTheLine) {
  expect_broken({
      {"a: 1\nb: 2\na: 3\n", "p.yaml:3: a: occurs twice in one map (first at p.yaml:1). Keep one."},
      {"a:\n\t- 1\n", "p.yaml:2: a tab in the indentation. YAML allows only spaces."},
      {"a: [1, 2\nb: 3\n", "p.yaml:2: not valid YAML or JSON"},
      {"? [a]\n: 1\n", "p.yaml:1: a key must be text"},
      {"a: 1\n---\nb: 2\n", "p.yaml:", "more than one YAML document"},
      {std::string("a: 1\0b", 6), "p.yaml:", "NUL byte"},
      {"a: \"x\\N\"\n", "p.yaml:", "do not give valid UTF-8"},
  });
  for (const char* open_quote :
       {"a: \"x\n", "a: 'x\n\n", "a: \"x\nb: 2\n", "a: \"x\nb: 2 # c\n \n", "{\"a\": \"x\n}\n"}) {
    EXPECT_TRUE(error_of(open_quote).starts_with("p.yaml:")) << open_quote << error_of(open_quote);
  }
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
  expect_broken(
      {{bomb, "p.yaml:", "more than 10000 values"}, {std::string(5 << 20, 'x'), "p.yaml", "larger than 4 MiB"}});
}

}  // namespace
}  // namespace lora_train
