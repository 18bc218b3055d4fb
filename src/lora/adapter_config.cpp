// adapter_config.json: what PEFT writes and what we understand of it.
#include <nlohmann/json.hpp>

#include "adapter_tensors.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/lora/adapter_file.h"

namespace lora_train::lora {
namespace {

using nlohmann::json;

const char* const kConfigFile = "adapter_config.json";

/// Reads keys of one adapter_config.json with errors that name file and key.
class ConfigReader {
 public:
  ConfigReader(std::string file, const json& object) : file_(std::move(file)), object_(object) {}

  [[noreturn]] void fail(const std::string& key, const std::string& message) const {
    throw FormatError(file_ + ": " + key, message);
  }

  template <typename Value>
  Value get(const std::string& key, Value otherwise) const {
    if (!object_.contains(key) || object_[key].is_null()) return otherwise;
    try {
      return object_[key].get<Value>();
    } catch (const json::exception&) {
      fail(key, "has the wrong type: " + object_[key].dump());
    }
  }

  /// Refuses a value that is neither absent, null, false nor empty: we would have to ignore it.
  void refuse_unless_off(const std::string& key) const {
    if (!object_.contains(key)) return;
    const json& value = object_[key];
    const bool is_off = value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
    if (!is_off) fail(key, "is " + value.dump() + ", which is not supported; only plain LoRA adapters are");
  }

  const json& at(const std::string& key) const { return object_[key]; }
  bool contains(const std::string& key) const { return object_.contains(key); }

 private:
  std::string file_;
  const json& object_;
};

template <typename Value>
std::vector<std::pair<std::string, Value>> read_pattern(const ConfigReader& reader, const std::string& key) {
  std::vector<std::pair<std::string, Value>> pattern;
  if (!reader.contains(key) || reader.at(key).is_null()) return pattern;
  if (!reader.at(key).is_object()) reader.fail(key, "must be an object of names and numbers");
  for (const auto& [name, value] : reader.at(key).items()) {
    if (!value.is_number()) reader.fail(key, "the value of \"" + name + "\" is not a number");
    pattern.emplace_back(name, value.template get<Value>());
  }
  return pattern;
}

void read_targets(const ConfigReader& reader, LoraOptions& options) {
  if (!reader.contains("target_modules")) reader.fail("target_modules", "is missing; expected a list of linears or a regex");
  const json& targets = reader.at("target_modules");
  if (targets.is_string()) {
    if (targets == "all-linear") options.all_linear = true;
    else options.target_regex = targets.get<std::string>();
    return;
  }
  if (!targets.is_array() || targets.empty()) reader.fail("target_modules", "must be a non-empty list or a string");
  for (const auto& name : targets) {
    if (!name.is_string()) reader.fail("target_modules", "holds something that is not a string: " + name.dump());
    options.target_names.push_back(name.get<std::string>());
  }
}

template <typename Value>
json pattern_to_json(const std::vector<std::pair<std::string, Value>>& pattern) {
  json object = json::object();
  for (const auto& [name, value] : pattern) object[name] = value;
  return object;
}

json number(double value) {
  return value == static_cast<double>(static_cast<long long>(value)) ? json(static_cast<long long>(value)) : json(value);
}

}  // namespace

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  const auto path = folder / kConfigFile;
  if (!std::filesystem::exists(path)) {
    throw FormatError(path.string(), "is missing; expected a PEFT adapter folder with adapter_config.json and adapter_model.safetensors");
  }
  json object;
  try {
    object = json::parse(read_file(path));
  } catch (const json::parse_error& error) {
    throw FormatError(path.string() + ":" + std::to_string(error.byte), "is not valid JSON; save the adapter again");
  }
  if (!object.is_object()) throw FormatError(path.string(), "must hold a JSON object");
  const ConfigReader reader(path.string(), object);
  const auto type = reader.get<std::string>("peft_type", "");
  if (type != "LORA") reader.fail("peft_type", "is \"" + type + "\"; only LORA adapters are supported");
  for (const char* key : {"use_dora", "use_qalora", "modules_to_save", "trainable_token_indices", "layers_to_transform",
                          "layers_pattern", "layer_replication", "fan_in_fan_out", "megatron_config", "lora_bias",
                          "target_parameters", "exclude_modules", "alora_invocation_tokens", "use_bdlora"}) {
    reader.refuse_unless_off(key);
  }
  if (reader.get<std::string>("bias", "none") != "none") reader.fail("bias", "trains biases, which is not supported; expected \"none\"");
  AdapterConfig config;
  config.base_model_name_or_path = reader.get<std::string>("base_model_name_or_path", "");
  LoraOptions& options = config.options;
  options.file = path.string();
  read_targets(reader, options);
  options.r = reader.get<std::int64_t>("r", 8);
  options.alpha = reader.get<double>("lora_alpha", 8);
  options.dropout = reader.get<double>("lora_dropout", 0);
  options.use_rslora = reader.get<bool>("use_rslora", false);
  options.rank_pattern = read_pattern<std::int64_t>(reader, "rank_pattern");
  options.alpha_pattern = read_pattern<double>(reader, "alpha_pattern");
  return config;
}

void save_adapter(const std::filesystem::path& folder, const AdapterConfig& config,
                  const std::vector<std::string>& target_modules, const model::Parameters& parameters, SaveDtype dtype) {
  save_adapter_tensors(folder, parameters, dtype);
  const LoraOptions& options = config.options;
  json alphas = json::object();
  for (const auto& [name, value] : options.alpha_pattern) alphas[name] = number(value);
  const json object = {{"alpha_pattern", alphas},
                       {"base_model_name_or_path", config.base_model_name_or_path},
                       {"bias", "none"},
                       {"fan_in_fan_out", false},
                       {"inference_mode", true},
                       {"init_lora_weights", true},
                       {"lora_alpha", number(options.alpha)},
                       {"lora_dropout", options.dropout},
                       {"modules_to_save", nullptr},
                       {"peft_type", "LORA"},
                       {"peft_version", "0.21.2"},
                       {"r", options.r},
                       {"rank_pattern", pattern_to_json(options.rank_pattern)},
                       {"target_modules", target_modules},
                       {"task_type", "CAUSAL_LM"},
                       {"trainable_token_indices", nullptr},
                       {"use_dora", false},
                       {"use_rslora", options.use_rslora}};
  write_file_atomic(folder / kConfigFile, object.dump(2) + "\n");
}

}  // namespace lora_train::lora
