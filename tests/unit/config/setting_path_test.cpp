#include <gtest/gtest.h>

#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

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

}  // namespace
}  // namespace lora_train
