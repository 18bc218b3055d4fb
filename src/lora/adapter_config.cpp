#include "lora_train/lora/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/lora/merge.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::lora {
namespace {

// Keeps the order of the file: PEFT takes the first pattern that matches.
using Json = nlohmann::ordered_json;

// Defaults of peft.LoraConfig, for keys missing from the file.
constexpr std::int64_t kPeftDefaultRank = 8;
constexpr double kPeftDefaultAlpha = 8;

/// Reads keys of one adapter_config.json with errors that name file and key.
class AdapterConfigReader {
 public:
  AdapterConfigReader(std::string file, const Json& object) : file_(std::move(file)), object_(object) {}

  [[noreturn]] void fail(const std::string& key, const std::string& message) const {
    throw FormatError(fmt::format("{}: {}", file_, key), message);
  }

  template <typename Value>
  Value get(const std::string& key, Value otherwise) const {
    if (!is_given(key)) return otherwise;
    try {
      return object_[key].get<Value>();
    } catch (const Json::exception&) {
      fail(key, "has the wrong type: " + object_[key].dump());
    }
  }

  /// The rank at this key, or in one of its patterns.
  std::int64_t rank(const std::string& key, const Json& value) const {
    const bool is_rank = value.is_number_integer() && value >= 1 && value <= kMaxLoraRank;
    if (!is_rank) {
      fail(key, fmt::format("is {}; a whole number from 1 to {} was expected", value.dump(), kMaxLoraRank));
    }
    return value.get<std::int64_t>();
  }

  /// The alpha at this key, or in one of its patterns.
  double positive(const std::string& key, const Json& value) const {
    if (!value.is_number() || value <= 0) fail(key, "is " + value.dump() + "; a number above zero was expected");
    return value.get<double>();
  }

  /// Refuses a key unless it is absent, null, false or empty: we would have to ignore its value.
  void refuse_unless_off(const std::string& key) const {
    if (!object_.contains(key)) return;
    const Json& value = object_[key];
    const bool is_empty = (value.is_array() || value.is_object()) && value.empty();
    const bool is_off = value.is_null() || value == false || value == "" || is_empty;
    if (!is_off) fail(key, "is " + value.dump() + ", which is not supported; expected false, null or an empty value");
  }

  const Json& at(const std::string& key) const { return object_[key]; }
  bool contains(const std::string& key) const { return object_.contains(key); }
  bool is_given(const std::string& key) const { return contains(key) && !object_[key].is_null(); }

 private:
  std::string file_;
  const Json& object_;
};

/// Reads the value at `key`, and at each entry of the object at `pattern_key` in the order of the file, by the reader's
/// function `read`.
template <typename Value>
void read_with_pattern(const AdapterConfigReader& reader, const char* key, const char* pattern_key,
                       Value (AdapterConfigReader::*read)(const std::string&, const Json&) const, Value& value,
                       std::vector<std::pair<std::string, Value>>& pattern) {
  if (reader.is_given(key)) value = (reader.*read)(key, reader.at(key));
  if (!reader.is_given(pattern_key)) return;
  if (!reader.at(pattern_key).is_object()) reader.fail(pattern_key, "must be an object of names and numbers");
  for (const auto& [name, entry] : reader.at(pattern_key).items()) {
    pattern.emplace_back(name, (reader.*read)(fmt::format("{}.{}", pattern_key, name), entry));
  }
}

AdapterKind read_kind(const AdapterConfigReader& reader) {
  AdapterKind kind = AdapterKind::kLora;
  for (const auto& name : flagged_kinds()) {
    const auto flagged = from_string<AdapterKind>(name);
    if (!flagged) {
      reader.refuse_unless_off("use_" + name);
    } else if (reader.get<bool>("use_" + name, false)) {
      kind = *flagged;
    }
  }
  return kind;
}

/// The other initialisations change the base weights, and PEFT repeats them whenever it loads an adapter.
void check_initialisation(const AdapterConfigReader& reader) {
  const char* key = "init_lora_weights";
  if (!reader.contains(key)) return;
  const Json& value = reader.at(key);
  if (value.is_null() || value.is_boolean() || value == "gaussian" || value == "eva" || value == "orthogonal") return;
  reader.fail(key, fmt::format("is {}; expected true, false, \"gaussian\", \"eva\" or \"orthogonal\", which leave the "
                               "base weights unchanged. Convert the adapter with PEFT's save_pretrained(..., "
                               "path_initial_model_for_weight_conversion=...)",
                               value.dump()));
}

/// The modules at this key: a list of names, or an expression.
LoraTargets read_modules(const AdapterConfigReader& reader, const char* key) {
  const Json& modules = reader.at(key);
  if (modules.is_string()) return {LoraTargets::Kind::kRegex, {}, modules.get<std::string>()};
  if (!modules.is_array()) reader.fail(key, "must be a list or a string");
  LoraTargets listed{LoraTargets::Kind::kList, {}, {}};
  for (const auto& name : modules) {
    if (!name.is_string()) reader.fail(key, "has an entry that is not a string: " + name.dump());
    listed.names.push_back(name.get<std::string>());
  }
  return listed;
}

LoraTargets read_targets(const AdapterConfigReader& reader) {
  if (!reader.contains("target_modules"))
    reader.fail("target_modules", "is missing; expected a list of linears or a regex");
  LoraTargets targets = read_modules(reader, "target_modules");
  if (targets.regex == "all-linear") return {};
  if (targets == LoraTargets{LoraTargets::Kind::kList, {}, {}})
    reader.fail("target_modules", "must be a non-empty list or a string");
  return targets;
}

/// layers_to_transform: a number or a list. layers_pattern names the list of layers, of which these models have one.
std::optional<std::set<std::int64_t>> read_layers(const AdapterConfigReader& reader) {
  const char *key = "layers_to_transform", *pattern_key = "layers_pattern";
  if (!reader.is_given(key) || reader.at(key).is_null()) return std::nullopt;
  const Json layers = reader.at(key).is_array() ? reader.at(key) : Json::array({reader.at(key)});
  if (layers.empty()) return std::nullopt;
  if (reader.is_given(pattern_key)) {
    const LoraTargets patterns = read_modules(reader, pattern_key);
    const bool is_any = patterns.names.empty() && patterns.regex.empty();
    if (!is_any && patterns.regex != "layers" && std::ranges::count(patterns.names, "layers") == 0)
      reader.fail(pattern_key,
                  "is " + reader.at(pattern_key).dump() + "; the layers of these models are in \"layers\"");
  }
  std::set<std::int64_t> numbers;
  for (const Json& layer : layers) {
    if (!layer.is_number_integer()) reader.fail(key, "is " + layers.dump() + "; numbers of layers were expected");
    numbers.insert(layer.get<std::int64_t>());
  }
  return numbers;
}

/// For the card: a class that holds towers too, else nothing.
std::string read_base_class(const AdapterConfigReader& reader) {
  if (!reader.is_given("auto_mapping") || !reader.at("auto_mapping").is_object()) return {};
  const Json name = reader.at("auto_mapping").value("base_model_class", Json());
  const bool is_known = name.is_string() && model::is_wrapper_class(name.get_ref<const std::string&>());
  return is_known ? name.get<std::string>() : std::string();
}

constexpr const char* kRowsKey = "trainable_token_indices";

std::vector<std::int64_t> read_ids(const AdapterConfigReader& reader, const std::string& where, const Json& value) {
  constexpr std::int64_t kMaxId = 1 << 24;
  std::vector<std::int64_t> ids;
  if (!value.is_array()) reader.fail(where, fmt::format("is {}; a list of token ids was expected", value.dump()));
  for (const Json& id : value) {
    if (!id.is_number_integer() || id < 0 || id >= kMaxId)
      reader.fail(where, fmt::format("holds {}, which is not a token id", id.dump()));
    if (std::ranges::count(ids, id.get<std::int64_t>()) > 0) reader.fail(where, "names id " + id.dump() + " twice");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

/// A list, or an object of module name: list.
model::TokenRows read_token_rows(const AdapterConfigReader& reader) {
  model::TokenRows rows;
  if (!reader.is_given(kRowsKey)) return rows;
  const Json& value = reader.at(kRowsKey);
  if (!value.is_object()) {
    rows.embedding = read_ids(reader, kRowsKey, value);
    return rows;
  }
  for (const auto& [module, ids] : value.items()) {
    const bool is_embedding = module == "embed_tokens" || model::text_class_name(module) == "model.embed_tokens";
    if (!is_embedding && module != "lm_head") {
      reader.fail(kRowsKey, "names rows of \"" + module + "\"; only rows of embed_tokens and lm_head can be trained");
    }
    (is_embedding ? rows.embedding : rows.head) = read_ids(reader, kRowsKey, ids);
  }
  return rows;
}

/// In PEFT's form: a list for a tied head, else an object.
Json token_rows_json(const model::TokenRows& rows) {
  if (rows.empty()) return nullptr;
  if (rows.head.empty()) return rows.embedding;
  Json object = Json::object();
  if (!rows.embedding.empty()) object["embed_tokens"] = rows.embedding;
  object["lm_head"] = rows.head;
  return object;
}

/// 16 rather than 16.0, as PEFT writes it.
Json number(double value) {
  constexpr double kLargestExact = 9007199254740992.0;  // 2^53
  const bool is_whole = std::abs(value) <= kLargestExact && std::floor(value) == value;
  return is_whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json parse_config(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    throw FormatError(
        path.string(),
        "is missing; expected a PEFT adapter folder with adapter_config.json and adapter_model.safetensors");
  }
  constexpr int kMaxDepth = 64;  // printing of values is recursive
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw FormatError(path.string(), "values are nested deeper than 64 levels");
    return true;
  };
  Json object;
  try {
    object = Json::parse(storage::read_model_text(path), check_depth);
  } catch (const Json::parse_error& error) {
    throw FormatError(fmt::format("{}:{}", path.string(), error.byte), "is not valid JSON; save the adapter again");
  } catch (const Json::out_of_range&) {
    throw FormatError(path.string(), "holds a number that does not fit into 64 bits; save the adapter again");
  }
  if (!object.is_object()) throw FormatError(path.string(), "must hold a JSON object");
  return object;
}

namespace fs = std::filesystem;

constexpr const char* kMadeBy = "lora-train";
constexpr int kVersion = 1;  // also of the fingerprint

/// The fingerprint in base_model.json; empty if there is none or the file is not ours.
std::string recorded_weights(const fs::path& adapter) {
  constexpr std::size_t kMaxBytes = 4096;
  const fs::path file = adapter / storage::kBaseModelFile;
  if (!fs::is_regular_file(file)) return {};
  const auto object = nlohmann::json::parse(read_start(file, kMaxBytes), nullptr, /*allow_exceptions=*/false);
  const auto value = [&](const char* key) {
    return object.is_object() ? object.value(key, nlohmann::json()) : nlohmann::json();
  };
  const bool is_ours = value("made_by") == kMadeBy && value("version") == kVersion && value("weights").is_string();
  return is_ours ? value("weights").get<std::string>() : "";
}

bool is_name_of(const std::string& name, const storage::ResolvedModel& model) {
  if (name == model.hub_name || name == model.folder.string()) return true;
  std::error_code error;
  return fs::equivalent(name, model.folder, error);
}

/// A profile key that init_adapter also defines, with the function that replaces the adapter's value by the profile's.
struct AdapterKey {
  const char* name;
  void (*replace)(const AdapterSection& requested, AdapterSection& options);
};

template <auto kMember>
void replace(const AdapterSection& requested, AdapterSection& options) {
  options.*kMember = requested.*kMember;
}

constexpr AdapterKey kAdapterKeys[] = {{"lora_r", replace<&AdapterSection::lora_r>},
                                       {"lora_alpha", replace<&AdapterSection::lora_alpha>},
                                       {"use_rslora", replace<&AdapterSection::use_rslora>},
                                       {"rank_pattern", replace<&AdapterSection::rank_pattern>},
                                       {"alpha_pattern", replace<&AdapterSection::alpha_pattern>},
                                       {"lora_target_modules", replace<&AdapterSection::lora_target_modules>}};

/// Keys given together with init_adapter must describe the adapter's linears, ranks and scales. Their spelling does not
/// matter: all-linear, or the list that such a run writes.
void refuse_contradiction(const Profile& profile, const AdapterChoice& choice, const model::ModelConfig& config) {
  AdapterConfig loaded = choice.config;
  loaded.file.clear();
  AdapterConfig all_replaced = loaded;
  std::vector<std::string> given, wrong;
  for (const AdapterKey& key : kAdapterKeys) {
    if (!profile.is_given(key.name)) continue;
    given.emplace_back(key.name);
    key.replace(profile.adapter, all_replaced);
    AdapterConfig one_replaced = loaded;
    key.replace(profile.adapter, one_replaced);
    if (plan_adapters(one_replaced, config) != choice.specs) wrong.emplace_back(key.name);
  }
  if (plan_adapters(all_replaced, config) == choice.specs) return;
  throw ConfigError("init_adapter", "the adapter in " + profile.adapter.init_adapter +
                                        " and the profile disagree about " + join(wrong.empty() ? given : wrong) +
                                        "; omit these keys: the adapter sets them");
}

}  // namespace

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  const auto path = folder / storage::kAdapterConfigFile;
  const Json object = parse_config(path);
  const AdapterConfigReader reader(path.string(), object);
  const auto type = reader.get<std::string>("peft_type", "");
  if (type != "LORA") reader.fail("peft_type", fmt::format("is \"{}\"; only LORA adapters are supported", type));
  for (const char* key :
       {"modules_to_save", "layer_replication", "fan_in_fan_out", "megatron_config", "lora_bias", "target_parameters",
        "alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    reader.refuse_unless_off(key);
  }
  const AdapterKind kind = read_kind(reader);
  check_initialisation(reader);
  if (reader.get<std::string>("bias", "none") != "none")
    reader.fail("bias", "trains biases, which is not supported; expected \"none\"");
  AdapterConfig config;
  config.base_model_name_or_path = reader.get<std::string>("base_model_name_or_path", "");
  config.file = path.string();
  config.kind = kind;
  config.lora_target_modules = read_targets(reader);
  config.layers = read_layers(reader);
  if (reader.is_given("exclude_modules")) config.excluded = read_modules(reader, "exclude_modules");
  config.lora_r = kPeftDefaultRank;
  config.lora_alpha = kPeftDefaultAlpha;
  read_with_pattern(reader, "r", "rank_pattern", &AdapterConfigReader::rank, config.lora_r, config.rank_pattern);
  read_with_pattern(reader, "lora_alpha", "alpha_pattern", &AdapterConfigReader::positive, config.lora_alpha,
                    config.alpha_pattern);
  config.lora_dropout = reader.get<double>("lora_dropout", 0);
  if (!(config.lora_dropout >= 0 && config.lora_dropout < 1)) {
    reader.fail("lora_dropout", "is " + reader.at("lora_dropout").dump() + "; a number from 0 to below 1 was expected");
  }
  config.use_rslora = reader.get<bool>("use_rslora", false);
  config.token_rows = read_token_rows(reader);
  config.base_class = read_base_class(reader);
  return config;
}

model::TokenRows token_rows_of(const AdapterConfig& adapter, const std::filesystem::path& folder,
                               model::ModelConfig& config) {
  model::TokenRows rows = adapter.token_rows;
  if (rows.empty()) return rows;
  if (config.tie_word_embeddings) {
    if (!rows.head.empty() && rows.head != rows.embedding) {
      throw FormatError(fmt::format("{}: {}", (folder / storage::kAdapterConfigFile).string(), kRowsKey),
                        "names different rows for lm_head and embed_tokens, but the model ties both "
                        "(tie_word_embeddings); expected the same rows, or embed_tokens alone");
    }
    rows.head.clear();
  }
  std::int64_t num_ids = 0;
  for (const auto* ids : {&rows.embedding, &rows.head}) {
    for (const std::int64_t id : *ids) num_ids = std::max(num_ids, id + 1);
  }
  constexpr std::int64_t kMostRowsAbove = 1 << 16;
  if (num_ids > config.vocab_size + kMostRowsAbove) {
    throw FormatError(fmt::format("{}: {}", (folder / storage::kAdapterConfigFile).string(), kRowsKey),
                      "names id {}, far above the {} rows of the model; the adapter belongs to another model",
                      num_ids - 1, config.vocab_size);
  }
  const storage::WeightFiles file = open_adapter_file(folder);
  if (const auto* saved = file.find(kSavedEmbedding)) {  // the size to which the model was resized
    if (saved->shape.size() == 2) model::make_room(std::min(saved->shape[0], num_ids + kMostRowsAbove), config, 1);
  }
  model::make_room(num_ids, config);
  return rows;
}

std::filesystem::path tokenizer_folder(const std::filesystem::path& model, const std::filesystem::path& adapter) {
  if (adapter.empty() || read_adapter_config(adapter).token_rows.empty()) return model;
  return merged_tokenizer_folder(model, adapter);
}

std::string adapter_config_json(const AdapterConfig& config) {
  const LoraTargets& targets = config.lora_target_modules;
  const bool is_list = targets.kind == LoraTargets::Kind::kList;
  Json ranks = Json::object(), alphas = Json::object();
  for (const auto& [name, value] : config.rank_pattern) ranks[name] = value;
  for (const auto& [name, value] : config.alpha_pattern) alphas[name] = number(value);
  const Json auto_mapping = {{"base_model_class", config.base_class}, {"parent_library", "transformers"}};
  Json object = {{"alpha_pattern", alphas},
                 {"auto_mapping", config.base_class.empty() ? Json() : auto_mapping},
                 {"base_model_name_or_path", config.base_model_name_or_path},
                 {"bias", "none"},
                 {"fan_in_fan_out", false},
                 {"inference_mode", true},
                 {"init_lora_weights", true},
                 {"lora_alpha", number(config.lora_alpha)},
                 {"lora_dropout", config.lora_dropout},
                 {"modules_to_save", nullptr},
                 {"peft_type", "LORA"},
                 {"peft_version", "0.21.2"},
                 {"r", config.lora_r},
                 {"rank_pattern", ranks},
                 {"target_modules", is_list ? Json(targets.names) : Json(targets.regex)},
                 {"task_type", "CAUSAL_LM"},
                 {kRowsKey, token_rows_json(config.token_rows)},
                 {"use_dora", false},
                 {"use_rslora", config.use_rslora}};
  for (const auto& name : flagged_kinds()) {
    if (name == to_string(config.kind)) object["use_" + name] = true;
  }
  return object.dump(2) + "\n";
}

std::string base_file_text(const std::string& weights) {
  const nlohmann::ordered_json object = {{"made_by", kMadeBy}, {"version", kVersion}, {"weights", weights}};
  return object.dump(2) + "\n";
}

void check_base(const fs::path& adapter, const storage::ResolvedModel& model, const OtherBase& other) {
  const std::string name = read_adapter_config(adapter).base_model_name_or_path;
  const std::string used = model.hub_name.empty() ? model.folder.string() : model.hub_name;
  const std::string recorded = recorded_weights(adapter);
  if (recorded.empty()) {
    if (!name.empty() && !is_name_of(name, model)) {
      log_warning("{}: the adapter names {} as its base model, but is used with {}", adapter.string(), name, used);
    }
    return;
  }
  if (recorded == storage::open_model_weights(model.folder).fingerprint()) return;
  const std::string what = fmt::format("the adapter was trained on other weights ({}), not those in {}",
                                       name.empty() ? "an unnamed model" : name, used);
  if (!other.is_allowed) {
    throw ConfigError(adapter.string(), "{}. Use it with that model, or pass {}", what, other.flag);
  }
  log_warning("{}: {}", adapter.string(), what);
}

AdapterChoice choose_adapters(const Profile& profile, const model::ModelConfig& config) {
  if (profile.adapter.kind == AdapterKind::kNone) {
    model::refuse_quantised(config, "full fine-tuning (adapter: none)");
    return {};
  }
  AdapterChoice choice;
  if (profile.adapter.init_adapter.empty()) {
    choice.config = {profile.adapter};
  } else {
    choice.config = read_adapter_config(profile.adapter.init_adapter);
    choice.config.lora_dropout = profile.adapter.lora_dropout;
  }
  choice.specs = plan_adapters(choice.config, config);
  if (choice.config.file.empty()) check_patterns(choice.config, config);
  if (!profile.adapter.init_adapter.empty()) refuse_contradiction(profile, choice, config);
  for (model::AdapterSpec& spec : choice.specs) spec.lr_factor_b = profile.optimizer.loraplus_lr_ratio.value_or(1.0);
  return choice;
}

}  // namespace lora_train::lora
