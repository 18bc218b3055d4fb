// The structure of a model as plain data: the linears, small weights and buffers of every block of every layer.
// Expected tensors, adapters, trained parameters, activations, the memory plan, generation, merge and bench derive from
// it. No torch, no weights.
// N tokens, D hidden, O outputs, C adapter columns.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/model/families/model_config.h"

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
  bool decays = true;      ///< true if weight decay applies (not to biases and norms)
  double lr_factor = 1.0;  ///< multiplies the learning rate
  InitialValues initial_values = InitialValues::kZeros;
  bool is_embedding = false;
  std::int64_t offset = 0;  ///< first element in the flat buffers; set by Trainables

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

/// The owner of tokens and columns without an adapter.
inline constexpr std::int64_t kNoOwner = -1;

struct AdapterSpec {
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t layer = 0;
  std::string linear;  ///< name within its layer: "self_attn.q_proj"
  std::int64_t rank = 0;
  double scale = 1.0;           ///< alpha / r, or alpha / sqrt(r) with rsLoRA
  double dropout = 0.0;         ///< on the input of the linear, training only
  double lr_factor_b = 1.0;     ///< multiplies the learning rate of B (LoRA+)
  std::int64_t owner = 0;       ///< index of its adapter, if the model has several
  std::string owner_name = {};  ///< its adapter's name in memory, as in PEFT; empty: the only adapter
  bool operator==(const AdapterSpec&) const = default;
};

// Inside, modules and tensors have the names of the text model's own class ("model.layers.0..."), whatever class holds
// it. Files have those of the class of the base: open_model_weights and the functions below translate.

/// The text class's name for a module, a weight, or a tensor of an adapter ("base_model.model..."), from its name in
/// any class that holds a text model, of transformers 4 or 5.
std::string text_class_name(const std::string& name);
/// The name in a class whose text modules begin with `module_prefix` (ModelConfig), from that in the text class.
std::string name_in_class(const std::string& name, const std::string& module_prefix);

/// "model.layers.3.self_attn.q_proj"
std::string linear_path(std::int64_t layer, const std::string& linear);
std::string linear_path(const AdapterSpec& spec);

/// The index of a tensor in adapter_tensors().
enum AdapterTensor : std::size_t {
  kLoraA,  ///< A [rank, in]
  kLoraB   ///< B [out, rank]; kLora computes with W + scale B A
};

/// ".lora_A.weight", or ".lora_A.NAME.weight" with several adapters.
inline std::string adapter_suffix(const char* matrix, const std::string& owner_name) {
  return std::string(".") + matrix + (owner_name.empty() ? "" : "." + owner_name) + ".weight";
}

/// The tensors of an adapter on a linear with weight [out, in], under PEFT's names. All code that trains, initialises,
/// reads, writes or merges adapters uses this list.
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

/// Rows of the embedding and the head that are trained with the adapters, by token id, in the order of their tensors. A
/// tied head uses the rows of the embedding. PEFT: trainable_token_indices.
struct TokenRows {
  std::vector<std::int64_t> embedding, head;  ///< no repeats within each; head: empty if it is tied

  bool empty() const { return embedding.empty() && head.empty(); }
  /// The rows of the embedding, or of the head if those are empty.
  const std::vector<std::int64_t>& ids() const { return embedding.empty() ? head : embedding; }
  bool operator==(const TokenRows&) const = default;
};

/// The tensors of these rows, [rows, hidden], under PEFT's names. Like adapter_tensors(), the list that all code uses.
inline constexpr const char* kEmbeddingRows =
    "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta";
inline constexpr const char* kHeadRows = "base_model.model.lm_head.token_adapter.trainable_tokens_delta";
std::vector<Parameter> token_row_tensors(const TokenRows& rows, std::int64_t hidden_size);

/// How much of a layer's forward the backward recomputes (gradient_checkpointing). All modes give the same numbers.
enum class Recompute {
  kOff,     ///< nothing: all buffers are kept
  kCheap,   ///< norms and activation functions
  kGateUp,  ///< and the product of gate|up
  kFull     ///< everything: only the layer's input is kept
};

/// Position of dS in the backward of a projection, which determines the form of that backward.
enum class GradientColumns {
  kBesideInput,  ///< [dx | dS] in one GEMM; adding dS A reads and writes dx once more: 4 D bytes per token in bf16
  kBesideOutput  ///< [dy | dS]: dx needs nothing more; computing dS reads dy once more: 2 O bytes
};

/// Adapter columns come in multiples of this, so that rows of bf16 buffers stay aligned to 16 bytes for any rank.
/// Unused columns are zero.
constexpr std::int64_t kColumnStep = 8;

/// Start of the next row in a matrix whose rows end in adapter columns. Both give the same numbers.
enum class RowPitch {
  kExact,  ///< right after the columns
  kPadded  ///< at the next multiple of kPitchStep, so that every row begins at a cache line; less than 1% more memory
};
constexpr std::int64_t kPitchStep = 64;  ///< elements: 128 bytes in bf16

/// The layout of adapter columns in a run (plan/run_spec.h).
struct ColumnLayout {
  GradientColumns gate_up =
      GradientColumns::kBesideInput;      ///< the form of gate|up's backward; other projections have one each
  RowPitch row_pitch = RowPitch::kExact;  ///< for weights and buffers with adapter columns
  bool operator==(const ColumnLayout&) const = default;
};

/// The sizes of a projection: one or more linears over one input, computed as one product.
struct ProjectionSizes {
  std::int64_t in_features = 0, out_features = 0;
  std::int64_t num_columns = 0;  ///< C: the ranks of its adapters, rounded up to kColumnStep
  RowPitch row_pitch = RowPitch::kExact;
  GradientColumns gradient_columns = GradientColumns::kBesideInput;
  double output_scale = 1;  ///< multiplies the product and its bias (Granite's residual_multiplier)

  /// Widths of the input buffer, and of the gradient buffers of input and output, adapter columns included.
  std::int64_t input_width() const { return in_features + num_columns; }
  std::int64_t d_input_width() const {
    return in_features + (has_columns(GradientColumns::kBesideInput) ? num_columns : 0);
  }
  std::int64_t d_output_width() const {
    return out_features + (has_columns(GradientColumns::kBesideOutput) ? num_columns : 0);
  }
  bool has_columns(GradientColumns where) const { return num_columns > 0 && gradient_columns == where; }

  /// Elements from row to row of these buffers; weights have the pitch of the input. Rows without adapter columns are
  /// packed.
  std::int64_t input_pitch() const { return pitch_of(input_width(), in_features); }
  std::int64_t d_input_pitch() const { return pitch_of(d_input_width(), in_features); }
  std::int64_t d_output_pitch() const { return pitch_of(d_output_width(), out_features); }

 private:
  std::int64_t pitch_of(std::int64_t width, std::int64_t features) const {
    const bool is_padded = row_pitch == RowPitch::kPadded && width > features;
    return is_padded ? (width + kPitchStep - 1) / kPitchStep * kPitchStep : width;
  }
};

/// A linear of the checkpoint: outputs [out_begin, out_begin + out_features) of its projection.
struct LinearShape {
  std::string name;  ///< within its layer: "self_attn.q_proj"
  std::int64_t out_begin = 0, out_features = 0;
};

/// An adapter's place in its projection.
struct AdapterPlace {
  AdapterSpec spec;
  std::int64_t index = 0;   ///< among all adapters of the model
  std::int64_t linear = 0;  ///< index into the projection's linears
  std::int64_t column = 0;  ///< its columns are [column, column + rank) of C
};

struct ProjectionShape : ProjectionSizes {
  bool has_bias = false;
  std::vector<LinearShape> linears;
  std::vector<AdapterPlace> adapters;
};

/// A weight that is no linear: of a norm, a convolution, a decay. Without a shape: this model has none here.
struct SmallWeightShape {
  std::string name;  ///< within its layer: "input_layernorm.weight"
  std::vector<std::int64_t> shape;
  std::int64_t after = 0;  ///< number of projections before it in its block
  WeightKind kind = WeightKind::kNorm;

  bool exists() const { return !shape.empty(); }
};

enum class ElementType {
  kCompute,  ///< the compute dtype of the run
  kFloat     ///< fp32
};

/// A buffer of N tokens. Width 0: this model has no such buffer.
struct BufferShape {
  enum class Layout {
    kRows,       ///< [N, width]
    kVector,     ///< [N]; width is 1
    kTokenLast,  ///< [width, N]
  };
  static constexpr std::int64_t kNoProjection = -1;

  std::string name;  ///< for reports: "attention.normed"
  std::int64_t width = 0;
  ElementType type = ElementType::kCompute;
  /// The least recomputation at which layers share this buffer; empty: each layer keeps its own.
  std::optional<Recompute> shared_from = Recompute::kFull;
  Layout layout = Layout::kRows;
  /// The projection of the block that reads this buffer (saved), or whose output gradient it holds (gradients). Adapter
  /// columns follow its features, and `width` includes them.
  std::int64_t projection = kNoProjection;
  /// saved: the projection that outputs this; in the backward, its gradient, with columns as in `gradients`.
  std::int64_t output_of = kNoProjection;
  std::int64_t pitch = 0;  ///< kRows: elements from row to row; 0: width
  bool is_tiled = false;   ///< saved: holds a tile of tokens if ActivationOptions::mlp_tile_tokens is set
  std::int64_t row_elements() const { return pitch > width ? pitch : width; }
};

enum class BlockKind { kAttention, kGatedDelta, kMlp };

/// One block of a layer: a residual branch. The block itself defines what each index of the lists means
/// (src/model/blocks).
struct BlockShape {
  BlockKind kind = BlockKind::kAttention;
  std::string name;              ///< for reports: "attention"
  bool has_output_norm = false;  ///< normalises its output before adding it to the residual stream
  std::vector<ProjectionShape> projections;
  std::vector<SmallWeightShape> small;  ///< the last is the norm of its output
  std::vector<BufferShape> saved;       ///< kept from forward to backward, besides the block's input
  std::vector<BufferShape> gradients;   ///< scratch of the backward; layers share buffers by name
};

/// The blocks of a layer, in the order of the forward pass.
struct LayerShape {
  std::vector<BlockShape> blocks;
};

struct ModelShape {
  std::int64_t hidden_size = 0;
  std::vector<LayerShape> layers;
  TokenRows rows;  ///< trained rows of embedding and head

  /// Calls visit(projection) for every projection of every layer, in order.
  template <class Visit>
  void for_each_projection(Visit&& visit) const {
    for (const LayerShape& layer : layers) {
      for (const BlockShape& block : layer.blocks) {
        for (const ProjectionShape& projection : block.projections) visit(projection);
      }
    }
  }
};

/// The structure of the model, with room for these adapters. Throws ShapeError if a spec does not name a linear of the
/// model.
ModelShape model_shape(const ModelConfig& config, const std::vector<AdapterSpec>& adapters = {},
                       const ColumnLayout& columns = {}, const TokenRows& rows = {});

/// The tensors of the model's adapters and trained token rows, adapter by adapter.
std::vector<Parameter> adapter_parameters(const ModelShape& shape);

/// Names of the linears of a layer, in Hugging Face order: "self_attn.q_proj", ..., "mlp.down_proj".
std::vector<std::string> linear_names(const ModelConfig& config, std::int64_t layer);

/// A buffer of BlockShape::saved by its name. Throws ShapeError if there is none.
const BufferShape& saved_buffer(const LayerShape& layer, std::string_view name);

/// The prefix of a layer's names: "model.layers.3.".
std::string layer_prefix(std::int64_t layer);

}  // namespace lora_train::model
