// The config.json of a Hugging Face folder, checked and completed with the defaults of its family, and the weights of
// such a model. No torch. Shared by `check`, `init-model` and the engine.
// Letters: D hidden, H heads, K kv heads, E head dim, R rotary dim, F ffn, V vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/kernels/gated_activation/gated_activation.h"
#include "lora_train/kernels/gated_delta/gated_delta_sizes.h"

namespace lora_train::storage {
class WeightFiles;
}

namespace lora_train::model {

enum class Family { kQwen2, kQwen3, kQwen3Next, kQwen35, kMistral, kMinistral3, kLlama, kGemma3, kGranite };

/// Past the original length, dynamic and longrope depend on the longest row of a batch, so a row's result would depend
/// on its batch. They are supported up to that length only (check_rope_supported).
enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLongrope, kLlama3 };
/// "default", "linear", ...: rope_type in config.json.
std::string_view rope_type_name(RopeType type);

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  std::optional<double> factor;                       ///< linear, dynamic, yarn, llama3, longrope
  double low_freq_factor = 0, high_freq_factor = 0;   ///< llama3
  std::int64_t original_max_position_embeddings = 0;  ///< llama3, yarn, longrope; dynamic: max_position_embeddings
  double beta_fast = 32, beta_slow = 1;               ///< yarn
  std::optional<double> attention_factor;             ///< yarn, longrope; unset = computed from factor
  double mscale = 0, mscale_all_dim = 0;              ///< yarn; 0 = not given
  bool truncate = true;                               ///< yarn: whole correction dims
  std::vector<double> short_factor;                   ///< longrope, [R/2]; up to the original length
  /// Pairs that turn by time, height and width; equal to plain RoPE for text. Empty: not given.
  std::vector<std::int64_t> mrope_section;
  /// llama_4_scaling_beta: rotated q times 1 + beta ln(1 + floor(position / period)), the period being the
  /// original_max_position_embeddings beside it. 0: no such scale.
  double query_scale_beta = 0;
  std::int64_t query_scale_period = 0;
};

/// The first block of a layer.
enum class LayerKind {
  kAttention,
  kGatedDelta  ///< linear attention: a gated delta net
};

enum class LinearFormat {
  kPlain,  ///< F32, F16 or BF16 [O, D]
  k4Bit,   ///< codes of 4 bits into a map of 16 values, a scale per block of the flat matrix: nf4, fp4
  kInt8,   ///< int8 with a scale per row
  kFp8     ///< e4m3 with a scale per matrix, row, or block
};

/// quantization_config of config.json: how quantised linears are stored. The tensors tell which linears are
/// (stored_linear.h).
struct QuantizationConfig {
  LinearFormat format = LinearFormat::kPlain;  ///< kPlain: not quantised
  std::string description;                     ///< "bitsandbytes 4-bit (nf4)", for messages
  std::string quant_type;                      ///< k4Bit: "nf4" or "fp4"; empty: not given
  std::int64_t block_rows = 0,
               block_columns = 0;  ///< kFp8: the tile of one scale; 0: no such scales
  bool has_only_blocks = false;    ///< kFp8: no scales per row or per matrix
};

struct ModelConfig {
  std::filesystem::path path;  ///< path of config.json, for messages
  Family family = Family::kQwen2;
  std::string architecture;  ///< "Qwen2ForCausalLM", or the class that the text model is part of
  /// Begins the names of the text model's modules in that class, as transformers 5 and PEFT have them:
  /// "model.language_model." inside a wrapper.
  std::string module_prefix = "model.";
  /// Begins the names of the text model's tensors in files that are written anew; of others, the files tell.
  std::string file_prefix = "model.";
  std::int64_t hidden_size = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t rotary_dim = 0;  ///< the first dimensions of every q and k head, which RoPE rotates; most models: all
  std::int64_t intermediate_size = 0, vocab_size = 0, max_position_embeddings = 0;
  std::int64_t added_rows = 0;  ///< the last rows of vocab_size, which the files lack (make_room)
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;  ///< true: no head of its own (read_model_config looks at the tensors as well)
  bool ignores_tie = false;          ///< config.json says tied, but the files hold another head, which counts
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  std::vector<LayerKind> layer_kinds;    ///< [num_layers]; empty: attention in all layers
  kernels::GatedDeltaSizes gated_delta;  ///< of layers of that kind
  std::int64_t convolution_taps = 0;     ///< of their convolution over q, k and v
  bool projects_by_key_head = false;     ///< their first linears are in_proj_qkvz and in_proj_ba (Qwen3-Next)
  bool has_attention_gate = false;  ///< q_proj has a gate of the output after the rows of each head's query (Qwen3.5)
  bool qk_norm = false;             ///< RMSNorm over head_dim on q and k, after projection, before RoPE
  bool has_output_norms = false;    ///< a norm on the output of each block too, before the residual addition (Gemma)
  double attention_scale = 0;       ///< multiplies q k^T; 1 / sqrt(E) unless the family sets another
  double residual_multiplier = 1;   ///< multiplies the output of each block before the residual addition (Granite)
  double embedding_multiplier = 1;  ///< multiplies the embedding (Granite, Gemma)
  bool rounds_embedding_multiplier = false;  ///< rounds that multiplier to the compute dtype first (Gemma)
  double logits_scaling = 1;                 ///< logits are divided by it (Granite)
  double norm_weight_offset = 0;  ///< norms multiply by this plus the weight (Gemma: 1), without rounding in between
  kernels::Activation activation = kernels::Activation::kSilu;  ///< in the gated MLP
  std::vector<std::int64_t> layer_window;  ///< [num_layers]; keys a query sees, itself included; 0 = all before it
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  ///< for layers with a window, if it differs from `rope` (Gemma)
  std::string torch_dtype;               ///< "bfloat16", "float32", ...; empty if the file does not give it
  std::optional<std::int64_t> bos_token_id, pad_token_id;
  std::vector<std::int64_t> eos_token_ids;
  QuantizationConfig quantization;

  /// The number of positions that the model is made for: max_position_embeddings, or more if yarn extends it.
  /// config.json may name either length, as in transformers.
  std::int64_t context_length() const;
  /// The number of positions that check_rope_supported accepts: context_length(), or fewer.
  std::int64_t supported_length() const;
  /// True if a layer is a gated delta net.
  bool is_hybrid() const { return gated_delta.value_heads > 0; }
  LayerKind kind_of(std::int64_t layer) const {
    return layer_kinds.empty() ? LayerKind::kAttention : layer_kinds[static_cast<std::size_t>(layer)];
  }
  std::int64_t num_layers_of(LayerKind kind) const {
    std::int64_t count = 0;
    for (std::int64_t layer = 0; layer < num_layers; ++layer) count += kind_of(layer) == kind ? 1 : 0;
    return count;
  }
  /// True if a class with towers holds the text model.
  bool is_in_wrapper() const { return module_prefix != "model."; }
  /// Rows of embedding and head in the files.
  std::int64_t stored_rows() const { return vocab_size - added_rows; }
};

/// If vocab_size is too small for ids below num_ids, enlarges it to the next multiple of `multiple`.
void make_room(std::int64_t num_ids, ModelConfig& config, std::int64_t multiple = 64);

/// Reads folder/config.json. Absent optional keys take the default of transformers' class; null differs from absent. Of
/// a class that holds towers as well, reads the text model: the object text_config, and what stands at the top first
/// (architectures, quantization_config, tie_word_embeddings, token ids). If the folder's weights have a head that
/// differs from the embedding, the head counts, whatever tie_word_embeddings says, as in transformers 5. Throws
/// IoError, or FormatError (where = "file: key") for a key that is missing, of the wrong type or out of range, for
/// sizes that do not fit together, and for anything unsupported (another architecture, activation or quantisation,
/// other attention or RoPE kinds), naming it and what is supported.
ModelConfig read_model_config(const std::filesystem::path& folder);
/// The same for the text of a config.json, without weights; `path` is for messages.
ModelConfig parse_model_config(std::string_view json, const std::filesystem::path& path);

enum class WeightKind {
  kEmbedding,
  kNorm,       ///< multiplies by norm_weight_offset plus the weight
  kGatedNorm,  ///< the output norm of a gated delta net: by the weight itself
  kConvolution,
  kDecayRate,  ///< A_log of a gated delta net
  kStepBias,   ///< dt_bias of a gated delta net
  kLinear,
  kBias,
  kHead
};
inline bool is_norm(WeightKind kind) { return kind == WeightKind::kNorm || kind == WeightKind::kGatedNorm; }
inline bool is_bias(WeightKind kind) { return kind == WeightKind::kBias || kind == WeightKind::kStepBias; }
/// True for weights that bf16 runs keep in fp32: the decay of a state adds up their rounding over the whole document.
inline bool keeps_fp32(WeightKind kind) { return kind == WeightKind::kDecayRate || kind == WeightKind::kStepBias; }

/// One weight the model has, by its Hugging Face name.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t>
      shape;  ///< linear [out, in], embedding and head [V, D], norm [D] or [E], bias [out], convolution [channels, 1, taps]
  WeightKind kind = WeightKind::kLinear;

  /// "model.layers.0.mlp.up_proj" for "model.layers.0.mlp.up_proj.weight".
  std::string module() const;
};

/// Every weight of the files in the order of the forward pass: embedding, layers, final norm, head. A tied head is not
/// listed.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);
/// The linears among expected_tensors.
std::vector<TensorSpec> linear_tensors(const ModelConfig& config);
/// The total number of elements in all weights.
std::int64_t num_parameters(const ModelConfig& config);

/// Compares the files with expected_tensors before anything is allocated: presence, shape, dtype (F32, F16, BF16).
/// Linears may be quantised as quantization_config says (stored_linear.h); their scales are read and must be finite.
/// Warns about unexpected tensors, except rotary inv_freq buffers, a tied head that is stored as well, and towers; in a
/// wrapper, refuses them. Throws FormatError: where = "file: tensor" for the first tensor that is missing, unexpected
/// or has another shape or dtype, and where = "file: quantization_config" if quantised linears are declared and none
/// is.
void check_weights(const ModelConfig& config, const storage::WeightFiles& weights);

/// For config.json of a result: `text` with tie_word_embeddings: false if the base ignores_tie, else as it is.
std::string with_own_head(const ModelConfig& base, const std::string& text);

/// Logs which towers and other parts of the files are not used, with their sizes, and that the head is used although
/// config.json says that it is tied.
void log_parts_beside_text(const ModelConfig& config, const storage::WeightFiles& weights);

/// Throws FormatError (file: quantization_config) if the folder is quantised. `what` begins the message: "training".
void refuse_quantised(const ModelConfig& config, std::string_view what);

/// Throws FormatError (file: key) if rows of max_seq_len tokens are longer than this RoPE type supports.
void check_rope_supported(const ModelConfig& config, std::int64_t max_seq_len);
/// Inverse frequencies [R/2], computed in fp32 as transformers does (modeling_rope_utils.py); pair i is (i, i + R/2).
std::vector<float> rope_inv_freq(const ModelConfig& config);
/// The factor that multiplies cos and sin (yarn, longrope; 1 otherwise).
double rope_attention_factor(const ModelConfig& config);
/// The factors of q by its position in the document (RopeConfig::query_scale_beta), for positions below num_positions,
/// computed in fp32 as transformers does. Empty: none.
std::vector<float> query_scales(const ModelConfig& config, std::int64_t num_positions);

/// True for a class that holds a text model beside towers: "Mistral3ForConditionalGeneration".
bool is_wrapper_class(std::string_view architecture);

/// Names of all shapes: "qwen2.5-7b", ..., and small ones for tests.
std::vector<std::string> known_shapes();

/// The config of one of them; a name with a '/' is a model folder. For an unknown name, throws ConfigError (where =
/// "--shape") with all names.
ModelConfig known_shape(std::string_view name);

}  // namespace lora_train::model
