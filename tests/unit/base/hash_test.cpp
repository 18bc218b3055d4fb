#include "lora_train/base/hash.h"

#include <gtest/gtest.h>

namespace lora_train {
namespace {

// xxHash's own check values (XXH3 of no bytes), and what xxhsum -H2 prints.
TEST(Hash, MatchesKnownAnswers) {
  EXPECT_EQ(hash64(""), 0x2d06800538d394c2ULL);
  EXPECT_EQ(hash128_hex(""), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, SeedsAndBytesMakeADifference) {
  EXPECT_NE(hash64("a"), hash64("b"));
  EXPECT_NE(hash64("a", 1), hash64("a", 2));
  EXPECT_NE(hash128_hex("a"), hash128_hex("b"));
}

}  // namespace
}  // namespace lora_train
