#include "lora_train/model/families/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "config_reader.h"
#include "family.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::model {
namespace {

constexpr const char* kKey = "quantization_config";

constexpr const char* kRemedy =
    ": use the unquantised model, or one quantised by bitsandbytes (nf4, fp4, int8) or to FP8 (e4m3)";

constexpr std::int64_t kMaxBlock = std::int64_t{1} << 22;

bool is_true(const ConfigReader& reader, const char* key) { return reader.is_given(key) && reader.boolean(key, false); }

/// Files of early versions have only load_in_4bit or load_in_8bit.
std::string method_of(const ConfigReader& quantization) {
  if (quantization.is_given("quant_method")) return quantization.text("quant_method", "");
  if (is_true(quantization, "load_in_4bit") || is_true(quantization, "load_in_8bit")) return "bitsandbytes";
  return "";
}

QuantizationConfig read_bitsandbytes(const ConfigReader& reader) {
  const bool is_4bit = is_true(reader, "load_in_4bit") || is_true(reader, "_load_in_4bit");
  const bool is_8bit = is_true(reader, "load_in_8bit") || is_true(reader, "_load_in_8bit");
  if (is_4bit == is_8bit) {
    reader.reject("load_in_4bit", "exactly one of load_in_4bit and load_in_8bit must be true, not {}",
                  is_4bit ? "both" : "neither");
  }
  QuantizationConfig config;
  config.format = is_4bit ? LinearFormat::k4Bit : LinearFormat::kInt8;
  config.description = is_4bit ? "bitsandbytes 4-bit" : "bitsandbytes 8-bit";
  if (is_4bit && reader.is_given("bnb_4bit_quant_type")) {
    config.quant_type = reader.one_of("bnb_4bit_quant_type", {"nf4", "fp4"}, "");
    config.description += fmt::format(" ({})", config.quant_type);
  }
  (void)reader.optional_texts("llm_int8_skip_modules");  // the tensors tell which linears are plain
  return config;
}

void read_block(const ConfigReader& reader, const char* key, QuantizationConfig& config) {
  const auto sizes = reader.ids(key);
  bool is_good = sizes.size() == 2;
  for (const std::int64_t size : sizes) is_good = is_good && size >= 1 && size <= kMaxBlock;
  if (!is_good) reader.reject(key, "expected two sizes, rows and columns, as in [128, 128]");
  const bool is_other = config.block_rows != 0 && (config.block_rows != sizes[0] || config.block_columns != sizes[1]);
  if (is_other) reader.reject(key, "differs from another group; only one block size for all linears is supported");
  config.block_rows = sizes[0];
  config.block_columns = sizes[1];
}

QuantizationConfig read_fp8(const ConfigReader& reader) {
  QuantizationConfig config;
  config.format = LinearFormat::kFp8;
  config.description = "fp8";
  reader.one_of("fmt", {"e4m3"}, "e4m3");
  (void)reader.optional_texts("modules_to_not_convert");
  if (reader.is_given("weight_block_size")) {
    read_block(reader, "weight_block_size", config);
    config.has_only_blocks = true;
  } else if (!reader.has("weight_block_size")) {
    config.block_rows = config.block_columns = 128;  // the default; null: no blocks
  }
  return config;
}

/// One entry of config_groups: its weights must mean W = code * scale. Its quantisation of activations has no effect
/// here.
void read_group(const ConfigReader& group, QuantizationConfig& config) {
  const auto weights = group.optional_object("weights");
  if (!weights) group.reject("weights", "a weight scheme was expected");
  const auto expect = [&](const char* key, const std::string& found, const std::string& expected) {
    if (found == expected) return;
    weights->reject(key, "is {}; for compressed-tensors, only FP8 weights with plain scales are supported ({} here){}",
                    found, expected, kRemedy);
  };
  expect("type", weights->text("type", "int"), "float");
  expect("num_bits", std::to_string(weights->count("num_bits", 8)), "8");
  expect("symmetric", weights->boolean("symmetric", true) ? "true" : "false", "true");
  expect("dynamic", weights->boolean("dynamic", false) ? "true" : "false", "false");
  if (weights->is_given("actorder")) weights->reject("actorder", "is not supported{}", kRemedy);
  const std::string strategy = weights->one_of("strategy", {"tensor", "channel", "block"}, "tensor", kRemedy);
  if (strategy == "block") read_block(*weights, "block_structure", config);
}

QuantizationConfig read_compressed_tensors(const ConfigReader& reader) {
  QuantizationConfig config;
  config.format = LinearFormat::kFp8;
  config.description = "compressed-tensors FP8";
  const auto check_format = [](const ConfigReader& at) {
    at.one_of("format", {"float-quantized", "naive-quantized"}, "float-quantized", kRemedy);
  };
  check_format(reader);
  if (reader.optional_object("transform_config")) {
    reader.reject("transform_config", "transformed weights are not supported{}", kRemedy);
  }
  if (const auto sparsity = reader.optional_object("sparsity_config")) {
    if (sparsity->text("format", "dense") != "dense")
      sparsity->reject("format", "sparse weights are not supported{}", kRemedy);
  }
  const auto groups = reader.optional_object("config_groups");
  if (!groups) reader.reject("config_groups", "names no scheme; expected one for FP8 weights");
  for (const auto& name : groups->keys()) {
    const auto group = groups->optional_object(name.c_str());
    if (!group) groups->reject(name, "a scheme was expected");
    check_format(*group);
    read_group(*group, config);
  }
  (void)reader.optional_texts("ignore");
  return config;
}

/// Reads quantization_config of a config.json. Throws FormatError for formats that this program cannot decode.
QuantizationConfig read_quantization_config(const ConfigReader& reader) {
  const auto quantization = reader.optional_object(kKey);
  if (!quantization) return {};
  const std::string method = method_of(*quantization);
  if (method == "bitsandbytes") return read_bitsandbytes(*quantization);
  if (method == "fp8") return read_fp8(*quantization);
  if (method == "compressed-tensors") return read_compressed_tensors(*quantization);
  if (method.empty()) reader.reject(kKey, "quant_method is missing; expected bitsandbytes, fp8 or compressed-tensors");
  reader.reject(kKey, "weights stored by quant_method \"{}\" are not supported{}", method, kRemedy);
}

// Far above any existing model; keeps every product of two sizes and a layer count within 64 bits.
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 22;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 31;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 40;

/// `architectures` names the class, `model_type` the family; a file may omit one of them.
struct NamedClass {
  std::string architecture, model_type;  ///< empty: not given
  explicit NamedClass(const ConfigReader& reader) {
    const auto architectures = reader.optional_texts("architectures").value_or(std::vector<std::string>{});
    if (!architectures.empty()) architecture = architectures.front();
    if (reader.is_given("model_type")) model_type = reader.text("model_type", "");
  }

  /// The row of the table with this class, or null.
  template <class Rules>
  const Rules* find_in(std::span<const Rules> table, const ConfigReader& reader) const {
    const auto rules = std::ranges::find_if(table, [&](const Rules& row) {
      const bool is_class = !row.architecture.empty();  // others are only inside wrappers
      return is_class && (architecture.empty() ? row.model_type == model_type : row.architecture == architecture);
    });
    if (rules == table.end()) return nullptr;
    if (!model_type.empty() && rules->model_type != model_type) {
      reader.reject("model_type", "\"{}\" does not belong to architectures \"{}\", whose model_type is \"{}\"",
                    model_type, architecture, rules->model_type);
    }
    return &*rules;
  }
};

[[noreturn]] void refuse_class(const ConfigReader& reader, const NamedClass& named) {
  std::vector<std::string> names;
  for (const FamilyRules& family : families()) {
    if (!family.architecture.empty()) names.emplace_back(family.architecture);
  }
  for (const WrapperRules& wrapper : wrappers()) names.emplace_back(wrapper.architecture);
  const std::string given = named.architecture.empty() ? named.model_type : named.architecture;
  const bool is_type = named.architecture.empty() && !given.empty();
  reader.reject(is_type ? "model_type" : "architectures", "{}; supported: {}",
                given.empty() ? "neither architectures nor model_type is given" : '"' + given + "\" is not supported",
                join(names));
}

/// The text model of a config.json.
struct TextModel {
  ConfigReader top, text;  ///< the same without a wrapper
  const FamilyRules& rules;
  const WrapperRules* wrapper = nullptr;

  /// What stands at the top comes first.
  const ConfigReader& of(const char* key) const { return top.is_given(key) ? top : text; }
};

constexpr const char* kText = "text_config";

/// The keys of the text model inside a wrapper.
ConfigReader text_of(const ConfigReader& top, const WrapperRules& wrapper) {
  if (const auto text = top.optional_object(kText)) return text->with_defaults(wrapper.text_defaults);
  if (wrapper.may_be_flat && !top.has(kText)) return top;
  top.reject(kText, "is missing or empty; {} has its text model there: use the config.json published with the model",
             wrapper.architecture);
}

TextModel find_text_model(const ConfigReader& top) {
  const NamedClass named(top);
  if (const auto* rules = named.find_in(families(), top)) return {top, top.with_defaults(rules->defaults), *rules};
  const auto* wrapper = named.find_in(wrappers(), top);
  if (wrapper == nullptr) refuse_class(top, named);
  const ConfigReader text = text_of(top, *wrapper);
  const std::string type(top.has(kText) ? text.text("model_type", std::string(wrapper->text_type))
                                        : wrapper->text_type);
  const auto rules = std::ranges::find(families(), type, &FamilyRules::model_type);
  if (rules == families().end()) {
    text.reject("model_type", "\"{}\" is not supported as the text model of {}", type, wrapper->architecture);
  }
  return {top, text.with_defaults(rules->defaults), *rules, wrapper};
}

void refuse_what_is_not_computed(const ConfigReader& reader, const FamilyRules& rules) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (reader.is_given(key) && reader.count(key, 0) > 0)
      reader.reject(key, "mixture-of-experts models are not supported");
  }
  const std::string key(rules.activation_key), supported(rules.activation_name);
  const std::string activation = reader.text(key.c_str(), supported);
  if (activation != supported) reader.reject(key, "\"{}\" is not supported; expected {}", activation, supported);
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

  // In every family, null means the number of heads; a missing key gets the class default.
  const bool is_absent = !reader.has("num_key_value_heads");
  config.num_kv_heads = is_absent && rules.num_kv_heads ? *rules.num_kv_heads : config.num_heads;
  if (reader.is_given("num_key_value_heads")) config.num_kv_heads = reader.size("num_key_value_heads", kMaxHeads);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.reject("num_key_value_heads", "{}{} does not divide num_attention_heads, which is {}", config.num_kv_heads,
                  is_absent ? " (the default, the key is missing)" : "", config.num_heads);
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
    reader.reject("num_attention_heads", "{} does not divide hidden_size, which is {}, and head_dim is not given",
                  config.num_heads, config.hidden_size);
  }
  if (config.head_dim % 2 != 0) {
    reader.reject("head_dim", "{} is odd; RoPE rotates pairs, so it must be even", config.head_dim);
  }
  if (config.head_dim * config.num_heads > kMaxWidth) {
    reader.reject("head_dim", "num_attention_heads x head_dim is {}; the maximum is {}",
                  config.head_dim * config.num_heads, kMaxWidth);
  }
}

void read_token_ids(const TextModel& model, ModelConfig& config) {
  const char *const bos = "bos_token_id", *const eos = "eos_token_id", *const pad = "pad_token_id";
  config.bos_token_id = model.of(bos).has(bos) ? model.of(bos).optional_id(bos) : model.rules.bos_token_id;
  config.pad_token_id = model.of(pad).optional_id(pad);
  config.eos_token_ids = model.of(eos).ids(eos);
  if (!model.of(eos).has(eos) && model.rules.eos_token_id) config.eos_token_ids = {*model.rules.eos_token_id};
}

/// One of the flags, else the default of the class.
bool reads_tied(const TextModel& model) {
  constexpr const char* kTied = "tie_word_embeddings";
  const bool tied = model.text.boolean(kTied, model.rules.tie_word_embeddings);
  return model.wrapper == nullptr ? tied : tied || model.top.boolean(kTied, model.wrapper->tie_word_embeddings);
}

/// A head in the files that differs from the embedding counts. Errors in the files are reported when they are opened to
/// be read.
void untie_if_stored(const std::filesystem::path& folder, ModelConfig& config) {
  if (!config.tie_word_embeddings || !storage::holds_model_weights(folder)) return;
  try {
    const storage::WeightFiles weights = storage::open_model_weights(folder, /*warns=*/false);
    const storage::TensorEntry *const head = weights.find("lm_head.weight"), *const embedding = weights.find(
                                                                                 "model.embed_tokens.weight");
    if (head == nullptr || embedding == nullptr) return;
    config.tie_word_embeddings = head->dtype == embedding->dtype && weights.bytes(*head) == weights.bytes(*embedding);
    config.ignores_tie = !config.tie_word_embeddings;
  } catch (const Error&) {
  }
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
    throw FormatError(path.string(), "not valid JSON at byte {}; use the config.json published with the model",
                      error.byte);
  } catch (const nlohmann::json::exception&) {
    throw FormatError(path.string(), "holds a number that is too large; use the config.json published with the model");
  }
}

struct Shape {
  std::string_view name;
  std::string_view config;  ///< the sizes in its config.json
};

// Sources: config.json of Qwen/Qwen2.5-0.5B and -7B, Qwen/Qwen3-0.6B, -4B and -8B, mistralai/Mistral-7B-v0.3,
// mistralai/Ministral-3-{3B,8B,14B}-Instruct-2512, Mistral-Small-3.2-24B-Instruct-2506, google/gemma-3-1b-it,
// text_config of google/gemma-3-4b-it, ibm-granite/granite-3.0-2b-instruct.
constexpr std::array<Shape, 21> kShapes = {{
    {"qwen2.5-0.5b", R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
      "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen2.5-7b", R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
      "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false})"},
    {"qwen3-0.6b", R"({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
      "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen3-4b", R"({"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen3-8b", R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false})"},
    {"qwen3.5-0.8b",
     R"({"model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": {"model_type": "qwen3_5_text",
      "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
      "linear_num_key_heads": 16, "linear_num_value_heads": 16, "rope_parameters": {"rope_type": "default",
        "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}}})"},
    {"qwen3.5-2b",
     R"({"model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": {"model_type": "qwen3_5_text",
      "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
      "linear_num_key_heads": 16, "linear_num_value_heads": 16, "rope_parameters": {"rope_type": "default",
        "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}}})"},
    {"qwen3.5-4b",
     R"({"model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": {"model_type": "qwen3_5_text",
      "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32, "num_attention_heads": 16,
      "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
      "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rope_parameters": {"rope_type": "default",
        "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}}})"},
    {"qwen3.5-9b",
     R"({"model_type": "qwen3_5", "tie_word_embeddings": false, "text_config": {"model_type": "qwen3_5_text",
      "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
      "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
      "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rope_parameters": {"rope_type": "default",
        "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}}})"},
    {"qwen3.5-27b",
     R"({"model_type": "qwen3_5", "tie_word_embeddings": false, "text_config": {"model_type": "qwen3_5_text",
      "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
      "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
      "linear_num_key_heads": 16, "linear_num_value_heads": 48, "rope_parameters": {"rope_type": "default",
        "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}}})"},
    {"mistral-7b",
     R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32768, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false})"},
    {"ministral3-3b",
     R"({"model_type": "mistral3", "tie_word_embeddings": true, "text_config": {"model_type": "ministral3",
      "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072}})"},
    {"ministral3-8b",
     R"({"model_type": "mistral3", "tie_word_embeddings": false, "text_config": {"model_type": "ministral3",
      "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072}})"},
    {"ministral3-14b",
     R"({"model_type": "mistral3", "tie_word_embeddings": false, "text_config": {"model_type": "ministral3",
      "hidden_size": 5120, "intermediate_size": 16384, "num_hidden_layers": 40, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
      "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e9, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1}}})"},
    {"mistral-small-24b",
     R"({"model_type": "mistral3", "tie_word_embeddings": false, "text_config": {"model_type": "mistral",
      "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 1e9, "sliding_window": null}})"},
    {"gemma3-1b",
     R"({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
      "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
      "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "sliding_window": 512,
      "sliding_window_pattern": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})"},
    {"gemma3-4b",
     R"({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "sliding_window": 1024,
      "sliding_window_pattern": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
      "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"},
    {"granite3-2b",
     R"({"model_type": "granite", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49155, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "embedding_multiplier": 12.0,
      "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0})"},
    {"tiny-qwen2", R"({"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"tiny-qwen3", R"({"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
      "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false})"},
    {"tiny-qwen3.5", R"({"model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 160,
      "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
      "max_position_embeddings": 4096, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "linear_key_head_dim": 16, "linear_value_head_dim": 16, "tie_word_embeddings": false,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}})"},
}};

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::filesystem::path& path) {
  nlohmann::json document = parse_json(json, path);
  if (!document.is_object()) throw FormatError(path.string(), "a JSON object was expected");
  const TextModel model = find_text_model(ConfigReader(std::move(document), path));
  const ConfigReader& reader = model.text;
  const FamilyRules& rules = model.rules;
  refuse_what_is_not_computed(reader, rules);

  ModelConfig config;
  config.path = path;
  config.quantization = read_quantization_config(model.of(kKey));
  config.family = rules.family;
  config.architecture = model.wrapper != nullptr ? model.wrapper->architecture : rules.architecture;
  if (model.wrapper != nullptr) {
    config.module_prefix = "model.language_model.";
    config.file_prefix = model.wrapper->file_prefix;
  }
  read_sizes(reader, rules, config);
  read_head_dim(reader, rules, config);
  config.rms_norm_eps = reader.positive("rms_norm_eps", 1e-6);
  if (config.rms_norm_eps > 1) reader.reject("rms_norm_eps", "is above 1; models have 1e-5 or 1e-6");
  config.initializer_range = reader.positive("initializer_range", 0.02);
  config.tie_word_embeddings = reads_tied(model);
  config.activation = rules.activation;
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  config.layer_window.assign(static_cast<std::size_t>(config.num_layers), 0);
  config.qk_norm = rules.has_qk_norm;
  config.o_bias = rules.reads_attention_bias && reader.boolean("attention_bias", false);
  config.qkv_bias = rules.has_qkv_bias || config.o_bias;
  config.mlp_bias = rules.reads_mlp_bias && reader.boolean("mlp_bias", false);
  rules.read_own_keys(reader, config);
  read_rotary_dim(reader, rules, config);
  (rules.read_rope != nullptr ? rules.read_rope : read_rope)(reader, config);
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (model.of(key).is_given(key)) config.torch_dtype = model.of(key).text(key, "");
  }
  read_token_ids(model, config);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const auto path = folder / storage::kConfigFile;
  if (!std::filesystem::exists(path)) {
    throw FormatError(path.string(), "no such file; a Hugging Face model folder holds one");
  }
  ModelConfig config = parse_model_config(storage::read_model_text(path), path);
  untie_if_stored(folder, config);
  return config;
}

std::string with_own_head(const ModelConfig& base, const std::string& text) {
  if (!base.ignores_tie) return text;
  auto document = nlohmann::ordered_json::parse(text);
  document["tie_word_embeddings"] = false;
  if (document.contains("text_config")) document["text_config"]["tie_word_embeddings"] = false;
  return document.dump(2) + "\n";
}

bool is_wrapper_class(std::string_view architecture) {
  return std::ranges::count(wrappers(), architecture, &WrapperRules::architecture) > 0;
}

std::vector<std::string> known_shapes() {
  std::vector<std::string> names;
  for (const auto& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

ModelConfig known_shape(std::string_view name) {
  if (name.find('/') != std::string_view::npos) return read_model_config(name);
  for (const auto& shape : kShapes) {
    if (shape.name == name) return parse_model_config(shape.config, "shape " + std::string(name));
  }
  const std::string nearest = nearest_name(std::string(name), known_shapes());
  throw ConfigError("--shape", "unknown shape \"{}\"{}. Known shapes: {}.", name,
                    nearest.empty() ? "" : fmt::format(". Did you mean \"{}\"?", nearest), join(known_shapes()));
}

}  // namespace lora_train::model
