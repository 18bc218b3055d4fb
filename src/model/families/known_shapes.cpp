#include "lora_train/model/families/known_shapes.h"

#include <array>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::model {
namespace {

struct Shape {
  std::string_view name;
  std::string_view config;  ///< what its config.json says about sizes
};

// Sources: config.json of Qwen/Qwen2.5-0.5B and -7B, Qwen/Qwen3-0.6B, -4B and -8B, mistralai/Mistral-7B-v0.3,
// google/gemma-3-1b-it, text_config of google/gemma-3-4b-it, ibm-granite/granite-3.0-2b-instruct.
constexpr std::array<Shape, 11> kShapes = {{
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
    {"mistral-7b",
     R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32768, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false})"},
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
}};

}  // namespace

std::vector<std::string> known_shapes() {
  std::vector<std::string> names;
  for (const auto& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

ModelConfig known_shape(std::string_view name) {
  for (const auto& shape : kShapes) {
    if (shape.name == name) return parse_model_config(shape.config, "shape " + std::string(name));
  }
  const std::string nearest = nearest_name(std::string(name), known_shapes());
  throw ConfigError("--shape", "unknown shape \"" + std::string(name) + "\"" +
                                   (nearest.empty() ? "" : ". Did you mean \"" + nearest + "\"?") +
                                   ". Known shapes: " + join(known_shapes()) + ".");
}

}  // namespace lora_train::model
