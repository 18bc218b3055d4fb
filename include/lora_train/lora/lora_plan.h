// Which linears get an adapter, decided before the model is built. Source: peft, tuners_utils.py and lora/model.py
// (check_target_module_exists, get_pattern_key).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/layer_shape.h"

namespace lora_train::lora {

/// The adapter settings of a profile or an adapter_config.json.
struct LoraOptions : AdapterSection {
  std::string file;  ///< the adapter_config.json that these come from; empty: the profile
};

/// The rank and scale of one linear's adapter.
struct RankAndScale {
  std::int64_t rank = 0;
  double scale = 1.0;  ///< alpha / r, or alpha / sqrt(r) with rsLoRA
};

/// One entry per path ("model.layers.0.self_attn.q_proj"), with patterns applied. Throws what plan_adapters throws.
std::vector<RankAndScale> ranks_and_scales(const LoraOptions& options, const std::vector<std::string>& paths);

/// One adapter per targeted linear, in model order. Throws ConfigError (FormatError for options from a file) if a
/// target matches no linear, listing the valid names; if a pattern is not a valid regular expression; or if a rank is
/// not in 1..kMaxLoraRank.
std::vector<model::AdapterSpec> plan_adapters(const LoraOptions& options, const model::ModelConfig& config);

/// Finds entries of rank_pattern and alpha_pattern that have no effect, because they are not the first match of any
/// targeted linear. Throws ConfigError for options from a profile. Only warns for options from a file, since PEFT loads
/// those too.
void check_patterns(const LoraOptions& options, const model::ModelConfig& config);

/// target_modules for adapter_config.json: the last name parts of the targeted linears, sorted and unique ("down_proj",
/// "q_proj"), or full paths if a short name would also match a linear without an adapter.
std::vector<std::string> explicit_targets(const std::vector<model::AdapterSpec>& specs,
                                          const model::ModelConfig& config);

/// The first layer with an adapter. Layers below it need no backward.
std::int64_t first_adapted_layer(const std::vector<model::AdapterSpec>& specs);

}  // namespace lora_train::lora
