#include <gtest/gtest.h>

#include "lora_train/base/utf8.h"

namespace lora_train {
namespace {

TEST(VisibleText, ShowsWhatWouldSteerATerminalAndNoMore) {
  EXPECT_EQ(visible_text("a\x1b[2Jb\tc\x7f"), "a\\x1b[2Jb\\x09c\\u007f");
  EXPECT_EQ(visible_text("\u202eabc"), "\\u202eabc");
  EXPECT_EQ(visible_text("half \xc3"), "half \\xc3");
  for (const char* text : {"grüße\nzwei", ""}) EXPECT_EQ(visible_text(text), text);
}

}  // namespace
}  // namespace lora_train
