#include <gtest/gtest.h>

#include "cached_decoder.h"
#include "lora_train/generate/generator.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::generate {
namespace {

TEST(CacheAllocator, GivesTheFirstStretchThatIsLongEnough) {
  CacheAllocator allocator(96);
  const auto begin_of = [](std::optional<CachePlace> place) { return place ? place->begin : -1; };
  const auto allocate = [&](std::int64_t tokens) { return begin_of(allocator.allocate(tokens)); };
  EXPECT_EQ(allocate(17), 0);  // whole blocks of 16
  EXPECT_EQ(allocate(16), 32);
  EXPECT_EQ(allocate(40), 48);
  EXPECT_EQ(allocate(1), -1);
  allocator.free({32});
  EXPECT_EQ(allocate(17), -1);  // 16 are free
  allocator.free({0});
  EXPECT_EQ(allocate(33), 0);  // the two stretches have become one
  EXPECT_EQ(allocate(1), -1);
  allocator.free({48});
  EXPECT_EQ(allocate(48), 48);
  EXPECT_EQ(begin_of(CacheAllocator(32).allocate(33)), -1);
  EXPECT_EQ(begin_of(CacheAllocator(32).allocate(32)), 0);
}

TEST(CacheAllocator, GivesTheFirstRowOfStatesThatIsFree) {
  CacheAllocator allocator(96);
  EXPECT_EQ(allocator.allocate(16)->state_row, 0);
  const CachePlace second = *allocator.allocate(16);
  EXPECT_EQ(second.state_row, 1);
  EXPECT_EQ(allocator.allocate(16)->state_row, 2);
  allocator.free(second);
  EXPECT_EQ(allocator.allocate(48)->state_row, 1);  // behind the third
  EXPECT_EQ(allocator.allocate(16)->state_row, 3);
}

TEST(KeyValueCache, TakesTheBytesThatItsHeaderSays) {
  model::ModelConfig config;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  const KeyValueCache cache(config, 48, 5, at::TensorOptions(at::kBFloat16));
  EXPECT_EQ(cache.bytes(), 48 * 2 * 3 * 2 * 8 * 2);
  EXPECT_EQ(cache.keys.size(), 3u);
  EXPECT_EQ(cache.values[2].sizes(), at::IntArrayRef({48, 2, 8}));
  EXPECT_EQ(KeyValueCache().bytes(), 0);
}

TEST(KeyValueCache, HasStatesInsteadOfKeysWhereALayerHasNoAttention) {
  model::ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.layer_kinds = {model::LayerKind::kGatedDelta, model::LayerKind::kAttention};
  config.gated_delta = {2, 4, 3, 5};
  config.convolution_taps = 4;
  const KeyValueCache cache(config, 48, 6, at::TensorOptions(at::kBFloat16));
  EXPECT_FALSE(cache.keys[0].defined());
  EXPECT_FALSE(cache.states[1].rule.defined());
  EXPECT_EQ(cache.states[0].convolution.sizes(), at::IntArrayRef({6, 32, 3}));
  EXPECT_EQ(cache.states[0].rule.sizes(), at::IntArrayRef({6, 4, 3, 5}));
  EXPECT_EQ(cache.states[0].rule.scalar_type(), at::kFloat);
  EXPECT_EQ(cache.bytes(), 48 * cache_bytes_per_token(config, at::kBFloat16) + 6 * state_bytes(config, at::kBFloat16));
}

}  // namespace
}  // namespace lora_train::generate
