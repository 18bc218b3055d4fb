#include "lora_train/plan/slower_keys.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::plan {
namespace {

/// The same run without a key.
struct Alternative {
  std::string key;
  Profile profile;
  model::BaseStorage base;
};

std::vector<Alternative> alternatives_to(const RunFacts& facts) {
  const Profile& profile = facts.profile;
  std::vector<Alternative> found;
  const auto without = [&](const std::string& key, auto change) {
    Alternative alternative{key, profile, facts.base};
    change(alternative);
    found.push_back(std::move(alternative));
  };
  if (profile.run.gradient_checkpointing > GradientCheckpointing::kOff) {
    without("gradient_checkpointing: " + std::string(to_string(profile.run.gradient_checkpointing)),
            [](Alternative& a) { a.profile.run.gradient_checkpointing = GradientCheckpointing::kAuto; });
  }
  if (profile.run.activation_offload == ActivationOffload::kOn) {
    without("activation_offload: on",
            [](Alternative& a) { a.profile.run.activation_offload = ActivationOffload::kAuto; });
  }
  if (profile.run.mlp_tile_tokens.value_or(0) > 0) {
    without("mlp_tile_tokens: " + std::to_string(*profile.run.mlp_tile_tokens),
            [](Alternative& a) { a.profile.run.mlp_tile_tokens.reset(); });
  }
  if (profile.model.decoded_layers) {
    without("decoded_layers: " + std::to_string(*profile.model.decoded_layers),
            [](Alternative& a) { a.profile.model.decoded_layers.reset(); });
  }
  if (profile.model.is_quantised()) {
    without("base_precision: " + std::string(to_string(profile.model.base_precision)), [](Alternative& a) {
      a.profile.model.base_precision = BasePrecision::kAuto;
      a.profile.model.decoded_layers.reset();
      a.base.clear();
    });
  }
  return found;
}

/// Layers that are decoded in each pass.
std::int64_t num_streamed(const model::BaseStorage& base, const RunSpec& spec) {
  const auto num_layers = std::ssize(spec.recompute);
  return base.empty() ? 0 : num_layers - std::min(num_layers, spec.decoded_layers);
}

std::string describe(const model::BaseStorage& base, const RunSpec& spec) {
  constexpr const char* kModes[] = {"nothing", "norms and activations", "norms, activations, gate and up",
                                    "the whole forward"};
  std::string text = "recomputes " + std::string(kModes[static_cast<int>(spec.recompute.front())]);
  if (spec.mlp_tile_tokens > 0) text += ", runs MLPs in tiles of " + std::to_string(spec.mlp_tile_tokens) + " tokens";
  if (const std::int64_t layers = num_streamed(base, spec); layers > 0) {
    text += ", decodes " + std::to_string(layers) + " layers twice a micro-batch";
  }
  if (spec.offload_inputs) {
    text += ", moves " + format_bytes(2 * static_cast<double>(spec.memory.host)) + " over the bus a micro-batch";
  }
  return text + ", and is planned with " + format_bytes(static_cast<double>(spec.memory.total()));
}

}  // namespace

std::vector<std::string> slower_keys(const RunFacts& facts, const RunSpec& spec) {
  std::vector<std::string> lines;
  if (!facts.is_cuda) return lines;
  for (Alternative& alternative : alternatives_to(facts)) {
    alternative.profile.schedule.micro_batch_size = spec.micro_batch_size;
    RunFacts other = with_profile(facts, alternative.profile);
    other.resume = {};
    other.algorithms.clear();
    other.base = alternative.base;
    try {
      const RunSpec without = decide(other);
      const std::int64_t streamed = num_streamed(facts.base, spec);
      const std::int64_t streamed_without = num_streamed(alternative.base, without);
      const bool tiles = spec.mlp_tile_tokens > 0, tiles_without = without.mlp_tile_tokens > 0;
      const bool is_slower = without.recompute.front() > spec.recompute.front() || streamed_without > streamed ||
                             without.offload_inputs > spec.offload_inputs || tiles_without > tiles ||
                             without.loss_chunk_bytes < spec.loss_chunk_bytes;
      const bool is_faster = without.recompute.front() < spec.recompute.front() || streamed_without < streamed ||
                             without.offload_inputs < spec.offload_inputs || tiles_without < tiles;
      if (is_slower || !is_faster) continue;
      lines.push_back(alternative.key + " costs time that this run need not spend: it " + describe(facts.base, spec) +
                      "; without the key it " + describe(alternative.base, without) + " of " +
                      format_bytes(static_cast<double>(facts.memory_bytes)));
    } catch (const DeviceError&) {  // needed, then
    }
  }
  return lines;
}

}  // namespace lora_train::plan
