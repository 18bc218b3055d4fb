#include "architecture.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"

namespace lora_train::gguf {
namespace {

using model::Family;
using model::RopeType;

struct TensorName {
  const char* hugging_face;
  const char* gguf;
};

// Within a layer; without .weight or .bias.
constexpr TensorName kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
};
// Names without .weight.
constexpr TensorName kWholeNames[] = {{"linear_attn.A_log", "ssm_a"}, {"linear_attn.dt_bias", "ssm_dt.bias"}};
constexpr TensorName kOuterNames[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};

// Names whose meaning depends on whether blocks have a norm on their output.
constexpr TensorName kNormNames[] = {{"post_attention_layernorm", "ffn_norm"}};
constexpr TensorName kQwen35NormNames[] = {{"post_attention_layernorm", "post_attention_norm"}};
constexpr TensorName kOutputNormNames[] = {{"post_attention_layernorm", "post_attention_norm"},
                                           {"pre_feedforward_layernorm", "ffn_norm"},
                                           {"post_feedforward_layernorm", "post_ffw_norm"}};

template <std::size_t N>
const char* find_name(const TensorName (&table)[N], const std::string& name) {
  for (const auto& row : table) {
    if (name == row.hugging_face) return row.gguf;
  }
  return nullptr;
}

[[noreturn]] void refuse(const model::ModelConfig& config, const char* key, const std::string& message) {
  throw FormatError(config.path.string() + ": " + key, message + "; GGUF has no place for it in the " +
                                                           architecture_name(config) + " architecture of llama.cpp");
}

bool has_rotated_pairs(const model::ModelConfig& config) {
  return config.family == Family::kMistral || config.family == Family::kMinistral3 || config.family == Family::kLlama ||
         config.family == Family::kGranite;
}

bool is_qwen_vl(const model::ModelConfig& config) {
  return config.is_in_wrapper() && (config.family == Family::kQwen2 || config.family == Family::kQwen3);
}

bool is_mistral3(const model::ModelConfig& config) {
  return config.family == Family::kMinistral3 || config.architecture == "Mistral3ForConditionalGeneration";
}

/// What yarn divides its factor of cos and sin by; 0: by nothing. llama.cpp has it in the mistral3 architecture.
double yarn_log_multiplier(const model::ModelConfig& config) {
  return is_mistral3(config) && config.rope.mscale != 0 ? config.rope.mscale_all_dim : 0;
}

void check_rope(const model::ModelConfig& config) {
  const auto& rope = config.rope;
  const std::string name(rope_type_name(rope.type));
  if (rope.type == RopeType::kLongrope) refuse(config, "rope_type", "longrope cannot be exported");
  if (rope.type == RopeType::kLlama3 && !has_rotated_pairs(config)) {
    refuse(config, "rope_type", "llama3 cannot be exported");
  }
  if (rope.type == RopeType::kYarn) {
    if (!rope.truncate) refuse(config, "truncate", "false cannot be exported");
    const double log = 0.1 * std::log(*rope.factor), usual = (log + 1) / (log * yarn_log_multiplier(config) + 1);
    if (std::fabs(model::rope_attention_factor(config) - usual) > 1e-6 * usual) {
      refuse(config, "attention_factor", fmt::format("a value other than {:g} cannot be exported", usual));
    }
  }
  if (config.family == Family::kGemma3) {
    if (rope.type != RopeType::kDefault && rope.type != RopeType::kLinear) {
      refuse(config, "rope_type", name + " cannot be exported");
    }
    if (config.local_rope && config.local_rope->type != RopeType::kDefault) {
      refuse(config, "rope_parameters", "scaled RoPE in layers with a window cannot be exported");
    }
  }
}

void check_gemma(const model::ModelConfig& config) {
  constexpr std::int64_t kLayersOf27B = 62;
  const std::int64_t size = config.num_layers == kLayersOf27B ? config.hidden_size / config.num_heads : config.head_dim;
  const double expected = 1 / std::sqrt(static_cast<double>(size));
  if (std::fabs(config.attention_scale - expected) > 1e-6 * expected) {
    refuse(config, "query_pre_attn_scalar", fmt::format("a value other than {} cannot be exported", size));
  }
  std::int64_t window = 0;
  for (const std::int64_t of_layer : config.layer_window) {
    if (of_layer != 0 && window != 0 && of_layer != window)
      refuse(config, "layer_types", "windows of several sizes cannot be exported");
    window = std::max(window, of_layer);
  }
}

std::int64_t smallest_window(const model::ModelConfig& config) {
  std::int64_t smallest = 0;
  for (const std::int64_t window : config.layer_window) {
    if (window > 0 && (smallest == 0 || window < smallest)) smallest = window;
  }
  return smallest;
}

std::int64_t exported_context(const model::ModelConfig& config) {
  const std::int64_t length = config.supported_length(), window = smallest_window(config);
  if (config.family == Family::kGemma3 || window == 0 || window >= length) return length;
  log_warning(
      "{}: sliding_window: llama.cpp has no windows in the {} architecture; the file has a context length of {}, up to "
      "which full attention gives the same answers",
      config.path.string(), architecture_name(config), window);
  return window;
}

std::uint32_t u32(std::int64_t value) { return static_cast<std::uint32_t>(value); }
float f32(double value) { return static_cast<float>(value); }

void add_rope(const model::ModelConfig& config, const std::string& prefix, std::vector<KeyValue>& out) {
  const auto& rope = config.rope;
  out.push_back({prefix + "rope.dimension_count", u32(config.rotary_dim)});
  out.push_back({prefix + "rope.freq_base", f32(rope.theta)});
  if (is_qwen_vl(config) || config.family == Family::kQwen35) {
    std::vector<std::int32_t> sections(rope.mrope_section.begin(), rope.mrope_section.end());
    if (sections.empty()) sections = {static_cast<std::int32_t>(config.head_dim / 2), 0, 0};  // the same for text
    sections.push_back(0);
    out.push_back({prefix + "rope.dimension_sections", sections});
  }
  if (config.local_rope) out.push_back({prefix + "rope.freq_base_swa", f32(config.local_rope->theta)});
  if (rope.type != RopeType::kLinear && rope.type != RopeType::kYarn) return;
  out.push_back({prefix + "rope.scaling.type", std::string(rope_type_name(rope.type))});
  out.push_back({prefix + "rope.scaling.factor", f32(*rope.factor)});
  if (rope.type == RopeType::kLinear) return;
  out.push_back({prefix + "rope.scaling.original_context_length", u32(rope.original_max_position_embeddings)});
  out.push_back({prefix + "rope.scaling.yarn_beta_fast", f32(rope.beta_fast)});
  out.push_back({prefix + "rope.scaling.yarn_beta_slow", f32(rope.beta_slow)});
  if (const double multiplier = yarn_log_multiplier(config); multiplier != 0) {
    out.push_back({prefix + "rope.scaling.yarn_log_multiplier", f32(multiplier)});
  }
  if (rope.query_scale_beta != 0) {
    out.push_back({prefix + "attention.temperature_scale", f32(rope.query_scale_beta)});
  }
}

/// The distance between layers with attention, if they are periodic; else 0.
std::int64_t attention_interval(const model::ModelConfig& config) {
  std::int64_t interval = 0;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool is_full = config.kind_of(layer) == model::LayerKind::kAttention;
    if (is_full && interval == 0) interval = layer + 1;
    if (interval > 0 && is_full != ((layer + 1) % interval == 0)) return 0;
  }
  return interval;
}

void add_family(const model::ModelConfig& config, const std::string& prefix, std::vector<KeyValue>& out) {
  if (config.family == Family::kGemma3 && smallest_window(config) > 0) {
    out.push_back({prefix + "attention.sliding_window", u32(smallest_window(config))});
    std::vector<bool> pattern;
    for (const std::int64_t window : config.layer_window) pattern.push_back(window > 0);
    out.push_back({prefix + "attention.sliding_window_pattern", pattern});
  }
  if (config.family == Family::kQwen35) {
    const kernels::GatedDeltaSizes& delta = config.gated_delta;
    std::vector<bool> is_recurrent;
    for (const model::LayerKind kind : config.layer_kinds)
      is_recurrent.push_back(kind == model::LayerKind::kGatedDelta);
    out.push_back({prefix + "full_attention_interval", u32(attention_interval(config))});
    out.push_back({prefix + "attention.recurrent_layers", is_recurrent});
    out.push_back({prefix + "ssm.conv_kernel", u32(config.convolution_taps)});
    out.push_back({prefix + "ssm.inner_size", u32(delta.value_width())});
    out.push_back({prefix + "ssm.state_size", u32(delta.key_size)});
    out.push_back({prefix + "ssm.time_step_rank", u32(delta.value_heads)});
    out.push_back({prefix + "ssm.group_count", u32(delta.key_heads)});
  }
  if (config.family != Family::kGranite) return;
  out.push_back({prefix + "attention.scale", f32(config.attention_scale)});
  out.push_back({prefix + "embedding_scale", f32(config.embedding_multiplier)});
  out.push_back({prefix + "residual_scale", f32(config.residual_multiplier)});
  out.push_back({prefix + "logit_scale", f32(config.logits_scaling)});
}

/// From halves to pairs in each head.
std::vector<std::int64_t> pairs_of_heads(std::int64_t num_rows, std::int64_t num_heads) {
  const std::int64_t size = num_rows / num_heads;
  std::vector<std::int64_t> order;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t within = row % size;
    order.push_back(row - within + within % 2 * (size / 2) + within / 2);
  }
  return order;
}

/// `before` rows that stay, then one value head of every key head, then the next of every key head.
std::vector<std::int64_t> value_heads_in_turns(const kernels::GatedDeltaSizes& sizes, std::int64_t before,
                                               std::int64_t head_rows) {
  if (sizes.value_heads == sizes.key_heads) return {};
  const std::int64_t in_group = sizes.value_heads / sizes.key_heads;
  std::vector<std::int64_t> order(static_cast<std::size_t>(before));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t head = 0; head < sizes.value_heads; ++head) {
    const std::int64_t source = head % sizes.key_heads * in_group + head / sizes.key_heads;
    for (std::int64_t row = 0; row < head_rows; ++row) order.push_back(before + source * head_rows + row);
  }
  return order;
}

void check_gated_delta(const model::ModelConfig& config) {
  const kernels::GatedDeltaSizes& delta = config.gated_delta;
  if (delta.key_size != delta.value_size) {
    refuse(config, "linear_value_head_dim", "a value other than linear_key_head_dim cannot be exported");
  }
  if (attention_interval(config) == 0) {
    refuse(config, "layer_types", "layers with attention at irregular distances cannot be exported");
  }
}

}  // namespace

std::string architecture_name(const model::ModelConfig& config) {
  switch (config.family) {
    case Family::kQwen2: return is_qwen_vl(config) ? "qwen2vl" : "qwen2";
    case Family::kQwen3: return is_qwen_vl(config) ? "qwen3vl" : "qwen3";
    case Family::kQwen3Next: return "qwen3next";
    case Family::kQwen35: return "qwen35";
    case Family::kGemma3: return "gemma3";
    case Family::kGranite: return "granite";
    case Family::kMinistral3: return "mistral3";
    case Family::kMistral:
    case Family::kLlama: return is_mistral3(config) ? "mistral3" : "llama";
  }
  return "";
}

void check_architecture(const model::ModelConfig& config) {
  const bool takes_biases = config.family == Family::kLlama || config.family == Family::kGranite;
  if (config.o_bias && !takes_biases) refuse(config, "attention_bias", "a bias on o_proj cannot be exported");
  if (config.family == Family::kQwen2 && config.head_dim * config.num_heads != config.hidden_size) {
    refuse(config, "head_dim", "a value other than hidden_size / num_attention_heads cannot be exported");
  }
  if (config.family == Family::kGemma3) check_gemma(config);
  if (config.rope.query_scale_beta != 0 && config.rope.type != RopeType::kYarn) {
    refuse(config, "llama_4_scaling_beta", "a scale of the queries without yarn cannot be exported");
  }
  if (is_qwen_vl(config) && config.rope.mrope_section.empty()) {
    refuse(config, "mrope_section", "a model without it cannot be exported");
  }
  if (config.family == Family::kQwen3Next) refuse(config, "num_experts", "a model without experts cannot be exported");
  if (config.family == Family::kQwen35) check_gated_delta(config);
  check_rope(config);
}

std::vector<KeyValue> architecture_metadata(const model::ModelConfig& config) {
  const std::string prefix = architecture_name(config) + ".";
  std::vector<KeyValue> out = {{prefix + "block_count", u32(config.num_layers)},
                               {prefix + "context_length", u32(exported_context(config))},
                               {prefix + "embedding_length", u32(config.hidden_size)},
                               {prefix + "feed_forward_length", u32(config.intermediate_size)},
                               {prefix + "attention.head_count", u32(config.num_heads)},
                               {prefix + "attention.head_count_kv", u32(config.num_kv_heads)},
                               {prefix + "attention.key_length", u32(config.head_dim)},
                               {prefix + "attention.value_length", u32(config.head_dim)},
                               {prefix + "attention.layer_norm_rms_epsilon", f32(config.rms_norm_eps)},
                               {prefix + "vocab_size", u32(config.vocab_size)}};
  add_rope(config, prefix, out);
  add_family(config, prefix, out);
  return out;
}

std::string gguf_name(const model::ModelConfig& config, const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::string end = name.substr(dot);
  std::string module = name.substr(0, dot);
  if (const char* outer = find_name(kOuterNames, module)) return outer + end;
  constexpr std::string_view kLayers = "model.layers.";
  const std::size_t after = module.find('.', kLayers.size());
  if (!module.starts_with(kLayers) || after == std::string::npos) throw ShapeError(name, "has no GGUF name");
  const std::string layer = module.substr(kLayers.size(), after - kLayers.size());
  module.erase(0, after + 1);
  if (const char* whole = find_name(kWholeNames, module + end)) return fmt::format("blk.{}.{}", layer, whole);
  const char* inner = find_name(kLayerNames, module);
  if (inner == nullptr) {
    inner = config.has_output_norms            ? find_name(kOutputNormNames, module)
            : config.family == Family::kQwen35 ? find_name(kQwen35NormNames, module)
                                               : find_name(kNormNames, module);
  }
  if (inner == nullptr) throw ShapeError(name, "has no GGUF name");
  return fmt::format("blk.{}.{}{}", layer, inner, end);
}

std::vector<std::int64_t> row_order(const model::ModelConfig& config, const std::string& name, std::int64_t num_rows) {
  const kernels::GatedDeltaSizes& delta = config.gated_delta;
  const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (is(".linear_attn.in_proj_qkv.") || is(".linear_attn.conv1d.")) {
    return value_heads_in_turns(delta, 2 * delta.key_width(), delta.value_size);
  }
  if (is(".linear_attn.in_proj_z.")) return value_heads_in_turns(delta, 0, delta.value_size);
  if (is(".linear_attn.in_proj_") || is(".linear_attn.A_log") || is(".linear_attn.dt_bias")) {
    return value_heads_in_turns(delta, 0, 1);
  }
  if (!has_rotated_pairs(config)) return {};
  if (is(".self_attn.q_proj.")) return pairs_of_heads(num_rows, config.num_heads);
  return is(".self_attn.k_proj.") ? pairs_of_heads(num_rows, config.num_kv_heads) : std::vector<std::int64_t>{};
}

std::vector<std::int64_t> column_order(const model::ModelConfig& config, const std::string& name) {
  const bool is_out = name.find(".linear_attn.out_proj.") != std::string::npos;
  return is_out ? value_heads_in_turns(config.gated_delta, 0, config.gated_delta.value_size)
                : std::vector<std::int64_t>{};
}

std::vector<float> rope_factors(const model::ModelConfig& config) {
  const auto& rope = config.rope;
  if (rope.type != RopeType::kLlama3) return {};
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  std::vector<float> factors;
  for (std::int64_t i = 0; i < config.rotary_dim; i += 2) {
    const double frequency = std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(config.rotary_dim));
    const double turns = original * frequency / (2 * std::numbers::pi);  // over the original length
    const double smooth =
        std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    factors.push_back(f32(1 / ((1 - smooth) / *rope.factor + smooth)));
  }
  return factors;
}

}  // namespace lora_train::gguf
