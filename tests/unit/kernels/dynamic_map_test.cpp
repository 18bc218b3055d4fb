#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lora_train/kernels/quantized_weight/codes.h"

namespace lora_train::kernels {
namespace {

#include "goldens/dynamic_map.inc"

long code_of(const DynamicMap& map, float x) {
  return std::count_if(std::begin(map.thresholds), std::end(map.thresholds), [&](float t) { return t < x; });
}

TEST(DynamicMap, HasTheBitsOfBitsandbytes) {
  ASSERT_EQ(kSignedMapBits.size(), 256u);
  ASSERT_EQ(kUnsignedMapBits.size(), 256u);
  for (std::size_t code = 0; code < 256; ++code) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kSignedMap.values[code]), kSignedMapBits[code]) << code;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kUnsignedMap.values[code]), kUnsignedMapBits[code]) << code;
  }
}

TEST(DynamicMap, RoundsToTheNearestCodeAndTiesToTheEvenOne) {
  for (const DynamicMap& map : {kSignedMap, kUnsignedMap}) {
    for (int code = 0; code < 255; ++code) {
      const float low = map.values[code], high = map.values[code + 1], middle = (low + high) * 0.5F;
      ASSERT_LT(low, high);
      EXPECT_EQ(code_of(map, low), code);
      EXPECT_EQ(code_of(map, std::nextafter(middle, low)), code);
      EXPECT_EQ(code_of(map, middle), code + code % 2) << "tie";
      EXPECT_EQ(code_of(map, std::nextafter(middle, high)), code + 1);
    }
    EXPECT_EQ(code_of(map, 1), 255);
  }
  EXPECT_EQ(kSignedMap.values[127], 0);
  EXPECT_EQ(kUnsignedMap.values[0], 0);
}

}  // namespace
}  // namespace lora_train::kernels
