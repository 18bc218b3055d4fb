#include "lora_train/base/philox.h"

#include <gtest/gtest.h>

namespace lora_train {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, MatchesRandom123KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, KeysDifferInEveryPart) {
  const auto key = philox_key(1, RandomPurpose::kLoraInit, "a", 0);
  const auto differs = [&](PhiloxKey other) { return other.k0 != key.k0 || other.k1 != key.k1; };
  EXPECT_TRUE(differs(philox_key(2, RandomPurpose::kLoraInit, "a", 0)));
  EXPECT_TRUE(differs(philox_key(1, RandomPurpose::kLoraDropout, "a", 0)));
  EXPECT_TRUE(differs(philox_key(1, RandomPurpose::kLoraInit, "b", 0)));
  EXPECT_TRUE(differs(philox_key(1, RandomPurpose::kLoraInit, "a", 1)));
}

TEST(Philox, SymmetricIsExactAtItsEnds) {
  EXPECT_EQ(philox_symmetric(0), -1.0F);
  EXPECT_EQ(philox_symmetric(0x80000000u), 0.0F);
  EXPECT_EQ(philox_symmetric(0xffffffffu), 8388607.0F / 8388608.0F);
}

}  // namespace
}  // namespace lora_train
