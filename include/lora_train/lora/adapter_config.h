// adapter_config.json of a PEFT adapter folder, read and written as PEFT does, the base model it was trained on, and
// which linears get an adapter, decided before the model is built. No torch. Source: huggingface/peft config.py,
// tuners/lora/config.py; tuners_utils.py and lora/model.py (check_target_module_exists, get_pattern_key).
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::lora {

/// The rank and scale of one linear's adapter.
struct RankAndScale {
  std::int64_t rank = 0;
  double scale = 1.0;  ///< alpha / r, or alpha / sqrt(r) with rsLoRA
};

/// The part of adapter_config.json that we use, from a file or for a run that writes one.
struct AdapterConfig : AdapterSection {
  std::string file = {};  ///< the adapter_config.json that it was read from; empty: the settings are the profile's
  std::string base_model_name_or_path = {};
  std::string base_weights = {};         ///< fingerprint, for base_model.json, not read
  std::string module_prefix = "model.";  ///< of the class of the base (model::ModelConfig), not read
  std::string base_class = {};  ///< auto_mapping: transformers' class of a base that holds towers too; else empty
  /// trainable_token_indices: a plain list means the embedding. `head` may repeat `embedding`: in PEFT, the two are
  /// then tied.
  model::TokenRows token_rows = {};
  // Read only: a run names the linears that are left.
  std::optional<std::set<std::int64_t>> layers = {};          ///< layers_to_transform; nullopt = all
  LoraTargets excluded = {LoraTargets::Kind::kList, {}, {}};  ///< exclude_modules, a list or an expression
};

/// One of several adapters in a model. AdapterSpec::owner is its index in the list.
struct NamedAdapter {
  std::string name;
  std::filesystem::path folder;
};

/// Throws IoError, or FormatError (where = "file: key") for another peft_type, a kind that AdapterKind lacks, biases,
/// modules_to_save and every other setting that we do not support.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

/// The rows that an adapter trains in this model, whose vocab_size is enlarged if it is too small for them
/// (model::make_room). Throws FormatError if a tied head has other rows than the embedding.
model::TokenRows token_rows_of(const AdapterConfig& adapter, const std::filesystem::path& folder,
                               model::ModelConfig& config);

/// The folder of the tokenizer that goes with an adapter: the adapter's own if it trains token rows and has one, else
/// the model's.
std::filesystem::path tokenizer_folder(const std::filesystem::path& model, const std::filesystem::path& adapter);

/// The text of adapter_config.json, from which read_adapter_config reads the same options. The targets must be names or
/// an expression (explicit_targets).
std::string adapter_config_json(const AdapterConfig& config);

/// The text of base_model.json. `weights` is WeightFiles::fingerprint() of the base.
std::string base_file_text(const std::string& weights);

/// How to treat an adapter that was trained on other weights.
struct OtherBase {
  bool is_allowed = false;  ///< warn instead of refusing
  std::string flag;         ///< the option that allows it, for the message
};

/// Compares the base of the adapter with `model`. Refuses weights known to differ (ConfigError), even under the same
/// name; the same weights may have any name. If base_model.json is missing or not ours, warns about another name in
/// adapter_config.json. Samples the weights only if base_model.json exists. Throws what read_adapter_config and
/// open_model_weights throw.
void check_base(const std::filesystem::path& adapter, const storage::ResolvedModel& model, const OtherBase& other);

/// One entry per path ("model.layers.0.self_attn.q_proj", in any class), with patterns applied. Throws what
/// plan_adapters throws.
std::vector<RankAndScale> ranks_and_scales(const AdapterConfig& options, const std::vector<std::string>& paths);

/// One adapter per targeted linear of the text model, in model order. Targets and patterns may name it as its own class
/// or the class that holds it does. Throws ConfigError (FormatError for options from a file) if a
/// target matches no linear, listing the valid names; if a pattern is not a valid regular expression; or if a rank is
/// not in 1..kMaxLoraRank.
std::vector<model::AdapterSpec> plan_adapters(const AdapterConfig& options, const model::ModelConfig& config);

/// Finds entries of rank_pattern and alpha_pattern that have no effect, because they are not the first match of any
/// targeted linear. Throws ConfigError for options from a profile. Only warns for options from a file, since PEFT loads
/// those too.
void check_patterns(const AdapterConfig& options, const model::ModelConfig& config);

/// target_modules for adapter_config.json: the last name parts of the targeted linears, sorted and unique ("down_proj",
/// "q_proj"), or full paths if a short name would also match a linear without an adapter. For a class with towers, an
/// expression for the whole names in the text model, because towers have linears of the same names.
LoraTargets explicit_targets(const std::vector<model::AdapterSpec>& specs, const model::ModelConfig& config);

/// Sets what adapter_config.json says of the class of the base: targets as explicit_targets, patterns that PEFT matches
/// on that class with the same values, prefix and class.
void spell_for_class(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& specs,
                     AdapterConfig& options);

/// The first layer with an adapter. Layers below it need no backward.
std::int64_t first_adapted_layer(const std::vector<model::AdapterSpec>& specs);

struct AdapterChoice {
  AdapterConfig config;
  std::vector<model::AdapterSpec> specs;  ///< empty with adapter: none
};

/// Throws what read_adapter_config, plan_adapters and check_patterns throw (patterns from a file are not checked: call
/// check_patterns to warn); ConfigError for an init_adapter that the profile contradicts; FormatError for full
/// fine-tuning of a model that is stored quantised.
AdapterChoice choose_adapters(const Profile& profile, const model::ModelConfig& config);

}  // namespace lora_train::lora
