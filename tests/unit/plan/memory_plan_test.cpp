#include "unit/plan/planned_run.h"

namespace lora_train::plan {
namespace {

class Memory : public PlannedRun {
 protected:
  Memory() : PlannedRun("qwen2.5-7b", 2048, 64) {}

  MemoryPlan plan(std::int64_t rows, model::Recompute mode) const {
    return plan_memory(on_host(), spec_of(rows, mode));
  }
  RunFacts on_host() const {
    RunFacts found = facts();
    found.num_multiprocessors = 132;
    return found;
  }
  RunSpec spec_of(std::int64_t rows, model::Recompute mode) const {
    RunSpec spec;
    spec.micro_batch_size = rows;
    spec.recompute.assign(static_cast<std::size_t>(config.num_layers), mode);
    return spec;
  }
  void use(const std::string& shape) {
    config = model::known_shape(shape);
    adapters = lora::plan_adapters({}, config);
  }
  /// Without host memory to offload to.
  RunSpec fit(double gib) const { return PlannedRun::fit(gib, 0); }
};

TEST_F(Memory, RoomForEvaluationTasksIsKept) {
  RunSpec spec = spec_of(1, model::Recompute::kFull);
  RunFacts with_tasks = on_host();
  const std::int64_t without = plan_memory(with_tasks, spec).total();
  with_tasks.task_bytes = std::int64_t{3} << 30;
  const MemoryPlan found = plan_memory(with_tasks, spec);
  EXPECT_EQ(found.total(), without + with_tasks.task_bytes);
  EXPECT_SAYS(found.describe(), "eval_tasks 3.0 GiB");
  spec.memory = found;
  EXPECT_EQ(parse_run_spec(to_json(spec)).memory, found);
}

TEST_F(Memory, SizesOfA7BModelAreThoseOfItsShapes) {
  const MemoryPlan none = plan(8, model::Recompute::kOff);
  EXPECT_NEAR(gib(none.weights), 14.2, 0.2);  // 7.6 G parameters, and the adapter columns
  const std::int64_t num_adapter = 40370176;  // rank 16 on the seven linears of 28 layers
  EXPECT_EQ(none.adapter + none.optimizer, 16 * num_adapter);
  profile.optimizer.kind = OptimizerKind::kAdamw8bit;
  // Masters and gradients, codes, and for 256 of them two scales and a row of the table.
  const MemoryPlan coded = plan(8, model::Recompute::kOff);
  EXPECT_EQ(coded.adapter + coded.optimizer, 10 * num_adapter + num_adapter / 256 * (8 + 16));
  const auto mb_per_token = [&](model::Recompute mode) {
    return static_cast<double>(plan(8, mode).activations) / 16384 / 1e6;
  };
  EXPECT_NEAR(mb_per_token(model::Recompute::kOff), 4.4, 0.25);
  EXPECT_NEAR(mb_per_token(model::Recompute::kCheap), 3.0, 0.25);
  EXPECT_NEAR(mb_per_token(model::Recompute::kGateUp), 1.0, 0.25);
  EXPECT_NEAR(mb_per_token(model::Recompute::kFull), 0.4, 0.15);
  EXPECT_GT(none.loss_head, 256 << 20);
  EXPECT_LT(gib(none.total()), 92);
}

TEST_F(Memory, AQuantisedBase) {
  profile.model.base_precision = BasePrecision::kNf4;
  profile.optimizer.kind = OptimizerKind::kAdamwTorch;
  const auto planned = [&](std::int64_t rows, model::Recompute mode) {
    RunFacts found = on_host();
    found.num_multiprocessors = 72;
    found.base = base_storage(profile.model, config);
    RunSpec spec = spec_of(rows, mode);
    spec.decoded_layers = 0;
    return gib(plan_memory(found, spec).total());
  };
  EXPECT_LE(planned(1, model::Recompute::kFull), 7.7);
  EXPECT_LE(planned(2, model::Recompute::kCheap), 19.5);
  EXPECT_LE(planned(4, model::Recompute::kGateUp), 17.5);
  const double fp32_moments = planned(1, model::Recompute::kFull);
  profile.optimizer.kind = OptimizerKind::kAdamw8bit;
  EXPECT_NEAR(fp32_moments - planned(1, model::Recompute::kFull), 0.222, 0.001);
  profile.model.base_precision = BasePrecision::kBf16;
  EXPECT_GT(planned(1, model::Recompute::kFull), 15);
  profile.model.base_precision = BasePrecision::kNf4;
  profile.optimizer.kind = OptimizerKind::kAdamwTorch;
  use("qwen3-8b");
  EXPECT_LE(planned(1, model::Recompute::kFull), 8.4);
}

TEST_F(Memory, ChunksOfTheLossHeadShrinkBeforeARunIsRefused) {
  profile.model.base_precision = BasePrecision::kNf4;
  profile.optimizer.kind = OptimizerKind::kAdamw8bit;
  profile.schedule.micro_batch_size = 1;
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
  use("qwen3-8b");
  EXPECT_EQ(fit(7.9).max_tokens, 2048);
  EXPECT_THROW(fit(7.8), DeviceError);
  profile.run.mlp_tile_tokens.reset();
  EXPECT_EQ(fit(7.8).max_tokens, 2048);
  EXPECT_EQ(fit(7.8).mlp_tile_tokens, 1024);
  EXPECT_THROW(fit(7.6), DeviceError);
}

TEST_F(Memory, KeysThatCostTimeForNothingAreNamed) {
  const auto lines = [&](double budget_gib) {
    const RunFacts facts = facts_on_gpu(budget_gib);
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
  EXPECT_TRUE(lines(130)[0].starts_with("mlp_tile_tokens: 512 costs time")) << lines(130)[0];
  profile.run.gradient_checkpointing = GradientCheckpointing::kAuto;
  profile.run.mlp_tile_tokens.reset();
  profile.model.base_precision = BasePrecision::kNf4;
  EXPECT_TRUE(lines(130).empty()) << "decoded once: no time is lost";
  profile.model.decoded_layers = 0;
  ASSERT_EQ(lines(130).size(), 2U);
  EXPECT_SAYS(lines(130)[0], "decoded_layers: 0 costs time");
  EXPECT_SAYS(lines(130)[1], "base_precision: nf4 costs time");
}

TEST_F(Memory, LayersOfAQuantisedBaseAreDecodedOnceWhereTheyFit) {
  profile.model.base_precision = BasePrecision::kNf4;
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
  RunFacts folder = facts_on_gpu(80, 0);  // a quantised one, to be decoded
  profile.model.base_precision = BasePrecision::kBf16;
  EXPECT_EQ(decide(folder).decoded_layers, model::kAllLayers);
  folder.memory_bytes = std::int64_t{12} << 30;
  EXPECT_THROW(decide(folder), DeviceError);
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
  using enum model::Recompute;
  const std::map<double, std::pair<int, model::Recompute>> expected = {
      {130, {8, kOff}}, {70, {4, kOff}}, {18, {1, kGateUp}}, {16.8, {1, kFull}}};  // 8 rows: 16384 tokens
  for (const auto& [budget, choice] : expected) {
    const RunSpec spec = fit(budget);
    EXPECT_EQ(std::pair(static_cast<int>(spec.micro_batch_size), spec.recompute.front()), choice) << budget;
  }
  const RunSpec some = fit(34);
  EXPECT_LT(some.micro_batch_size, 8);
  EXPECT_EQ(64 % some.micro_batch_size, 0);
  EXPECT_LT(some.recompute.front(), kGateUp);
}

TEST_F(Memory, WhatIsGivenStays) {
  profile.schedule.micro_batch_size = 4;
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  EXPECT_EQ(fit(130).micro_batch_size, 4);
  EXPECT_EQ(fit(130).recompute.front(), model::Recompute::kFull);
}

TEST_F(Memory, ARefusalSaysHowMuchIsMissingWhatHoldsItAndWhatToSet) {
  profile.schedule.micro_batch_size = 8;
  EXPECT_SAYS(refusal(18, 0), "use micro_batch_size: auto");
  EXPECT_SAYS(refusal(3, 0), "no key can change that");
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  const std::string text = refusal(40, 0);
  for (const char* part :
       {"8 x 2048 tokens", " short", "Needed for: activations", "weights 14.", "gradient_checkpointing: auto"}) {
    EXPECT_SAYS(text, part);
  }
}

TEST_F(Memory, DescribeBeginsWithTheLargest) {
  EXPECT_TRUE(plan(8, model::Recompute::kOff).describe().starts_with("activations "));
  EXPECT_TRUE(plan(1, model::Recompute::kFull).describe().starts_with("weights "));
}

TEST_F(Memory, AModelThatDoesNotFitTheHostIsRefusedWithWhatWould) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const auto plan_with = [](const Profile& other, const model::BaseStorage& base) {  // 1000 M weights, 1 MiB a token
    constexpr std::int64_t kQuantised[] = {500, 1000, 1010};                         // nf4, int8, fp8
    const auto choice = static_cast<std::size_t>(other.model.base_precision);
    const std::int64_t plain = other.model.precision == Precision::kFp32 ? 4000 : 2000;
    EXPECT_EQ(base.empty(), !other.model.is_quantised());
    const std::int64_t weights = base.empty() ? plain : kQuantised[choice - 3];
    return MemoryPlan{.weights = weights * kMiB, .activations = other.data.max_seq_len.value_or(1024) * kMiB};
  };
  struct Case {
    Precision precision;
    AdapterKind adapter;
    std::int64_t free;
    std::vector<std::string> expected;
  };
  constexpr auto kLora = AdapterKind::kLora, kNone = AdapterKind::kNone;
  const Case cases[] = {
      {Precision::kFp32, kLora, 5024, {"accepted"}},
      {Precision::kFp32,
       kLora,
       5023,
       {"4.9 GiB are needed, but only 4.9 GiB are free", ": 1.0 MiB short. Needed for: weights"}},
      {Precision::kFp32,
       kLora,
       5023,
       {"use base_precision: bf16 with precision: bf16 (3.0 GiB) or base_precision: fp8 (2.0"}},
      {Precision::kFp32,
       kLora,
       2024,
       {"use base_precision: int8 (2.0 GiB) or base_precision: nf4 (1.5 GiB), or a machine"}},
      {Precision::kBf16, kLora, 1524, {"use base_precision: nf4 (1.5 GiB), or"}},
      {Precision::kBf16,
       kNone,
       3023,
       {"use max_seq_len: 512 with micro_batch_size: 1", "no base_precision is small enough"}},
      {Precision::kBf16, kLora, 500, {"use a smaller model or a GPU (no base_precision is small enough)"}}};
  for (const Case& c : cases) {
    profile.model.precision = c.precision;
    profile.adapter.kind = c.adapter;
    const std::string said = testing_support::refusal<DeviceError>(
        [&] { require_host_memory(profile, config, {}, c.free * kMiB, 1024, plan_with); });
    for (const std::string& part : c.expected) EXPECT_SAYS(said, part);
  }
  config.quantization.format = model::LinearFormat::k4Bit;  // is not quantised again
  profile.adapter.kind = kLora;
  EXPECT_SAYS(testing_support::refusal<DeviceError>(
                  [&] { require_host_memory(profile, config, {}, 2100 * kMiB, 1024, plan_with); }),
              "use max_seq_len: 64 with");
}

}  // namespace
}  // namespace lora_train::plan
