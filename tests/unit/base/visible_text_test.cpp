#include <gtest/gtest.h>

#include "lora_train/base/utf8.h"

namespace lora_train {
namespace {

TEST(VisibleText, ShowsWhatWouldSteerATerminal) {
  EXPECT_EQ(visible_text("a\x1b[2Jb\tc\x7f"), "a\\x1b[2Jb\\x09c\\u007f");
  EXPECT_EQ(visible_text("\xe2\x80\xae"
                         "abc"),
            "\\u202eabc");
  EXPECT_EQ(visible_text("half \xc3"), "half \\xc3");
}

TEST(VisibleText, LeavesTextAsItIs) {
  EXPECT_EQ(visible_text("gr\xc3\xbc\xc3\x9f"
                         "e\nzwei"),
            "gr\xc3\xbc\xc3\x9f"
            "e\nzwei");
  EXPECT_EQ(visible_text(""), "");
}

}  // namespace
}  // namespace lora_train
