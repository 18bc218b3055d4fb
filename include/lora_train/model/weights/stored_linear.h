// How each linear of a model is stored: plain, or quantised by bitsandbytes or to FP8. Decided by the tensors of a
// folder, linear by linear, since published folders leave some linears plain; quantization_config of config.json must
// agree. No torch. O outputs, D inputs. Sources: bitsandbytes' functional.QuantState and nn.Linear8bitLt, transformers'
// finegrained_fp8.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::storage {
struct TensorEntry;
}

namespace lora_train::model {

/// The format of a linear and the sizes of its parts.
struct LinearStorage {
  LinearFormat format = LinearFormat::kPlain;
  std::int64_t out_features = 0, in_features = 0;
  std::int64_t block_size = 0;                     ///< k4Bit: elements per scale
  std::int64_t nested_block_size = 0;              ///< k4Bit: scales per nested scale; 0: scales are fp32
  std::int64_t block_rows = 0, block_columns = 0;  ///< kFp8: the tile of one scale

  /// Number of scales; with nested scales, the number of their codes. 0 if plain.
  std::int64_t num_scales() const;
  /// Bytes of codes, scales and maps in memory, where scales are always fp32 (codes of one byte if nested); for plain
  /// weights, O D plain_element_bytes.
  std::int64_t bytes(std::int64_t plain_element_bytes) const;
  bool operator==(const LinearStorage&) const = default;
};

/// A linear of a folder with its tensors, which belong to the WeightFiles.
struct StoredLinear : LinearStorage {
  std::string_view format_name;  ///< for messages: "nf4", "fp4", "int8", "fp8", "bf16", "fp16", "fp32"
  const storage::TensorEntry* weight = nullptr;
  const storage::TensorEntry* scales = nullptr;  ///< absmax, SCB, weight_scale_inv or weight_scale; null if plain
  const storage::TensorEntry* map = nullptr;     ///< k4Bit: 16 values
  const storage::TensorEntry* nested_scales = nullptr;
  const storage::TensorEntry* nested_map = nullptr;  ///< 256 values
  float nested_offset = 0;
  std::vector<std::string> names;  ///< all its tensors besides the weight, including those not read
};

/// Finds how the linear `spec` (kind kLinear) is stored. Checks the sizes of all its parts against each other and
/// its format against config.json. Reads no scale. Throws FormatError (where = "file: tensor").
StoredLinear stored_linear(const ModelConfig& config, const TensorSpec& spec, const storage::WeightFiles& weights);
/// Reads the scales and maps of a linear (check_weights does, once). Throws FormatError at NaN or infinity.
void require_finite_scales(const StoredLinear& linear, const storage::WeightFiles& weights);

/// The linears of a base that are not plain, by name ("model.layers.0.mlp.up_proj").
using BaseStorage = std::map<std::string, LinearStorage>;

/// For messages: "196 linears in 4 bits".
std::string describe(const BaseStorage& base);

/// The linears as the folder stores them. Throws what stored_linear throws.
BaseStorage stored_base(const ModelConfig& config, const storage::WeightFiles& weights);

/// True if the files hold every matrix (linears, embedding, head) in bf16.
bool has_bf16_matrices(const ModelConfig& config, const storage::WeightFiles& weights);

/// The values [O, D] of a quantised linear in fp32: one of a quantised folder, or a plain one (no scales) with the
/// storage that a run gives it on loading, quantised as there. Needs torch.
std::vector<float> decode_linear(const StoredLinear& linear, const storage::WeightFiles& weights);

/// The storage of a linear [O, D] that is quantised while it is read. `format` is not kPlain; nested: k4Bit, scales in
/// 8 bits too.
LinearStorage quantised_storage(LinearFormat format, std::int64_t out_features, std::int64_t in_features, bool nested);

/// The linears that a run keeps quantised: those in the folder, or those that base_precision selects. Checks the names
/// and shapes of all weights first. Throws FormatError, or ConfigError if base_precision contradicts the folder.
BaseStorage base_storage(const ModelSection& section, const ModelConfig& config, const storage::WeightFiles& weights);
/// The same for a model without files, whose linears are plain.
BaseStorage base_storage(const ModelSection& section, const ModelConfig& config);

/// How many linears are stored in each format, the most frequent first: "168 linears nf4, 28 bf16". Reads no tensor.
/// Throws FormatError for a linear in an unknown format.
std::string linear_formats(const ModelConfig& config, const storage::WeightFiles& weights);

}  // namespace lora_train::model
