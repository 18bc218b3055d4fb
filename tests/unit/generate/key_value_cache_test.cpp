#include <gtest/gtest.h>

#include "cached_decoder.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::generate {
namespace {

TEST(CacheAllocator, GivesTheFirstStretchThatIsLongEnough) {
  CacheAllocator allocator(96);
  EXPECT_EQ(allocator.allocate(17), 0);  // whole blocks of 16
  EXPECT_EQ(allocator.allocate(16), 32);
  EXPECT_EQ(allocator.allocate(40), 48);
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
  allocator.free(32);
  EXPECT_EQ(allocator.allocate(17), std::nullopt);  // 16 are free
  allocator.free(0);
  EXPECT_EQ(allocator.allocate(33), 0);  // the two stretches have become one
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
  allocator.free(48);
  EXPECT_EQ(allocator.allocate(48), 48);
  EXPECT_EQ(CacheAllocator(32).allocate(33), std::nullopt);
  EXPECT_EQ(CacheAllocator(32).allocate(32), 0);
}

TEST(KeyValueCache, TakesTheBytesThatItsHeaderSays) {
  model::ModelConfig config;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  const KeyValueCache cache(config, 48, at::TensorOptions(at::kBFloat16));
  EXPECT_EQ(cache.bytes(), 48 * 2 * 3 * 2 * 8 * 2);
  EXPECT_EQ(cache.keys.size(), 3u);
  EXPECT_EQ(cache.values[2].sizes(), at::IntArrayRef({48, 2, 8}));
  EXPECT_EQ(KeyValueCache().bytes(), 0);
}

}  // namespace
}  // namespace lora_train::generate
