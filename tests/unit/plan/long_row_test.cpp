// Keys that make room for a long row: full recomputation, mlp_tile_tokens, activation_offload.
#include <gtest/gtest.h>

#include <map>

#include "unit/plan/planned_run.h"

namespace lora_train::plan {
namespace {

/// Qwen3-4B, LoRA of rank 16 on all linears, one row of 32,768 tokens in bf16 (docs/long_context.md).
class LongRow : public PlannedRun {
 protected:
  LongRow() : PlannedRun("qwen3-4b", 32768, 8) {}
};

TEST_F(LongRow, FitsOn80Gb) {
  constexpr double kBudget = 76;  // of 80 GB, what is left for a run
  const std::map<std::pair<bool, std::int64_t>, double> full = {
      {{false, 0}, 24.35}, {{false, 4096}, 22.30}, {{true, 0}, 19.20}, {{true, 4096}, 17.15}};
  for (const auto mode : {GradientCheckpointing::kAuto, GradientCheckpointing::kFull}) {
    profile.run.gradient_checkpointing = mode;
    for (const auto offload : {ActivationOffload::kOff, ActivationOffload::kAuto, ActivationOffload::kOn}) {
      for (const std::optional<std::int64_t> tile : {std::optional<std::int64_t>{}, {0}, {4096}}) {
        profile.run.activation_offload = offload;
        profile.run.mlp_tile_tokens = tile;
        const RunSpec spec = fit(kBudget);
        EXPECT_EQ(spec.max_tokens, 32768);
        EXPECT_EQ(spec.offload_inputs, offload == ActivationOffload::kOn);
        EXPECT_EQ(spec.mlp_tile_tokens, tile.value_or(0));
        EXPECT_LE(spec.memory.total(), kBudget * kGib);
        if (mode == GradientCheckpointing::kAuto && spec.mlp_tile_tokens == 0) continue;
        EXPECT_NEAR(gib(spec.memory.total()), full.at({spec.offload_inputs, spec.mlp_tile_tokens}), 0.03);
      }
    }
  }
}

TEST_F(LongRow, TilesAndOffloadMakeTheLongestRowLonger) {
  const auto longest_is = [&](std::int64_t num_tokens) {
    max_seq_len = num_tokens;
    EXPECT_NO_THROW(fit(76));
    max_seq_len = num_tokens + 8192;
    EXPECT_THROW(fit(76), DeviceError);
  };
  profile.run.activation_offload = ActivationOffload::kOff;
  profile.run.mlp_tile_tokens = 0;
  longest_is(139'264);
  profile.run.mlp_tile_tokens.reset();
  longest_is(155'648);
  profile.run.activation_offload = ActivationOffload::kAuto;
  longest_is(253'952);
  profile.run.mlp_tile_tokens = 0;
  longest_is(204'800);
  profile.run.cuda_graphs = CudaGraphs::kOff;
  longest_is(278'528);
  profile.run.mlp_tile_tokens.reset();
  longest_is(393'216);
}

TEST_F(LongRow, AutoTilesBeforeItOffloadsAndThenDoesBoth) {
  const auto total = [&](ActivationOffload offload, std::int64_t tile) {
    profile.run.activation_offload = offload;
    profile.run.mlp_tile_tokens = tile;
    return fit(200).memory.total();
  };
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  const std::int64_t kept = total(ActivationOffload::kOff, 0), tiled = total(ActivationOffload::kOff, 4096),
                     offloaded = total(ActivationOffload::kOn, 0), both = total(ActivationOffload::kOn, 4096);
  EXPECT_GT(kept, tiled);
  EXPECT_GT(tiled, offloaded);
  EXPECT_GT(offloaded, both);
  profile.run.activation_offload = ActivationOffload::kAuto;
  profile.run.mlp_tile_tokens.reset();
  for (const auto mode : {GradientCheckpointing::kFull, GradientCheckpointing::kAuto}) {
    profile.run.gradient_checkpointing = mode;
    const auto choice = [&](std::int64_t budget_bytes) {
      const RunSpec spec = fit(gib(budget_bytes));
      EXPECT_TRUE(spec.mlp_tile_tokens == 0 ||
                  spec.recompute == std::vector<model::Recompute>(36, model::Recompute::kFull));
      return std::pair(spec.mlp_tile_tokens, spec.offload_inputs);
    };
    EXPECT_EQ(choice(kept), std::pair(std::int64_t{0}, false));
    EXPECT_EQ(choice(kept - 1), std::pair(std::int64_t{4096}, false));
    EXPECT_EQ(choice(tiled), std::pair(std::int64_t{4096}, false));
    EXPECT_EQ(choice(tiled - 1), std::pair(std::int64_t{0}, true));
    EXPECT_EQ(choice(offloaded - 1), std::pair(std::int64_t{4096}, true));
    EXPECT_EQ(choice(both), std::pair(std::int64_t{4096}, true));
    EXPECT_THROW(fit(gib(both) - 0.25), DeviceError);
  }
  profile.run.mlp_tile_tokens = 0;
  profile.run.activation_offload = ActivationOffload::kOff;
  EXPECT_SAYS(refusal(gib(tiled)), "use activation_offload: auto, or mlp_tile_tokens: auto");
  profile.run.mlp_tile_tokens = 4096;
  profile.run.gradient_checkpointing = GradientCheckpointing::kCheap;  // when a run is resumed with another mode
  EXPECT_EQ(fit(200).mlp_tile_tokens, 0);
}

TEST_F(LongRow, AutoOffloadsOnlyWhenFullRecomputationDoesNotFit) {
  profile.run.mlp_tile_tokens = 0;
  profile.run.activation_offload = ActivationOffload::kOff;
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  const MemoryPlan kept = fit(200).memory;
  profile.run.activation_offload = ActivationOffload::kOn;
  const MemoryPlan offloaded = fit(200).memory;
  EXPECT_EQ(kept.total() - offloaded.total(), std::int64_t{33} * 32768 * 2560 * 2);
  profile.run.activation_offload = ActivationOffload::kAuto;
  profile.run.gradient_checkpointing = GradientCheckpointing::kAuto;
  EXPECT_FALSE(fit(gib(kept.total())).offload_inputs);
  const double less = gib(kept.total() - 1);
  const RunSpec spec = fit(less);
  EXPECT_TRUE(spec.offload_inputs);
  EXPECT_EQ(spec.recompute.front(), model::Recompute::kFull);
  EXPECT_LE(spec.memory.total(), less * kGib);
  EXPECT_TRUE(fit(gib(offloaded.total())).offload_inputs);
  const double least = gib(kept.total()) - 0.25;  // chunks of the loss head have shrunk, too
  EXPECT_EQ(fit(gib(offloaded.total() - 1)).loss_chunk_bytes, kLeastLossChunkBytes);
  EXPECT_THROW(fit(gib(offloaded.total()) - 0.25), DeviceError);
  EXPECT_EQ(fit(less, 5).loss_chunk_bytes, kLeastLossChunkBytes) << "the host has no room";
  EXPECT_THROW(fit(least, 5), DeviceError) << "the host has no room";
  EXPECT_TRUE(fit(less, 5.6).offload_inputs);

  profile.run.activation_offload = ActivationOffload::kOff;
  EXPECT_SAYS(refusal(least), "use activation_offload: auto");
  profile.run.activation_offload = ActivationOffload::kOn;
  EXPECT_SAYS(refusal(200, 5), "needs 5.5 GiB of page-locked memory, but only 5.0 GiB");
}

TEST_F(LongRow, ASmallerMicroBatchComesBeforeTilesAndOffload) {
  max_seq_len = 8192;
  for (const auto mode : {GradientCheckpointing::kAuto, GradientCheckpointing::kFull}) {
    profile.run.gradient_checkpointing = mode;
    int num_offloaded = 0, num_tiled = 0;
    for (double budget = 10; budget < 24; budget += 0.25) {
      if (refusal(budget) != "accepted") continue;
      const RunSpec spec = fit(budget);
      num_offloaded += spec.offload_inputs ? 1 : 0;
      num_tiled += spec.mlp_tile_tokens > 0 ? 1 : 0;
      EXPECT_TRUE(spec.micro_batch_size == 1 || (!spec.offload_inputs && spec.mlp_tile_tokens == 0)) << budget;
    }
    EXPECT_GT(num_offloaded, 3);
    EXPECT_GE(num_tiled, 3);
  }
}

}  // namespace
}  // namespace lora_train::plan
