#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/plan/run_spec.h"

namespace lora_train::plan {
namespace {

constexpr double kGib = 1 << 30;

// Qwen2.5-7B.
constexpr const char* kConfig = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
  "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
  "vocab_size": 152064, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"})";

class Memory : public ::testing::Test {
 protected:
  Memory() {
    files.config = model::parse_model_config(kConfig, "config.json");
    adapters.specs = lora::plan_adapters({}, files.config);
    profile.schedule.global_batch_size = 64;
  }

  MemoryPlan plan(std::int64_t rows, model::Recompute mode) {
    return plan_memory(facts(), spec_of(files.config, rows, mode));
  }
  RunFacts facts() const {
    RunFacts facts{profile, files.config, adapters.specs, 2048};
    facts.num_multiprocessors = 132;
    return facts;
  }
  static RunSpec spec_of(const model::ModelConfig& config, std::int64_t rows, model::Recompute mode) {
    RunSpec spec;
    spec.micro_batch_size = rows;
    spec.recompute.assign(static_cast<std::size_t>(config.num_layers), mode);
    return spec;
  }
  std::string refusal(double budget_gib) {
    try {
      fit(budget_gib);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  }
  RunSpec fit(double budget_gib) {
    RunFacts facts{profile, files.config, adapters.specs, 2048};
    facts.is_cuda = true;
    facts.memory_bytes = static_cast<std::int64_t>(budget_gib * kGib);
    facts.num_multiprocessors = 132;
    facts.base = files.base;
    return decide(facts);
  }

  Profile profile;
  lora::ModelFiles files;
  AdapterSetup adapters;
};

TEST_F(Memory, RoomForEvaluationTasksIsKept) {
  RunSpec spec = spec_of(files.config, 1, model::Recompute::kFull);
  RunFacts with_tasks = facts();
  const std::int64_t without = plan_memory(with_tasks, spec).total();
  with_tasks.task_bytes = std::int64_t{3} << 30;
  const MemoryPlan found = plan_memory(with_tasks, spec);
  EXPECT_EQ(found.total(), without + with_tasks.task_bytes);
  EXPECT_NE(found.describe().find("eval_tasks 3.0 GiB"), std::string::npos) << found.describe();
  spec.memory = found;
  EXPECT_EQ(parse_run_spec(to_json(spec)).memory, found);
}

TEST_F(Memory, SizesOfA7BModelAreThoseOfItsShapes) {
  const MemoryPlan none = plan(8, model::Recompute::kOff);
  EXPECT_NEAR(static_cast<double>(none.weights) / kGib, 14.2, 0.2);  // 7.6 G parameters, and the adapter columns
  const std::int64_t num_adapter = 40370176;                         // rank 16 on the seven linears of 28 layers
  EXPECT_EQ(none.adapter + none.optimizer, 16 * num_adapter);
  profile.optimizer.kind = OptimizerKind::kAdamw8bit;
  // Masters and gradients, codes, and for 256 of them two scales and a row of the table.
  const MemoryPlan coded = plan(8, model::Recompute::kOff);
  EXPECT_EQ(coded.adapter + coded.optimizer, 10 * num_adapter + num_adapter / 256 * (8 + 16));
  const double tokens = 16384;
  EXPECT_NEAR(static_cast<double>(none.activations) / tokens / 1e6, 4.4, 0.25);  // MB a token, kept whole
  EXPECT_NEAR(static_cast<double>(plan(8, model::Recompute::kCheap).activations) / tokens / 1e6, 3.0, 0.25);
  EXPECT_NEAR(static_cast<double>(plan(8, model::Recompute::kGateUp).activations) / tokens / 1e6, 1.0, 0.25);
  EXPECT_NEAR(static_cast<double>(plan(8, model::Recompute::kFull).activations) / tokens / 1e6, 0.4, 0.15);
  EXPECT_GT(none.loss_head, 256 << 20);
  EXPECT_LT(static_cast<double>(none.total()) / kGib, 92);
}

TEST_F(Memory, AQuantisedBase) {
  profile.model.base_precision = BasePrecision::kNf4;
  profile.optimizer.kind = OptimizerKind::kAdamwTorch;
  const auto gib = [&](const model::ModelConfig& config, std::int64_t rows, model::Recompute mode) {
    const auto specs = lora::plan_adapters({}, config);
    RunFacts facts{profile, config, specs, 2048};
    facts.num_multiprocessors = 72;
    facts.base = base_storage(profile.model, config);
    RunSpec spec = spec_of(config, rows, mode);
    spec.decoded_layers = 0;
    return static_cast<double>(plan_memory(facts, spec).total()) / kGib;
  };
  const model::ModelConfig qwen3_8b = model::known_shape("qwen3-8b");
  EXPECT_LE(gib(files.config, 1, model::Recompute::kFull), 7.7);
  EXPECT_LE(gib(qwen3_8b, 1, model::Recompute::kFull), 8.4);
  EXPECT_LE(gib(files.config, 2, model::Recompute::kCheap), 19.5);
  EXPECT_LE(gib(files.config, 4, model::Recompute::kGateUp), 17.5);
  const double fp32_moments = gib(files.config, 1, model::Recompute::kFull);
  profile.optimizer.kind = OptimizerKind::kAdamw8bit;
  EXPECT_NEAR(fp32_moments - gib(files.config, 1, model::Recompute::kFull), 0.222, 0.001);
  profile.model.base_precision = BasePrecision::kBf16;
  EXPECT_GT(gib(files.config, 1, model::Recompute::kFull), 15);
}

TEST_F(Memory, ChunksOfTheLossHeadShrinkBeforeARunIsRefused) {
  profile.model.base_precision = BasePrecision::kNf4;
  profile.optimizer.kind = OptimizerKind::kAdamw8bit;
  profile.schedule.micro_batch_size = 1;
  files.base = base_storage(profile.model, files.config);
  profile.run.mlp_tile_tokens = 0;
  const RunSpec tight = fit(7.3), usual = fit(8);
  EXPECT_EQ(tight.loss_chunk_bytes, kLeastLossChunkBytes);
  EXPECT_EQ(tight.max_tokens, 2048);
  EXPECT_LE(tight.memory.total(), 7.3 * kGib);
  EXPECT_EQ(usual.loss_chunk_bytes, model::LossHeadOptions{}.chunk_bytes);
  EXPECT_THROW(fit(7.1), DeviceError);
  profile.run.mlp_tile_tokens.reset();
  EXPECT_EQ(fit(7.15).mlp_tile_tokens, 1024);
  profile.run.mlp_tile_tokens = 0;
  files.config = model::known_shape("qwen3-8b");
  adapters.specs = lora::plan_adapters({}, files.config);
  files.base = base_storage(profile.model, files.config);
  EXPECT_EQ(fit(7.9).max_tokens, 2048);
  EXPECT_THROW(fit(7.8), DeviceError);
  profile.run.mlp_tile_tokens.reset();
  EXPECT_EQ(fit(7.8).max_tokens, 2048);
  EXPECT_EQ(fit(7.8).mlp_tile_tokens, 1024);
  EXPECT_THROW(fit(7.6), DeviceError);
}

TEST_F(Memory, KeysThatCostTimeForNothingAreNamed) {
  const auto lines = [&](double budget_gib) {
    RunFacts facts{profile, files.config, adapters.specs, 2048};
    facts.is_cuda = true;
    facts.memory_bytes = static_cast<std::int64_t>(budget_gib * kGib);
    facts.host_bytes = std::int64_t{64} << 30;
    facts.num_multiprocessors = 132;
    facts.base = base_storage(profile.model, files.config);
    return slower_keys(facts, decide(facts));
  };
  profile.schedule.micro_batch_size = 2;
  EXPECT_TRUE(lines(130).empty()) << "no such key is set";
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  ASSERT_EQ(lines(130).size(), 1U);
  EXPECT_EQ(
      lines(130)[0],
      "gradient_checkpointing: full costs time for nothing: with it, the run recomputes, decodes or moves more, and "
      "needs 17.5 GiB; without it, 33.1 GiB of 130.0 GiB. Leave it out");
  EXPECT_TRUE(lines(17.5).empty()) << "needed";
  profile.run.gradient_checkpointing = GradientCheckpointing::kAuto;
  profile.run.activation_offload = ActivationOffload::kOn;
  EXPECT_TRUE(lines(130).at(0).starts_with("activation_offload: on costs time"));
  profile.run.activation_offload = ActivationOffload::kAuto;
  profile.run.mlp_tile_tokens = 512;
  EXPECT_TRUE(lines(130).at(0).starts_with("mlp_tile_tokens: 512 costs time"));
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  ASSERT_EQ(lines(130).size(), 1U);
  EXPECT_EQ(lines(130)[0].rfind("mlp_tile_tokens: 512 costs time", 0), 0U) << lines(130)[0];
  profile.run.gradient_checkpointing = GradientCheckpointing::kAuto;
  profile.run.mlp_tile_tokens.reset();
  profile.model.base_precision = BasePrecision::kNf4;
  EXPECT_TRUE(lines(130).empty()) << "decoded once: no time is lost";
  profile.model.decoded_layers = 0;
  ASSERT_EQ(lines(130).size(), 2U);
  EXPECT_NE(lines(130)[0].find("decoded_layers: 0 costs time"), std::string::npos);
  EXPECT_NE(lines(130)[1].find("base_precision: nf4 costs time"), std::string::npos);
}

TEST_F(Memory, LayersOfAQuantisedBaseAreDecodedOnceWhereTheyFit) {
  profile.model.base_precision = BasePrecision::kNf4;
  files.base = base_storage(profile.model, files.config);
  EXPECT_EQ(fit(80).decoded_layers, 28);
  profile.schedule.micro_batch_size = 2;
  const RunSpec some = fit(23);
  EXPECT_GT(some.decoded_layers, 0);
  EXPECT_LT(some.decoded_layers, 28);
  EXPECT_LE(some.memory.total(), 23 * kGib);
  EXPECT_GT(static_cast<double>(some.memory.total()), 22 * kGib);
  EXPECT_EQ(parse_run_spec(to_json(some)), some);
  profile.model.decoded_layers = 3;
  EXPECT_EQ(fit(80).decoded_layers, 3);
  EXPECT_LT(fit(80).memory.quantization, some.memory.quantization);
  profile.model.base_precision = BasePrecision::kBf16;  // a quantised folder, to be decoded
  EXPECT_EQ(fit(80).decoded_layers, model::kAllLayers);
  EXPECT_THROW(fit(12), DeviceError);
}

TEST_F(Memory, TheLastLayersRecomputeLessIfThatFits) {
  constexpr double kPlanned = 72 - 0.02 * 72;  // the rest is slack
  profile.schedule.micro_batch_size = 8;
  const RunSpec spec = fit(72);
  EXPECT_EQ(spec.recompute.front(), model::Recompute::kCheap);
  EXPECT_EQ(spec.recompute.back(), model::Recompute::kOff);
  EXPECT_LE(spec.memory.total(), kPlanned * kGib);
  const MemoryPlan off = plan(8, model::Recompute::kOff), cheap = plan(8, model::Recompute::kCheap);
  EXPECT_GT(spec.memory.total() + (off.total() - cheap.total()) / 27, kPlanned * kGib);  // one more layer would not fit
}

TEST_F(Memory, AutoTakesLargeMicroBatchesAndLittleRecomputation) {
  const RunSpec all = fit(130);
  EXPECT_EQ(all.micro_batch_size, 8);  // 16384 tokens
  EXPECT_EQ(all.recompute.front(), model::Recompute::kOff);
  const RunSpec most = fit(70);
  EXPECT_EQ(most.micro_batch_size, 4);
  EXPECT_EQ(most.recompute.front(), model::Recompute::kOff);
  const RunSpec some = fit(34);
  EXPECT_LT(some.micro_batch_size, 8);
  EXPECT_LT(some.recompute.front(), model::Recompute::kGateUp);
  const RunSpec less = fit(18);
  EXPECT_EQ(less.micro_batch_size, 1);
  EXPECT_EQ(less.recompute.front(), model::Recompute::kGateUp);
  const RunSpec least = fit(16.8);
  EXPECT_EQ(least.micro_batch_size, 1);
  EXPECT_EQ(least.recompute.front(), model::Recompute::kFull);
  for (const RunSpec& fitting : {all, most, some, less, least}) EXPECT_EQ(64 % fitting.micro_batch_size, 0);
}

TEST_F(Memory, WhatIsGivenStays) {
  profile.schedule.micro_batch_size = 4;
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  const RunSpec fitting = fit(130);
  EXPECT_EQ(fitting.micro_batch_size, 4);
  EXPECT_EQ(fitting.recompute.front(), model::Recompute::kFull);
}

TEST_F(Memory, ARefusalSaysHowMuchIsMissingWhatHoldsItAndWhatToSet) {
  profile.schedule.micro_batch_size = 8;
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  const std::string text = refusal(40);
  EXPECT_NE(text.find("8 x 2048 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find(" short"), std::string::npos) << text;
  EXPECT_NE(text.find("Needed for: activations"), std::string::npos) << text;
  EXPECT_NE(text.find("weights 14."), std::string::npos) << text;
  EXPECT_NE(text.find("gradient_checkpointing: auto"), std::string::npos) << text;
}

TEST_F(Memory, ARefusalOffersSmallerRowsOrSaysThatNothingHelps) {
  profile.schedule.micro_batch_size = 8;
  EXPECT_NE(refusal(18).find("use micro_batch_size: auto"), std::string::npos) << refusal(18);
  EXPECT_NE(refusal(3).find("no key can change that"), std::string::npos) << refusal(3);
}

TEST_F(Memory, DescribeBeginsWithTheLargest) {
  EXPECT_EQ(plan(8, model::Recompute::kOff).describe().substr(0, 12), "activations ");
  EXPECT_EQ(plan(1, model::Recompute::kFull).describe().substr(0, 8), "weights ");
}

}  // namespace
}  // namespace lora_train::plan
