#include "lora_train/lora/choose_adapters.h"

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::lora {
namespace {

/// A profile key that init_adapter also defines, and how the profile's value replaces the adapter's.
struct AdapterKey {
  const char* name;
  void (*replace)(const AdapterSection& requested, AdapterSection& options);
};

constexpr AdapterKey kAdapterKeys[] = {
    {"lora_r", [](const auto& requested, auto& options) { options.lora_r = requested.lora_r; }},
    {"lora_alpha", [](const auto& requested, auto& options) { options.lora_alpha = requested.lora_alpha; }},
    {"use_rslora", [](const auto& requested, auto& options) { options.use_rslora = requested.use_rslora; }},
    {"rank_pattern", [](const auto& requested, auto& options) { options.rank_pattern = requested.rank_pattern; }},
    {"alpha_pattern", [](const auto& requested, auto& options) { options.alpha_pattern = requested.alpha_pattern; }},
    {"lora_target_modules",
     [](const auto& requested, auto& options) { options.lora_target_modules = requested.lora_target_modules; }}};

/// Keys given together with init_adapter must describe the linears, ranks and scales that the adapter has. Their spelling does
/// not matter: all-linear, or the list that such a run writes.
void refuse_contradiction(const Profile& profile, const LoraOptions& loaded,
                          const std::vector<model::AdapterSpec>& specs, const model::ModelConfig& config) {
  LoraOptions all_replaced = loaded;
  all_replaced.file.clear();
  std::vector<std::string> given, wrong;
  for (const AdapterKey& key : kAdapterKeys) {
    if (!profile.is_given(key.name)) continue;
    given.emplace_back(key.name);
    key.replace(profile.adapter, all_replaced);
    LoraOptions one_replaced = loaded;
    one_replaced.file.clear();
    key.replace(profile.adapter, one_replaced);
    if (plan_adapters(one_replaced, config) != specs) wrong.emplace_back(key.name);
  }
  if (plan_adapters(all_replaced, config) == specs) return;
  throw ConfigError("init_adapter", "the adapter in " + profile.adapter.init_adapter +
                                        " and the profile disagree about " + join(wrong.empty() ? given : wrong) +
                                        "; leave these keys out, the adapter sets them");
}

}  // namespace

AdapterChoice choose_adapters(const Profile& profile, const model::ModelConfig& config) {
  if (profile.adapter.kind == AdapterKind::kNone) {
    model::refuse_quantised(config, "full fine-tuning (adapter: none)");
    return {};
  }
  AdapterChoice choice;
  if (profile.adapter.init_adapter.empty()) {
    choice.config.options = {profile.adapter, {}};
  } else {
    choice.config = read_adapter_config(profile.adapter.init_adapter);
    choice.config.options.lora_dropout = profile.adapter.lora_dropout;
  }
  const LoraOptions& options = choice.config.options;
  choice.specs = plan_adapters(options, config);
  if (options.file.empty()) check_patterns(options, config);
  if (!profile.adapter.init_adapter.empty()) refuse_contradiction(profile, options, choice.specs, config);
  for (model::AdapterSpec& spec : choice.specs) spec.lr_factor_b = profile.optimizer.loraplus_lr_ratio.value_or(1.0);
  return choice;
}

}  // namespace lora_train::lora
