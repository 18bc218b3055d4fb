// Names and shapes are those of transformers' modeling_{qwen2,qwen3,mistral,llama}.py.
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_weights.h"
#include "weight_checks.h"

namespace lora_train::model {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

void add_layer(const LayerShape& layer, std::int64_t index, std::vector<TensorSpec>& specs) {
  const std::string prefix = layer_prefix(index);
  for (const BlockShape& block : layer.blocks) {
    for (std::int64_t position = 0; position <= std::ssize(block.projections); ++position) {
      for (const SmallWeightShape& small : block.small) {
        if (small.after == position && small.exists()) specs.push_back({prefix + small.name, small.shape, small.kind});
      }
      if (position == std::ssize(block.projections)) break;
      const ProjectionShape& projection = block.projections[static_cast<std::size_t>(position)];
      for (const LinearShape& linear : projection.linears) {
        const std::int64_t O = linear.out_features, D = projection.in_features;
        specs.push_back({prefix + linear.name + ".weight", {O, D}, WeightKind::kLinear});
        if (projection.has_bias) specs.push_back({prefix + linear.name + ".bias", {O}, WeightKind::kBias});
      }
    }
  }
}

bool is_old_rotary_buffer(const std::string& name) { return name.find("rotary_emb.") != std::string::npos; }

/// The file that should hold the weight: the only one, else the folder.
std::string place_of_missing(const storage::WeightFiles& weights, const ModelConfig& config) {
  return (weights.files().size() == 1 ? weights.files().front().path() : config.path.parent_path()).string();
}

/// The name that the tensor would have in the files: the text model's have the prefix of its embedding.
std::string name_in_files(const std::string& name, const storage::WeightFiles& weights) {
  constexpr std::string_view kText = "model.";
  const storage::TensorEntry* const embedding = weights.find(kEmbedding);
  if (embedding == nullptr || !name.starts_with(kText)) return name;
  const std::size_t prefix = embedding->name.size() - (std::string_view(kEmbedding).size() - kText.size());
  return embedding->name.substr(0, prefix) + name.substr(kText.size());
}

/// Embeddings, norms, biases and heads are not decoded.
void check_plain(const TensorSpec& spec, const ModelConfig& config, const storage::WeightFiles& weights) {
  const storage::TensorEntry& entry = require_weight(spec, config, weights);
  const bool is_weight = spec.name.ends_with("weight");
  const bool is_byte = storage::dtype_bits(entry.dtype) <= 8;
  if (is_byte || (is_weight && !quantised_parts(spec.name, weights).empty())) {
    throw FormatError(weights.where(entry),
                      "is stored quantised ({}), which is supported for the linears of layers only: {}use the "
                      "unquantised model",
                      describe(entry), spec.name == kHead ? "quantise the model with lm_head left out, or " : "");
  }
  require_shape(spec, entry, config, weights);
  if (!storage::is_weight_dtype(entry.dtype)) {
    throw FormatError(weights.where(entry), "has dtype " + std::string(storage::dtype_name(entry.dtype)) +
                                                "; only F32, F16 and BF16 are supported: use the unquantised model");
  }
}

void report_unexpected(const std::set<std::string>& expected, const ModelConfig& config,
                       const storage::WeightFiles& weights) {
  std::vector<const storage::TensorEntry*> unexpected;
  for (const auto& [name, entry] : weights.entries()) {
    const bool is_copy_of_embedding = name == kHead && config.tie_word_embeddings;
    const bool is_known = expected.contains(name) || is_copy_of_embedding || is_old_rotary_buffer(name);
    if (!is_known && storage::part_beside_text(entry.name).empty()) unexpected.push_back(&entry);
  }
  if (unexpected.empty()) return;
  if (config.is_in_wrapper()) {  // what else such a class holds may change what the text model computes
    throw FormatError(
        weights.where(*unexpected.front()),
        "is neither part of the text model nor of a tower that is known to stand beside it in {}: lora-train "
        "does not know what it does there",
        config.architecture);
  }
  log_warning("{} tensors in the files are not part of {} and are not used (first: {})", unexpected.size(),
              config.architecture, weights.where(*unexpected.front()));
}

}  // namespace

void make_room(std::int64_t num_ids, ModelConfig& config, std::int64_t multiple) {
  if (num_ids <= config.vocab_size) return;
  const std::int64_t enlarged = (num_ids + multiple - 1) / multiple * multiple;
  config.added_rows += enlarged - config.vocab_size;
  config.vocab_size = enlarged;
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  specs.push_back({kEmbedding, {config.stored_rows(), config.hidden_size}, WeightKind::kEmbedding});
  const ModelShape shape = model_shape(config);
  for (std::size_t i = 0; i < shape.layers.size(); ++i) add_layer(shape.layers[i], static_cast<std::int64_t>(i), specs);
  specs.push_back({"model.norm.weight", {config.hidden_size}, WeightKind::kNorm});
  if (!config.tie_word_embeddings)
    specs.push_back({kHead, {config.stored_rows(), config.hidden_size}, WeightKind::kHead});
  return specs;
}

std::vector<TensorSpec> linear_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> linears = expected_tensors(config);
  std::erase_if(linears, [](const TensorSpec& spec) { return spec.kind != WeightKind::kLinear; });
  return linears;
}

std::string TensorSpec::module() const { return name.substr(0, name.rfind('.')); }

std::int64_t num_parameters(const ModelConfig& config) {
  std::int64_t total = 0;
  for (const auto& spec : expected_tensors(config)) {
    total += std::accumulate(spec.shape.begin(), spec.shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  return total;
}

const storage::TensorEntry& require_weight(const TensorSpec& spec, const ModelConfig& config,
                                           const storage::WeightFiles& weights) {
  if (const auto* entry = weights.find(spec.name)) return *entry;
  std::string hint = "download the weights again";
  if (spec.kind == WeightKind::kHead)
    hint = "if the head shares the embedding, config.json must say tie_word_embeddings: true";
  throw FormatError(fmt::format("{}: {}", place_of_missing(weights, config), name_in_files(spec.name, weights)),
                    "the tensor is missing; {} expects it with shape {}: {}", config.path.string(),
                    show_shape(spec.shape), hint);
}

void require_shape(const TensorSpec& spec, const storage::TensorEntry& entry, const ModelConfig& config,
                   const storage::WeightFiles& weights) {
  if (entry.shape == spec.shape) return;
  throw FormatError(weights.where(entry), "has shape {} but {} asks for {}: config and weights do not belong together",
                    show_shape(entry.shape), config.path.string(), show_shape(spec.shape));
}

void check_weights(const ModelConfig& config, const storage::WeightFiles& weights) {
  std::set<std::string> names;
  bool is_quantised = false;
  for (const auto& spec : expected_tensors(config)) {
    names.insert(spec.name);
    if (spec.kind != WeightKind::kLinear) {
      check_plain(spec, config, weights);
      continue;
    }
    const StoredLinear linear = stored_linear(config, spec, weights);
    require_finite_scales(linear, weights);
    is_quantised = is_quantised || linear.format != LinearFormat::kPlain;
    names.insert(linear.names.begin(), linear.names.end());
  }
  if (config.quantization.format != LinearFormat::kPlain && !is_quantised) {
    throw FormatError(config.path.string() + ": quantization_config",
                      "says " + config.quantization.description + ", but every linear of the weights is plain: " +
                          "remove the key if the weights were decoded, or download the weights again");
  }
  report_unexpected(names, config, weights);
}

void log_parts_beside_text(const ModelConfig& config, const storage::WeightFiles& weights) {
  std::map<std::string, double> sizes;
  bool has_activation_scales = false;
  for (const auto& [name, entry] : weights.entries()) {
    const std::string part = storage::part_beside_text(entry.name);
    if (!part.empty()) sizes[part] += static_cast<double>(entry.num_bytes());
    has_activation_scales = has_activation_scales || name.ends_with(".activation_scale");
  }
  std::vector<std::string> parts;
  for (const auto& [part, bytes] : sizes) parts.push_back(fmt::format("{} ({})", part, format_bytes(bytes)));
  const std::string folder = config.path.parent_path().string();
  if (!parts.empty()) log_info("{}: only the text model is used, not {}", folder, join(parts));
  if (config.ignores_tie) {
    log_info("{}: lm_head differs from the embedding and is used, although config.json says tie_word_embeddings",
             folder);
  }
  if (has_activation_scales) log_info("{}: activation_scale is not used: activations are not quantised", folder);
}

void refuse_quantised(const ModelConfig& config, std::string_view what) {
  if (config.quantization.format == LinearFormat::kPlain) return;
  throw FormatError(config.path.string() + ": quantization_config",
                    "{} of a model stored quantised ({}) is not supported yet: use the unquantised model", what,
                    config.quantization.description);
}

}  // namespace lora_train::model
