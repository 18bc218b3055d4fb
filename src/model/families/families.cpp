// The families, one row each, and the readers of the keys that only some of them have. Defaults are those of
// transformers' configuration classes.
#include <algorithm>
#include <cmath>

#include "family.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"

namespace lora_train::model {
namespace {

constexpr std::int64_t kLongestWindow = std::int64_t{1} << 40;  // longer than any sequence
constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";

std::vector<std::string> layer_types(const ConfigReader& reader) {
  return reader.optional_texts("layer_types").value_or(std::vector<std::string>{});
}

void require_one_for_each_layer(const ConfigReader& reader, const std::vector<std::string>& types,
                                const ModelConfig& config) {
  if (std::ssize(types) == config.num_layers) return;
  reader.reject("layer_types", "has {} entries for {} layers (num_hidden_layers)", types.size(), config.num_layers);
}

/// sliding_window; 4096 (the default of every family that has windows) if the key is missing, empty if it is null.
std::optional<std::int64_t> read_window(const ConfigReader& reader) {
  constexpr std::int64_t kDefault = 4096;
  return reader.has("sliding_window") ? reader.optional_size("sliding_window", kLongestWindow) : kDefault;
}

/// Fills layer_window from layer_types, whose entries are full_attention or sliding_attention. False if the key is
/// missing.
bool read_layer_types(const ConfigReader& reader, std::optional<std::int64_t> window, ModelConfig& config) {
  if (!reader.is_given("layer_types")) return false;
  const auto types = layer_types(reader);
  require_one_for_each_layer(reader, types, config);
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] == kFull) continue;
    if (types[i] != kSliding) {
      reader.reject("layer_types", "\"{}\" is not supported; expected {} or {}", types[i], kFull, kSliding);
    }
    if (!window) {
      reader.reject("layer_types",
                    "layer {} is sliding_attention, but there is no window: set "
                    "use_sliding_window to true and sliding_window to a size",
                    i);
    }
    config.layer_window[i] = *window;
  }
  return true;
}

/// Qwen2 and Qwen3: layer_types, else use_sliding_window and max_window_layers.
void read_qwen_keys(const ConfigReader& reader, ModelConfig& config) {
  constexpr std::int64_t kDefaultFullLayers = 28;
  std::optional<std::int64_t> window;
  if (reader.boolean("use_sliding_window", false)) window = read_window(reader);
  if (read_layer_types(reader, window, config) || !window) return;
  const auto first = reader.count("max_window_layers", kDefaultFullLayers);
  for (std::int64_t i = first; i < config.num_layers; ++i) config.layer_window[static_cast<std::size_t>(i)] = *window;
}

void read_qwen2_keys(const ConfigReader& reader, ModelConfig& config) {
  if (reader.boolean("use_mrope", false)) reader.reject("use_mrope", "multimodal RoPE is not supported");
  read_qwen_keys(reader, config);
}

/// The windows that layer_types names; without it, every layer has one.
void read_ministral_keys(const ConfigReader& reader, ModelConfig& config) {
  const auto window = read_window(reader);
  if (!read_layer_types(reader, window, config)) std::ranges::fill(config.layer_window, window.value_or(0));
}

/// A sliding window applies to every layer; null means none.
void read_mistral_keys(const ConfigReader& reader, ModelConfig& config) {
  const auto window = read_window(reader);
  std::ranges::fill(config.layer_window, window.value_or(0));
  const char* expected = window ? kSliding : kFull;
  for (const auto& type : layer_types(reader)) {
    if (type == expected) continue;
    reader.reject("layer_types",
                  "\"{}\" contradicts sliding_window, which makes every layer {}; mixed "
                  "layer types are not supported in the mistral family",
                  type, expected);
  }
}

/// No windows.
void read_llama_keys(const ConfigReader& reader, ModelConfig&) {
  for (const auto& type : layer_types(reader)) {
    if (type == kFull) continue;
    reader.reject("layer_types", "\"{}\" is not supported in this family, which has {} only", type, kFull);
  }
  if (reader.is_given("sliding_window")) {
    log_warning(reader.path().string() + ": sliding_window: this family has no sliding windows; not used");
  }
}

void read_granite_keys(const ConfigReader& reader, ModelConfig& config) {
  config.embedding_multiplier = reader.positive("embedding_multiplier", 1);
  config.attention_scale = reader.positive("attention_multiplier", 1);
  config.residual_multiplier = reader.positive("residual_multiplier", 1);
  config.logits_scaling = reader.positive("logits_scaling", 1);
}

/// Windows as layer_types says; without it, every layer has one except each sliding_window_pattern-th.
void read_gemma3_keys(const ConfigReader& reader, ModelConfig& config) {
  constexpr std::int64_t kDefaultPattern = 6;
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (reader.is_given(key)) reader.reject(key, "capped logits are not supported; Gemma 3 has null here");
  }
  if (reader.boolean("use_bidirectional_attention", false)) {
    reader.reject("use_bidirectional_attention", "only causal attention is supported");
  }
  config.has_output_norms = true;
  config.norm_weight_offset = 1;
  config.attention_scale = std::pow(reader.positive("query_pre_attn_scalar", 256), -0.5);
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
  config.rounds_embedding_multiplier = true;
  const auto window = read_window(reader);
  if (read_layer_types(reader, window, config)) return;
  const std::int64_t pattern = reader.size("sliding_window_pattern", kLongestWindow, kDefaultPattern);
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    if ((i + 1) % pattern != 0) config.layer_window[static_cast<std::size_t>(i)] = window.value_or(0);
  }
}

/// Reads rope_parameters, one object per kind of layer; or the published keys: rope_theta and rope_scaling for global
/// layers, rope_local_base_freq for layers with a window.
void read_gemma3_ropes(const ConfigReader& reader, ModelConfig& config) {
  constexpr double kGlobalTheta = 1'000'000, kLocalTheta = 10'000;
  const auto by_kind = reader.optional_object("rope_parameters");
  auto global = by_kind ? by_kind->optional_object(kFull) : std::nullopt;
  if (const auto scaling = reader.optional_object("rope_scaling")) global = scaling;
  const auto local = by_kind ? by_kind->optional_object(kSliding) : std::nullopt;
  config.rope = read_rope_kind(reader, global, reader.positive("rope_theta", kGlobalTheta), config);
  config.local_rope = read_rope_kind(reader, local, reader.positive("rope_local_base_freq", kLocalTheta), config);
}

/// The sizes of gated delta nets.
void read_gated_delta(const ConfigReader& reader, ModelConfig& config) {
  constexpr std::int64_t kMaxHeads = 4096, kMaxSize = 4096, kMaxTaps = 8;
  kernels::GatedDeltaSizes& sizes = config.gated_delta;
  sizes = {reader.size("linear_num_key_heads", kMaxHeads, 16), reader.size("linear_num_value_heads", kMaxHeads, 32),
           reader.size("linear_key_head_dim", kMaxSize, 128), reader.size("linear_value_head_dim", kMaxSize, 128)};
  if (sizes.value_heads % sizes.key_heads != 0) {
    reader.reject("linear_num_key_heads", "{} does not divide linear_num_value_heads, which is {}", sizes.key_heads,
                  sizes.value_heads);
  }
  config.convolution_taps = reader.size("linear_conv_kernel_dim", kMaxTaps, 4);
  reader.one_of("output_gate_type", {"swish", "silu"}, "swish");
  reader.one_of("mamba_ssm_dtype", {"float32"}, "float32");
}

/// Qwen3.5: gated delta nets, except in the layers that layer_types calls full_attention; without it, in each
/// full_attention_interval-th.
void read_qwen35_keys(const ConfigReader& reader, ModelConfig& config) {
  constexpr const char *kInterval = "full_attention_interval", *kLinear = "linear_attention";
  config.norm_weight_offset = 1;
  config.has_attention_gate = true;
  if (!reader.boolean("attn_output_gate", true)) {
    reader.reject("attn_output_gate", "attention without an output gate is not supported in this family");
  }
  std::vector<std::string> types = layer_types(reader);
  if (!reader.is_given("layer_types")) {
    const std::int64_t interval = reader.size(kInterval, kLongestWindow, 4);
    for (std::int64_t i = 1; i <= config.num_layers; ++i) types.emplace_back(i % interval == 0 ? kFull : kLinear);
  }
  require_one_for_each_layer(reader, types, config);
  for (const std::string& type : types) {
    if (type != kFull && type != kLinear) {
      reader.reject("layer_types", "\"{}\" is not supported; expected {} or {}", type, kFull, kLinear);
    }
    config.layer_kinds.push_back(type == kFull ? LayerKind::kAttention : LayerKind::kGatedDelta);
  }
  if (config.num_layers_of(LayerKind::kGatedDelta) > 0) read_gated_delta(reader, config);
}

void read_qwen3_next_keys(const ConfigReader& reader, ModelConfig& config) {
  read_qwen35_keys(reader, config);
  config.projects_by_key_head = true;
}

/// Qwen2-VL's and Qwen2.5-VL's text models are the same.
constexpr FamilyRules qwen2_vl_text(std::string_view model_type) {
  return {.family = Family::kQwen2,
          .model_type = model_type,
          .num_kv_heads = 8,
          .max_position_embeddings = 32768,
          .bos_token_id = 151643,
          .eos_token_id = 151645,
          .has_qkv_bias = true,
          .read_own_keys = read_qwen_keys,
          .defaults = R"({"rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "max_window_layers": 80})"};
}

constexpr FamilyRules kFamilies[] = {
    {.family = Family::kQwen2,  // and Qwen2.5: biases on q, k and v, never on o
     .model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .num_kv_heads = 32,
     .max_position_embeddings = 32768,
     .has_qkv_bias = true,
     .read_own_keys = read_qwen2_keys},
    {.family = Family::kQwen3,  // RMSNorm over each head of q and k, head_dim independent of D / H
     .model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .num_kv_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 32768,
     .has_qk_norm = true,
     .reads_attention_bias = true,
     .read_own_keys = read_qwen_keys},
    // And 3.6, 3.8: gated delta nets in three of four layers; gated attention, in which a quarter of each head rotates;
    // norms of 1 + weight.
    {.family = Family::kQwen35,
     .model_type = "qwen3_5_text",
     .architecture = "Qwen3_5ForCausalLM",
     .num_kv_heads = 4,
     .head_dim = 256,
     .partial_rotary_factor = 0.25,
     .max_position_embeddings = 32768,
     .has_qk_norm = true,
     .reads_attention_bias = true,
     .read_own_keys = read_qwen35_keys,
     .defaults = R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
         "num_attention_heads": 16})"},
    // The same, but for the order of rows in a gated delta net's linears. Published models have experts.
    {.family = Family::kQwen3Next,
     .model_type = "qwen3_next",
     .architecture = "Qwen3NextForCausalLM",
     .num_kv_heads = 2,
     .head_dim = 256,
     .partial_rotary_factor = 0.25,
     .max_position_embeddings = 32768,
     .has_qk_norm = true,
     .reads_attention_bias = true,
     .read_own_keys = read_qwen3_next_keys,
     .defaults = R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
         "num_attention_heads": 16, "num_experts": 512})"},
    {.family = Family::kMistral,  // no biases
     .model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .num_kv_heads = 8,
     .max_position_embeddings = 4096 * 32,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .read_own_keys = read_mistral_keys},
    {.family = Family::kMistral,  // windows in some layers
     .model_type = "ministral",
     .architecture = "MinistralForCausalLM",
     .num_kv_heads = 8,
     .max_position_embeddings = 4096 * 32,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .read_own_keys = read_ministral_keys},
    {.family = Family::kMinistral3,  // queries are scaled by their position
     .model_type = "ministral3",
     .architecture = "Ministral3ForCausalLM",
     .num_kv_heads = 8,
     .head_dim = 128,
     .max_position_embeddings = 262'144,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .read_own_keys = read_mistral_keys,
     .defaults = R"({"rms_norm_eps": 1e-5, "sliding_window": null, "pad_token_id": 11,
         "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
           "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1}})"},
    {.family = Family::kLlama,  // one switch for all attention biases, one for the MLP's; no windows
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .max_position_embeddings = 2048,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .read_own_keys = read_llama_keys},
    // 3, text: norms of 1 + weight before and after each block and on q and k, GeGLU, a scaled embedding, and layers
    // with a sliding window and their own RoPE base.
    {.family = Family::kGemma3,
     .model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .num_kv_heads = 4,
     .head_dim = 256,
     .max_position_embeddings = 131'072,
     .bos_token_id = 2,
     .eos_token_id = 1,
     .tie_word_embeddings = true,
     .has_qk_norm = true,
     .reads_attention_bias = true,
     .activation_key = "hidden_activation",
     .activation_name = "gelu_pytorch_tanh",
     .activation = kernels::Activation::kGeluTanh,
     .read_own_keys = read_gemma3_keys,
     .read_rope = read_gemma3_ropes},
    // 3: Llama with four multipliers: on the embedding, on the attention scores, on the output of each block, and (as
    // a divisor) on the logits.
    {.family = Family::kGranite,
     .model_type = "granite",
     .architecture = "GraniteForCausalLM",
     .max_position_embeddings = 2048,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .read_own_keys = read_granite_keys},
    // The text models of Qwen's vision models.
    qwen2_vl_text("qwen2_vl_text"),
    qwen2_vl_text("qwen2_5_vl_text"),
    {.family = Family::kQwen3,
     .model_type = "qwen3_vl_text",
     .num_kv_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 128'000,
     .has_qk_norm = true,
     .reads_attention_bias = true,
     .read_own_keys = read_llama_keys,
     .defaults = R"({"rope_theta": 500000.0})"},
};

constexpr WrapperRules kWrappers[] = {
    {.architecture = "Mistral3ForConditionalGeneration",
     .model_type = "mistral3",
     .text_type = "mistral",
     .tie_word_embeddings = true},
    {.architecture = "LlavaForConditionalGeneration",
     .model_type = "llava",
     .text_type = "llama",
     .text_defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32})"},
    {.architecture = "VoxtralForConditionalGeneration",
     .model_type = "voxtral",
     .text_type = "llama",
     .text_defaults = R"({"vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192,
         "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
         "rope_theta": 100000000.0, "head_dim": 128})"},
    {.architecture = "Qwen2VLForConditionalGeneration",
     .model_type = "qwen2_vl",
     .text_type = "qwen2_vl_text",
     .file_prefix = "model.",
     .may_be_flat = true},
    {.architecture = "Qwen2_5_VLForConditionalGeneration",
     .model_type = "qwen2_5_vl",
     .text_type = "qwen2_5_vl_text",
     .file_prefix = "model.",
     .may_be_flat = true},
    {.architecture = "Qwen3VLForConditionalGeneration",
     .model_type = "qwen3_vl",
     .text_type = "qwen3_vl_text",
     .file_prefix = "model.language_model."},
    {.architecture = "Qwen3_5ForConditionalGeneration",
     .model_type = "qwen3_5",
     .text_type = "qwen3_5_text",
     .file_prefix = "model.language_model."},
    {.architecture = "Gemma3ForConditionalGeneration",
     .model_type = "gemma3",
     .text_type = "gemma3_text",
     .tie_word_embeddings = true,
     .text_defaults = R"({"vocab_size": 262208, "num_attention_heads": 8})"},
};

}  // namespace

std::span<const FamilyRules> families() { return kFamilies; }

std::span<const WrapperRules> wrappers() { return kWrappers; }

}  // namespace lora_train::model
