#include "hub_api.h"

#include <gtest/gtest.h>

namespace lora_train::hub {
namespace {

TEST(HubApi, PathsThatLeadOutAreNotSafe) {
  for (const char* safe : {"a", "a/b.json", ".gitattributes", "a..b/c", "data/train 1.jsonl"})
    EXPECT_TRUE(is_safe_path(safe)) << safe;
  for (const char* bad : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_safe_path(bad)) << bad;
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
}

TEST(HubApi, FindsTheNextPage) {
  EXPECT_EQ(next_link("<https://hub/x?cursor=1>; rel=\"next\""), "https://hub/x?cursor=1");
  EXPECT_EQ(next_link("<https://hub/a>; rel=\"prev\", <https://hub/b>; rel=\"next\""), "https://hub/b");
  for (const char* none : {"", "<https://hub/a>; rel=\"prev\"", "<broken", ">x<", "rel=\"next\""})
    EXPECT_EQ(next_link(none), "") << none;
}

}  // namespace
}  // namespace lora_train::hub
