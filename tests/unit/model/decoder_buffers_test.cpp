// What must not change the numbers: layer inputs in host memory, MLPs in tiles. That buffers take what is planned.
#include <cmath>

#include "decoder_fixture.h"
#include "lora_train/base/error.h"

namespace lora_train::model {
namespace {

TEST_F(DecoderTest, OffloadedLayerInputsGiveTheSameBits) {
  const Batch batch = batch_of({9, 1, 5});
  for (const std::int64_t num_layers : {3, 4, 8}) {
    use_layers(num_layers);
    for (const FirstNeeded& first : {FirstNeeded{0, false}, FirstNeeded{0, true}, FirstNeeded{2, false}}) {
      for (const Recompute mode : {Recompute::kOff, Recompute::kCheap, Recompute::kGateUp, Recompute::kFull}) {
        offload_inputs_ = false;
        const Result kept = run(batch, mode, first.first_layer, first, false);
        offload_inputs_ = true;
        const Result offloaded = run(batch, mode, first.first_layer, first, true);
        EXPECT_EQ(offloaded.loss, kept.loss) << num_layers;
        EXPECT_TRUE(at::equal(offloaded.grads, kept.grads)) << num_layers;
      }
    }
  }
}

void draw_dropout(Batch& batch, std::int64_t num_adapters) {
  std::vector<std::int32_t> documents;
  for (std::size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    documents.resize(static_cast<std::size_t>(batch.cu_seqlens[i + 1]), static_cast<std::int32_t>(i));
  }
  batch.dropout = {true, at::arange(2 * num_adapters, at::kInt).reshape({num_adapters, 2}),
                   at::tensor(documents, at::kInt), batch.positions};
}

TEST_F(DecoderTest, TilesOfMlpsGiveTheSameLossAndGradientsWithinRounding) {
  use("intermediate_size", "28", 60);  // rows of scratch are narrower than those of a tile
  Batch batch = batch_of({9, 1, 5});
  for (const bool has_dropout : {false, true}) {
    if (has_dropout) draw_dropout(batch, std::ssize(adapters(config_, 0)));
    for (const bool is_quantised : {false, true}) {
      if (is_quantised) quantise(LinearFormat::k4Bit, true);
      decoded_layers_ = is_quantised ? 1 : kAllLayers;
      for (const auto form : {GradientColumns::kBesideInput, GradientColumns::kBesideOutput}) {
        mlp_tile_tokens_ = 0;
        const Result whole = run(batch, Recompute::kFull, 0, {0, true}, false, {form});
        for (mlp_tile_tokens_ = 1; mlp_tile_tokens_ <= 17; mlp_tile_tokens_ += 4) {  // 15 tokens: 3 x 5, 9 + 6, 13 + 2
          offload_inputs_ = mlp_tile_tokens_ == 9;
          const Result tiled = run(batch, Recompute::kFull, 0, {0, true}, true, {form});
          EXPECT_NEAR(tiled.loss, whole.loss, 1e-6 * whole.loss) << mlp_tile_tokens_;
          EXPECT_TRUE(at::allclose(tiled.grads, whole.grads, 1e-5, 1e-6)) << mlp_tile_tokens_;
          EXPECT_TRUE(mlp_tile_tokens_ < 15 || at::equal(tiled.grads, whole.grads));
        }
      }
    }
    storage_.clear();
  }
}

TEST_F(DecoderTest, MemoryIsWhatThePlanSaysWithTilesOfMlps) {
  constexpr std::int64_t kTokens = 64, kTile = 24, kF = 28, kHidden = 20;
  for (const double dropout : {0.0, 0.3}) {
    const ModelShape shape = model_shape(config_, adapters(config_, 0, dropout));
    const std::vector<Recompute> modes(3, Recompute::kFull);
    const Activations whole(shape, {.max_tokens = kTokens}, modes, at::kFloat, at::kMeta);
    const Activations tiled(shape, {.max_tokens = kTokens, .mlp_tile_tokens = kTile}, modes, at::kFloat, at::kMeta);
    std::int64_t bytes = 0;
    for (const auto& [name, buffer] : tiled.named_buffers()) {
      bytes += static_cast<std::int64_t>(buffer.storage().nbytes());
    }
    EXPECT_EQ(bytes, tiled.bytes());
    const std::int64_t saved =
        (kHidden + 8 + 2 * kF + kF + 8 + 1) * (kTokens - kTile);  // with columns of adapters, and rstd
    const std::int64_t input = (kF + 8 - (4 * 6 + 8)) * kTokens;  // of down, then of o: d_input, and scratch like it
    EXPECT_EQ(whole.bytes() - bytes, 4 * (saved + input * (dropout > 0 ? 2 : 1)));
  }
  const std::vector<Recompute> kept = {Recompute::kFull, Recompute::kFull, Recompute::kGateUp};
  EXPECT_THROW(plan_activations(model_shape(config_), {.max_tokens = 8, .mlp_tile_tokens = 4}, kept), ShapeError);
}

TEST_F(DecoderTest, MemoryIsWhatThePlanSaysWithOffloadedLayerInputs) {
  constexpr std::int64_t kTokens = 7, kHidden = 20;
  use_layers(8);
  const ModelShape shape = model_shape(config_, adapters(config_, 1));
  const std::vector<Recompute> modes(8, Recompute::kFull);
  const Activations kept(shape, {.max_tokens = kTokens}, modes, at::kFloat, at::kMeta);
  const Activations activations(shape, {.max_tokens = kTokens, .offload_inputs = true}, modes, at::kFloat, at::kMeta);
  EXPECT_EQ(kept.offload(), nullptr);
  EXPECT_EQ(kept.plan().host_bytes(4), 0);
  ASSERT_NE(activations.offload(), nullptr);
  std::int64_t bytes = 0;
  for (const auto& [name, buffer] : activations.named_buffers())
    bytes += static_cast<std::int64_t>(buffer.storage().nbytes());
  EXPECT_EQ(bytes, activations.bytes());
  EXPECT_EQ(kept.bytes() - bytes, 5 * kTokens * kHidden * 4);
  EXPECT_EQ(activations.offload()->inputs().size(), 5U);
  EXPECT_EQ(activations.plan().host_bytes(4), 2048 + 2048);  // 3 inputs of 560 bytes, and 2
  const Activations forward_only(shape, {.max_tokens = kTokens, .needs_backward = false, .offload_inputs = true}, {},
                                 at::kFloat, at::kMeta);
  EXPECT_EQ(forward_only.offload(), nullptr);
}

TEST(InputOffload, PageLockedMemoryIsRoundedUpByLittle) {
  for (const std::int64_t bytes : {3, 560, 160 << 20, 1 << 20, (1 << 20) + 1}) {
    for (const std::int64_t count : {1, 2, 5, 33, 77}) {
      std::int64_t sum = 0;
      double rounded = 0;
      for (const std::int64_t in_group : page_locked_groups(count, bytes)) {
        sum += in_group;
        rounded += std::exp2(std::ceil(std::log2(static_cast<double>(in_group * bytes))));
      }
      EXPECT_EQ(sum, count);
      EXPECT_LE(rounded, (count < 33 ? 2.0 : 1.1) * static_cast<double>(count * bytes)) << count << " of " << bytes;
    }
  }
}

}  // namespace
}  // namespace lora_train::model
