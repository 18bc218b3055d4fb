// What decide() makes of facts that a test makes up, and what is said of runs on GPUs that are not here.
#include "lora_train/plan/run_spec.h"

#include "unit/plan/planned_run.h"

namespace lora_train::plan {
namespace {

class Decide : public PlannedRun {
 protected:
  Decide() : PlannedRun("qwen3-0.6b", 1024, 12) {}

  RunSpec on_cpu(std::int64_t memory_bytes, bool has_evaluation = false) const {
    RunFacts found = facts();
    found.has_evaluation = has_evaluation;
    found.memory_bytes = memory_bytes;
    return decide(found);
  }
  RunFacts on_gpu() const { return facts_on_gpu(64, 0); }
};

TEST_F(Decide, OnACpuTheLeastRecomputationThatFits) {
  const auto bytes = [&](model::Recompute mode) {
    const model::ModelShape shape = model::model_shape(config, adapters);
    const std::vector<model::Recompute> modes(shape.layers.size(), mode);
    return model::plan_activations(shape, {.max_tokens = 4096}, modes).bytes(2);
  };
  const std::int64_t off = bytes(model::Recompute::kOff), cheap = bytes(model::Recompute::kCheap);
  EXPECT_LT(cheap, off);
  EXPECT_EQ(on_cpu(off).recompute.front(), model::Recompute::kOff);
  EXPECT_EQ(on_cpu(off - 1).recompute.front(), model::Recompute::kCheap);
  EXPECT_EQ(on_cpu(1).recompute.front(), model::Recompute::kFull);
  EXPECT_EQ(on_cpu(1).recompute.size(), 28U);
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  EXPECT_EQ(on_cpu(1).recompute.front(), model::Recompute::kOff);
}

TEST_F(Decide, OnACpuOffloadedLayerInputsTakeTheSameMemory) {
  profile.run.activation_offload = ActivationOffload::kOn;
  const model::ModelShape shape = model::model_shape(config, adapters);
  const model::ActivationPlan plan =
      model::plan_activations(shape, {.max_tokens = 4096, .offload_inputs = true}, std::vector<model::Recompute>(28));
  EXPECT_TRUE(on_cpu(std::int64_t{1} << 40).offload_inputs);
  const std::int64_t bytes = plan.bytes(2) + plan.host_bytes(2);
  EXPECT_EQ(on_cpu(bytes).recompute.front(), model::Recompute::kOff);
  EXPECT_EQ(on_cpu(bytes - 1).recompute.front(), model::Recompute::kCheap);
  profile.run.activation_offload = ActivationOffload::kAuto;
  EXPECT_FALSE(on_cpu(1).offload_inputs);
}

TEST_F(Decide, OnACpuOnlyAGivenTileIsTaken) {
  EXPECT_EQ(on_cpu(1).mlp_tile_tokens, 0);
  profile.run.mlp_tile_tokens = 100;
  const RunSpec spec = on_cpu(std::int64_t{1} << 40);
  EXPECT_EQ(spec.mlp_tile_tokens, 100);
  EXPECT_EQ(spec.recompute, std::vector<model::Recompute>(28, model::Recompute::kFull));
}

TEST_F(Decide, MicroBatchesDivideTheStepAndBuffersHoldEvaluationsToo) {
  const RunSpec plain = on_cpu(1);
  EXPECT_EQ(plain.micro_batch_size, 4);  // 4096 tokens, and 12 is a multiple of 4
  EXPECT_EQ(plain.global_batch_size, 12);
  EXPECT_EQ(plain.max_tokens, 4 * 1024);
  profile.schedule.eval_micro_batch_size = 9;
  EXPECT_EQ(on_cpu(1).max_tokens, 4 * 1024);
  EXPECT_EQ(on_cpu(1, true).max_tokens, 9 * 1024);
}

TEST_F(Decide, AGpuThatIsTooSmallIsRefused) {
  RunFacts facts = on_gpu();
  EXPECT_GT(decide(facts).memory.total(), 0);
  EXPECT_EQ(decide(facts).spare_bytes(), facts.memory_bytes - decide(facts).memory.total());
  facts.memory_bytes = 1 << 20;
  EXPECT_THROW(decide(facts), DeviceError);
}

TEST_F(Decide, GateUpTakesItsGradientBesideTheOutputWhereAGpuComputesBothFromOneRead) {
  using model::GradientColumns;
  EXPECT_EQ(on_cpu(0).columns.gate_up, GradientColumns::kBesideInput) << "a CPU";
  RunFacts facts = on_gpu();
  const RunSpec spec = decide(facts);
  EXPECT_EQ(spec.columns.gate_up, GradientColumns::kBesideOutput);
  facts.gate_up = GradientColumns::kBesideInput;
  const RunSpec other = decide(facts);
  EXPECT_EQ(other.columns.gate_up, GradientColumns::kBesideInput);
  std::int64_t columns = 0;
  for (const auto& adapter : adapters) {
    if (adapter.linear == "mlp.gate_proj" || adapter.linear == "mlp.up_proj") columns += adapter.rank;
  }
  EXPECT_GT(columns, 0);
  EXPECT_EQ(spec.memory.activations - other.memory.activations, 2 * columns * spec.max_tokens);
  facts.gate_up.reset();
  for (auto& adapter : adapters) adapter.rank = 33;
  EXPECT_EQ(decide(facts).columns.gate_up, GradientColumns::kBesideInput) << "too many ranks";
  for (auto& adapter : adapters) adapter.rank = 32;
  EXPECT_EQ(decide(facts).columns.gate_up, GradientColumns::kBesideOutput);
  profile.model.precision = Precision::kFp32;
  EXPECT_EQ(decide(facts).columns.gate_up, GradientColumns::kBesideInput) << "fp32";
}

TEST_F(Decide, AResumedRunKeepsWhatItsCheckpointSettled) {
  RunFacts resumed = facts();
  resumed.resume = {"runs/a/checkpoint-7", 7, 96};
  resumed.algorithms = "kept";
  const RunSpec spec = decide(resumed);
  EXPECT_EQ(spec.resume, resumed.resume);
  EXPECT_EQ(spec.algorithms, "kept");
  EXPECT_EQ(spec.seed, 42U);
}

TEST_F(Decide, AResumedRunKeepsTheRowsOfAStepOnOtherRanks) {
  profile.schedule.micro_batch_size = 2;
  profile.schedule.global_batch_size.reset();
  profile.schedule.gradient_accumulation_steps = 3;
  RunFacts resumed = facts();
  resumed.num_ranks = 4;
  EXPECT_EQ(decide(resumed).global_batch_size, 24);
  resumed.num_ranks = 2;
  EXPECT_EQ(decide(resumed).global_batch_size, 12);
  resumed.resume.global_batch_size = 24;
  EXPECT_EQ(decide(resumed).global_batch_size, 24);
}

TEST_F(Decide, TokenWeightsCountInTheMemoryOfTheLossHead) {
  RunFacts facts = on_gpu();
  const std::int64_t plain = decide(facts).memory.loss_head;
  facts.has_token_weights = true;
  EXPECT_GT(decide(facts).memory.loss_head, plain);
}

TEST_F(Decide, RowsArePaddedOnlyWhereMemoryHasRoom) {
  RunFacts facts = on_gpu();
  const RunSpec exact = decide(facts);
  EXPECT_EQ(exact.columns.row_pitch, model::RowPitch::kExact);
  RunSpec padded = exact;
  ASSERT_TRUE(pad_rows(facts, padded));
  EXPECT_EQ(padded.columns.row_pitch, model::RowPitch::kPadded);
  const auto more = [&](std::int64_t MemoryPlan::*part) {
    return static_cast<double>(padded.memory.*part) / static_cast<double>(exact.memory.*part) - 1;
  };
  EXPECT_GT(more(&MemoryPlan::weights), 0);
  EXPECT_LT(more(&MemoryPlan::weights), 0.03);
  EXPECT_GT(more(&MemoryPlan::activations), 0);
  EXPECT_LT(more(&MemoryPlan::activations), 0.03);
  facts.memory_bytes = padded.memory.total() - 1;
  RunSpec stays = exact;
  EXPECT_FALSE(pad_rows(facts, stays));
  EXPECT_EQ(stays, exact);
}

TEST_F(Decide, TheMemoryPlanHasTheLossChunkOfTheRun) {
  RunFacts facts = on_gpu();
  const RunSpec plain = decide(facts);
  RunSpec spec = plain;
  set_loss_chunk(facts, 4 * plain.loss_chunk_bytes, spec);
  EXPECT_EQ(spec.loss_chunk_bytes, 4 * plain.loss_chunk_bytes);
  EXPECT_NEAR(static_cast<double>(spec.memory.loss_head) / static_cast<double>(plain.memory.loss_head), 4, 0.01);
  EXPECT_EQ(spec.memory.total() - plain.memory.total(), spec.memory.loss_head - plain.memory.loss_head);
  facts.is_cuda = false;
  RunSpec on_host = decide(facts);
  set_loss_chunk(facts, 1 << 20, on_host);
  EXPECT_EQ(on_host.loss_chunk_bytes, 1 << 20);
  EXPECT_EQ(on_host.memory, MemoryPlan{});
}

TEST_F(Decide, TheSameFactsGiveTheSameSpecAndItSurvivesTheWire) {
  RunSpec spec = on_cpu(1 << 30, true);
  EXPECT_EQ(spec, on_cpu(1 << 30, true));
  spec.eval_micro_batch_size = spec.micro_batch_size + 1;
  spec.offload_inputs = true;
  spec.mlp_tile_tokens = 4096;
  spec.columns.gate_up = model::GradientColumns::kBesideOutput;
  spec.attention = kernels::AttentionBackend::kCudnn;
  spec.windowed_attention = kernels::AttentionBackend::kFa2;
  spec.columns.row_pitch = model::RowPitch::kPadded;
  spec.loss_chunk_bytes = 12345;
  spec.memory = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  spec.algorithms = R"({"gemm":[1,2]})";
  spec.seed = 0xFFFF'FFFF'FFFF'FFFF;
  spec.resume = {"runs/a/checkpoint-7", 7, 96, 128};
  EXPECT_EQ(parse_run_spec(to_json(spec)), spec);
}

class TargetGpu : public PlannedRun {
 protected:
  TargetGpu() : PlannedRun("qwen2.5-7b", 2048, 16) {}

  std::string misfit_on(double memory_gib) const {
    return misfit(facts(), {.name = "X100", .memory_gib = memory_gib, .num_multiprocessors = 132});
  }
};

TEST_F(TargetGpu, WhatFitsHasNothingSaidOfIt) {
  EXPECT_EQ(misfit_on(79), "");
  profile.schedule.micro_batch_size = 2;
  EXPECT_EQ(misfit_on(79), "");
}

TEST_F(TargetGpu, AMisfitSaysWhatTheRunNeedsAndWhatToSet) {
  profile.schedule.micro_batch_size = 8;
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  const std::string text = misfit_on(79);
  EXPECT_TRUE(text.starts_with("the run needs ")) << text;
  EXPECT_SAYS(text, " GiB, but one X100 may use 76.8 GiB: use micro_batch_size: auto, or gradient_checkpointing: auto");
}

TEST_F(TargetGpu, WithoutAccumulationAStepKeepsItsRows) {
  profile.schedule.micro_batch_size = 64;
  profile.schedule.gradient_accumulation_steps = 2;
  profile.schedule.global_batch_size.reset();
  EXPECT_SAYS(misfit_on(40),
              "use micro_batch_size: auto with global_batch_size: 128 instead of gradient_accumulation_steps");
}

TEST_F(TargetGpu, WhereWeightsLeaveNoRoomAQuantisedBaseIsNamed) {
  EXPECT_SAYS(misfit_on(15), "the run needs ");
  EXPECT_SAYS(misfit_on(15), "use base_precision: nf4");
  EXPECT_SAYS(misfit_on(2), "no key can change that");
}

TEST_F(TargetGpu, ARunFitsWhatItNeedsAtLeastAndNothingSmaller) {
  profile.schedule.micro_batch_size = 8;
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  profile.run.activation_offload = ActivationOffload::kOff;
  const RunFacts pinned = facts_on(facts(), {.name = "X100", .memory_gib = 79});
  const std::int64_t least = least_bytes(pinned);
  EXPECT_LT(least, decide_smallest(pinned).memory.total());
  const Profile smallest = with_least_memory(profile);
  RunFacts tight = with_profile(pinned, smallest);
  tight.memory_bytes = least;
  EXPECT_EQ(decide(tight).memory.total(), least);
  tight.memory_bytes = least - 1;
  EXPECT_THROW(decide(tight), DeviceError);
}

TEST_F(TargetGpu, AQuantisedBaseNeedsLeastWithNoLayerDecoded) {
  const auto least_on = [&](BasePrecision precision) {
    profile.model.base_precision = precision;
    RunFacts found = facts();
    found.base = base_storage(profile.model, config);
    return gib(least_bytes(facts_on(found, {.name = "X100", .memory_gib = 79})));
  };
  const double bf16 = least_on(BasePrecision::kBf16), nf4 = least_on(BasePrecision::kNf4);
  EXPECT_GT(bf16, 14);
  EXPECT_LT(nf4, 8);  // though a GPU of this size would hold all layers decoded
}

}  // namespace
}  // namespace lora_train::plan
