#include "lora_train/plan/target_gpu.h"

#include <algorithm>
#include <limits>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::plan {
namespace {

constexpr std::int64_t kContextBytes = std::int64_t{600} << 20;  // CUDA's, on an otherwise idle GPU
constexpr std::int64_t kHostBytes = std::int64_t{64} << 30;      // page-locked memory that a rank may take
constexpr double kGiB = 1 << 30;

}  // namespace

RunFacts facts_on(const RunFacts& facts, const device::GpuFacts& gpu) {
  RunFacts there = facts;
  const auto total = static_cast<std::int64_t>(gpu.memory_gib * kGiB);
  there.is_cuda = true;
  there.memory_bytes = memory_budget(total, total - kContextBytes);
  there.host_bytes = kHostBytes;
  there.num_multiprocessors = gpu.num_multiprocessors;
  there.algorithms.clear();
  return there;
}

RunSpec decide_smallest(const RunFacts& facts) {
  Profile profile = facts.profile;
  if (!profile.schedule.micro_batch_size) profile.schedule.micro_batch_size = 1;
  if (profile.run.gradient_checkpointing == GradientCheckpointing::kAuto)
    profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  if (!profile.model.decoded_layers) profile.model.decoded_layers = 0;
  RunFacts unlimited = with_profile(facts, profile);
  unlimited.memory_bytes = unlimited.host_bytes = std::numeric_limits<std::int64_t>::max() / 2;
  return decide(unlimited);
}

Profile with_least_memory(Profile profile) {
  profile.schedule.micro_batch_size = profile.schedule.eval_micro_batch_size = 1;
  profile.run.gradient_checkpointing = GradientCheckpointing::kFull;
  profile.run.activation_offload = ActivationOffload::kAuto;
  profile.run.mlp_tile_tokens.reset();
  profile.model.decoded_layers = 0;
  return profile;
}

std::int64_t least_bytes(const RunFacts& facts) {
  const Profile profile = with_least_memory(facts.profile);
  const RunFacts least = with_profile(facts, profile);
  RunSpec spec = decide_smallest(least);
  spec.loss_chunk_bytes = kLeastLossChunkBytes;
  std::int64_t bytes = spec.memory.total();
  for (const bool offloads : {false, true}) {
    for (const std::int64_t tile : {std::int64_t{0}, auto_mlp_tile_tokens(facts.max_seq_len)}) {
      spec.offload_inputs = offloads;
      spec.mlp_tile_tokens = tile;
      const MemoryPlan plan = plan_memory(least, spec);
      if (plan.host <= facts.host_bytes) bytes = std::min(bytes, plan.total());
    }
  }
  return bytes;
}

std::string misfit(const RunFacts& facts, const device::GpuFacts& gpu) {
  const RunFacts there = facts_on(facts, gpu);
  if (decide_if_fits(there)) return {};
  return fmt::format("the run needs {}, but one {} may use {}: {}", format_bytes(decide_smallest(there).memory.total()),
                     gpu.name, format_bytes(there.memory_bytes), ways_on(there));
}

}  // namespace lora_train::plan
