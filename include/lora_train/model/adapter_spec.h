// Which linears carry an adapter, and which tensors each has. Module lora decides this before the model is built, and the
// model makes room for it. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"

namespace lora_train::model {

/// The values that a new adapter starts with.
enum class InitialValues {
  kZeros,
  kKaimingUniform  ///< with a = sqrt(5): U(-1/sqrt(columns), 1/sqrt(columns))
};

/// One trained tensor. `name` is its name on disk: PEFT's for adapters, Hugging Face's for weights.
struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  bool decays = true;      ///< whether weight decay applies (not to biases and norms)
  double lr_factor = 1.0;  ///< multiplies the learning rate
  InitialValues initial_values = InitialValues::kZeros;
  bool is_embedding = false;
  std::int64_t offset = 0;  ///< first element in the flat buffers; set by Trainables

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

/// The owner of tokens and columns that no adapter is for.
inline constexpr std::int64_t kNoOwner = -1;

struct AdapterSpec {
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t layer = 0;
  std::string linear;  ///< name within its layer: "self_attn.q_proj"
  std::int64_t rank = 0;
  double scale = 1.0;           ///< alpha / r, or alpha / sqrt(r) with rsLoRA
  double dropout = 0.0;         ///< on the input of the linear, training only
  double lr_factor_b = 1.0;     ///< multiplies the learning rate of B (LoRA+)
  std::int64_t owner = 0;       ///< of several adapters in one model: which one it belongs to
  std::string owner_name = {};  ///< of several adapters: its name, as PEFT has it in memory; empty: the only one
  bool operator==(const AdapterSpec&) const = default;
};

/// "model.layers.3.self_attn.q_proj"
std::string linear_path(std::int64_t layer, const std::string& linear);
std::string linear_path(const AdapterSpec& spec);

/// The index of a tensor in adapter_tensors().
enum AdapterTensor : std::size_t {
  kLoraA,  ///< A [rank, in]
  kLoraB   ///< B [out, rank]; kLora computes with W + scale B A
};

/// ".lora_A.weight", or ".lora_A.NAME.weight" of one of several adapters.
inline std::string adapter_suffix(const char* matrix, const std::string& owner_name) {
  return std::string(".") + matrix + (owner_name.empty() ? "" : "." + owner_name) + ".weight";
}

/// The tensors of an adapter on a linear with weight [out, in], under PEFT's names. All code that trains, initialises, reads,
/// writes or merges adapters uses this list.
inline std::vector<Parameter> adapter_tensors(const AdapterSpec& spec, std::int64_t in_features,
                                              std::int64_t out_features) {
  const std::string path = "base_model.model." + linear_path(spec);
  return {{path + adapter_suffix("lora_A", spec.owner_name),
           {spec.rank, in_features},
           true,
           1.0,
           InitialValues::kKaimingUniform},
          {path + adapter_suffix("lora_B", spec.owner_name), {out_features, spec.rank}, true, spec.lr_factor_b}};
}

/// Rows of the embedding and the head that are trained beside the adapters, by token id, in the order of their tensors. A tied
/// head takes those of the embedding. PEFT: trainable_token_indices.
struct TokenRows {
  std::vector<std::int64_t> embedding, head;  ///< each without repeats; head: empty if it is tied

  bool empty() const { return embedding.empty() && head.empty(); }
  /// Those of the embedding, else those of the head.
  const std::vector<std::int64_t>& ids() const { return embedding.empty() ? head : embedding; }
  bool operator==(const TokenRows&) const = default;
};

/// Their tensors, [rows, hidden], under PEFT's names. Like adapter_tensors(), the list that all code uses.
inline constexpr const char* kEmbeddingRows =
    "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta";
inline constexpr const char* kHeadRows = "base_model.model.lm_head.token_adapter.trainable_tokens_delta";
std::vector<Parameter> token_row_tensors(const TokenRows& rows, std::int64_t hidden_size);

/// Whether training this adapter needs LinearPass::scratch.
inline bool needs_scratch(const AdapterSpec& spec) { return spec.dropout > 0; }

}  // namespace lora_train::model
