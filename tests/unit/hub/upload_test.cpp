#include <gtest/gtest.h>

#include "hub_api.h"

namespace lora_train::hub {
namespace {

TEST(Upload, PartsCoverTheFileInOrder) {
  const auto parts = plan_parts({{"chunk_size", "4"}, {"00001", "a"}, {"00003", "c"}, {"00002", "b"}}, 10);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].url + parts[1].url + parts[2].url, "abc");
  EXPECT_EQ(parts[1].begin, 4U);
  EXPECT_EQ(parts[1].end, 8U);
  EXPECT_EQ(parts[2].end, 10U);
}

TEST(Upload, PartsThatDoNotCoverTheFileAreRefused) {
  using Headers = std::map<std::string, std::string>;
  for (const Headers& headers :
       {Headers{}, Headers{{"1", "a"}}, Headers{{"chunk_size", "0"}, {"1", "a"}},
        Headers{{"chunk_size", "x"}, {"1", "a"}}, Headers{{"chunk_size", "4"}, {"1", "a"}, {"3", "c"}},
        Headers{{"chunk_size", "5"}, {"1", "a"}}, Headers{{"chunk_size", "5"}, {"1", "a"}, {"3", "c"}},
        Headers{{"chunk_size", "5"}, {"0", "a"}, {"1", "b"}}})
    EXPECT_THROW(plan_parts(headers, 10), std::invalid_argument);
}

TEST(Upload, Base64OfTheStandard) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64(std::string("\0\xff", 2)), "AP8=");
}

}  // namespace
}  // namespace lora_train::hub
