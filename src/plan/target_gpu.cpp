#include "lora_train/plan/target_gpu.h"

#include <algorithm>
#include <limits>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::plan {
namespace {

constexpr std::int64_t kContextBytes = std::int64_t{600} << 20;  // CUDA's, on an otherwise idle GPU
constexpr std::int64_t kHostBytes = std::int64_t{64} << 30;      // page-locked memory that a rank may take
constexpr std::int64_t kLeastSeqLen = 256;
constexpr double kGiB = 1 << 30;

bool fits(const RunFacts& facts) {
  try {
    decide(facts);
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

/// "micro_batch_size: 8 and gradient_checkpointing: off", or empty if neither has a value.
std::string pinned_keys(const Profile& profile) {
  std::vector<std::string> keys;
  if (const auto rows = profile.schedule.micro_batch_size) keys.push_back(fmt::format("micro_batch_size: {}", *rows));
  if (profile.run.gradient_checkpointing != GradientCheckpointing::kAuto)
    keys.push_back("gradient_checkpointing: " + to_string(profile.run.gradient_checkpointing));
  return join(keys, " and ");
}

/// Leaves rows and recomputation to the planner. A step keeps its rows.
void free_rows(const RunFacts& facts, Profile& profile, std::vector<std::string>& keys) {
  ScheduleSection& schedule = profile.schedule;
  if (!schedule.micro_batch_size) return;
  keys.emplace_back("micro_batch_size: auto");
  if (schedule.gradient_accumulation_steps) {
    schedule.global_batch_size = *schedule.micro_batch_size * *schedule.gradient_accumulation_steps * facts.num_ranks;
    schedule.gradient_accumulation_steps.reset();
    keys.push_back(
        fmt::format("global_batch_size: {} instead of gradient_accumulation_steps", *schedule.global_batch_size));
  }
  schedule.micro_batch_size.reset();
}

void free_recomputation(Profile& profile, std::vector<std::string>& keys) {
  if (profile.run.gradient_checkpointing == GradientCheckpointing::kAuto) return;
  keys.emplace_back("gradient_checkpointing: auto");
  profile.run.gradient_checkpointing = GradientCheckpointing::kAuto;
}

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
      const MemoryPlan plan = plan_memory(memory_case(least, spec));
      if (plan.host <= facts.host_bytes) bytes = std::min(bytes, plan.total());
    }
  }
  return bytes;
}

std::vector<std::string> ways_to_fit(const RunFacts& facts) {
  std::vector<std::string> ways, keys;
  Profile profile = facts.profile, recomputed = facts.profile;
  const auto try_keys = [&](const RunFacts& changed, const std::vector<std::string>& changes) {
    if (!changes.empty() && fits(changed)) ways.push_back(join(changes, " with "));
  };
  RunFacts changed = with_profile(facts, profile);
  free_rows(facts, profile, keys);
  try_keys(changed, keys);
  std::vector<std::string> recomputation;
  free_recomputation(recomputed, recomputation);
  try_keys(with_profile(facts, recomputed), recomputation);
  if (!ways.empty()) return ways;
  free_recomputation(profile, keys);
  try_keys(changed, keys);
  if (ways.empty() && facts.base.empty() && !facts.adapters.empty()) {
    keys.emplace_back("base_precision: nf4");
    profile.model.base_precision = BasePrecision::kNf4;
    changed.base = base_storage(profile.model, facts.config);
    try_keys(changed, keys);
  }
  keys.emplace_back();
  for (changed.max_seq_len /= 2; changed.max_seq_len >= kLeastSeqLen && ways.empty(); changed.max_seq_len /= 2) {
    keys.back() = fmt::format("max_seq_len: {}", changed.max_seq_len);
    try_keys(changed, keys);
  }
  return ways;
}

std::string misfit(const RunFacts& facts, const device::GpuFacts& gpu) {
  const RunFacts there = facts_on(facts, gpu);
  if (fits(there)) return {};
  const std::string pinned = pinned_keys(facts.profile);
  const std::vector<std::string> ways = ways_to_fit(there);
  const bool are_several = pinned.find(" and ") != std::string::npos;
  return (pinned.empty() ? "the run" : pinned) + (are_several ? " need " : " needs ") +
         format_bytes(static_cast<double>(decide_smallest(there).memory.total())) + ", but one " + gpu.name +
         " may use " + format_bytes(static_cast<double>(there.memory_bytes)) + ": " +
         (ways.empty() ? "no key can change that; use a smaller model or a GPU with more memory"
                       : "use " + join(ways, ", or "));
}

}  // namespace lora_train::plan
