#include "lora_train/model/families/model_config.h"

#include <cmath>

#include "family.h"
#include "lora_train/base/error.h"
#include "lora_train/storage/model_file.h"
#include "quantization_config.h"
#include "rope_config.h"

namespace lora_train::model {
namespace {

// Far above any model there is; keeps every product of two sizes and a layer count inside 64 bits.
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 22;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 31;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 40;

/// `architectures` names the class, `model_type` the family; a file may leave out one of them.
const FamilyRules& choose_family(const ConfigReader& reader) {
  const auto architectures = reader.optional_texts("architectures").value_or(std::vector<std::string>{});
  const std::string model_type = reader.is_given("model_type") ? reader.text("model_type", "") : "";
  const std::string supported = "; supported: " + supported_architectures();
  if (architectures.empty() && model_type.empty()) {
    reader.reject("architectures", "neither architectures nor model_type is given" + supported);
  }
  if (!architectures.empty()) {
    const auto* rules = find_family_by_architecture(architectures.front());
    if (rules == nullptr)
      reader.reject("architectures", "\"" + architectures.front() + "\" is not supported" + supported);
    if (!model_type.empty() && rules->model_type != model_type) {
      reader.reject("model_type", "\"" + model_type + "\" does not belong to architectures \"" + architectures.front() +
                                      "\", whose model_type is \"" + std::string(rules->model_type) + "\"");
    }
    return *rules;
  }
  const auto* rules = find_family_by_type(model_type);
  if (rules == nullptr) reader.reject("model_type", "\"" + model_type + "\" is not supported" + supported);
  return *rules;
}

void refuse_what_is_not_computed(const ConfigReader& reader, const FamilyRules& rules) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (reader.is_given(key) && reader.count(key, 0) > 0)
      reader.reject(key, "mixture-of-experts models are not supported");
  }
  const std::string key(rules.activation_key), supported(rules.activation_name);
  const std::string activation = reader.text(key.c_str(), supported);
  if (activation != supported) reader.reject(key, "\"" + activation + "\" is not supported; expected " + supported);
  if (reader.optional_number("attention_dropout").value_or(0.0) != 0.0) {
    reader.reject("attention_dropout",
                  "dropout on attention weights is not supported; set it to 0 (lora_dropout is unrelated)");
  }
}

void read_sizes(const ConfigReader& reader, const FamilyRules& rules, ModelConfig& config) {
  config.hidden_size = reader.size("hidden_size", kMaxWidth);
  config.num_layers = reader.size("num_hidden_layers", kMaxLayers);
  config.num_heads = reader.size("num_attention_heads", kMaxHeads);
  config.intermediate_size = reader.size("intermediate_size", kMaxWidth);
  config.vocab_size = reader.size("vocab_size", kMaxVocab);
  config.max_position_embeddings = reader.size("max_position_embeddings", kMaxLength, rules.max_position_embeddings);

  // In every family, null means as many as heads; a missing key takes the default of the class.
  const bool is_absent = !reader.has("num_key_value_heads");
  config.num_kv_heads = is_absent && rules.num_kv_heads ? *rules.num_kv_heads : config.num_heads;
  if (reader.is_given("num_key_value_heads")) config.num_kv_heads = reader.size("num_key_value_heads", kMaxHeads);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.reject("num_key_value_heads",
                  std::to_string(config.num_kv_heads) + (is_absent ? " (the default, the key is missing)" : "") +
                      " does not divide num_attention_heads, which is " + std::to_string(config.num_heads));
  }
}

void read_head_dim(const ConfigReader& reader, const FamilyRules& rules, ModelConfig& config) {
  if (rules.head_dim) {
    config.head_dim = reader.size("head_dim", kMaxWidth, *rules.head_dim);
  } else if (const auto head_dim = reader.optional_size("head_dim", kMaxWidth)) {
    config.head_dim = *head_dim;
  } else if (config.hidden_size % config.num_heads == 0) {
    config.head_dim = config.hidden_size / config.num_heads;
  } else {
    reader.reject("num_attention_heads", std::to_string(config.num_heads) + " does not divide hidden_size, which is " +
                                             std::to_string(config.hidden_size) + ", and head_dim is not given");
  }
  if (config.head_dim % 2 != 0) {
    reader.reject("head_dim", std::to_string(config.head_dim) + " is odd; RoPE rotates pairs, so it must be even");
  }
  if (config.head_dim * config.num_heads > kMaxWidth) {
    reader.reject("head_dim", "num_attention_heads x head_dim is " +
                                  std::to_string(config.head_dim * config.num_heads) + "; at most " +
                                  std::to_string(kMaxWidth) + " is possible");
  }
}

void read_token_ids(const ConfigReader& reader, const FamilyRules& rules, ModelConfig& config) {
  config.bos_token_id = reader.has("bos_token_id") ? reader.optional_id("bos_token_id") : rules.bos_token_id;
  config.pad_token_id = reader.optional_id("pad_token_id");
  config.eos_token_ids = reader.ids("eos_token_id");
  if (!reader.has("eos_token_id") && rules.eos_token_id) config.eos_token_ids = {*rules.eos_token_id};
}

nlohmann::json parse_json(std::string_view json, const std::filesystem::path& path) {
  constexpr int kMaxDepth = 64;  // copies and printing of values are recursive
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMaxDepth) throw FormatError(path.string(), "values are nested deeper than 64 levels");
    return true;
  };
  try {
    return nlohmann::json::parse(json, check_depth);
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path.string(), "not valid JSON at byte " + std::to_string(error.byte) +
                                         "; use the config.json that the model was published with");
  } catch (const nlohmann::json::exception&) {
    throw FormatError(path.string(),
                      "holds a number that is too large; use the config.json that the model was published with");
  }
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::filesystem::path& path) {
  nlohmann::json document = parse_json(json, path);
  if (!document.is_object()) throw FormatError(path.string(), "a JSON object was expected");
  const ConfigReader reader(std::move(document), path);
  const FamilyRules& rules = choose_family(reader);
  refuse_what_is_not_computed(reader, rules);

  ModelConfig config;
  config.path = path;
  config.quantization = read_quantization_config(reader);
  config.family = rules.family;
  config.architecture = rules.architecture;
  read_sizes(reader, rules, config);
  read_head_dim(reader, rules, config);
  config.rms_norm_eps = reader.positive("rms_norm_eps", 1e-6);
  if (config.rms_norm_eps > 1) reader.reject("rms_norm_eps", "is above 1; models have 1e-5 or 1e-6");
  config.initializer_range = reader.positive("initializer_range", 0.02);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", rules.tie_word_embeddings);
  config.activation = rules.activation;
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  rules.read_own_keys(reader, config);
  (rules.read_rope != nullptr ? rules.read_rope : read_rope)(reader, config);
  const char* dtype_key = reader.is_given("dtype") ? "dtype" : "torch_dtype";
  if (reader.is_given(dtype_key)) config.torch_dtype = reader.text(dtype_key, "");
  read_token_ids(reader, rules, config);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  if (!std::filesystem::exists(path)) {
    throw FormatError(path.string(), "no such file; a Hugging Face model folder holds one");
  }
  return parse_model_config(storage::read_model_text(path), path);
}

}  // namespace lora_train::model
