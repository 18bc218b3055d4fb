// The weights of a model folder with an adapter applied, one tensor at a time, as `merge` and `export` write them. No
// torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/merge.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::lora {

struct TokenRowsToMerge;

/// Packed elements of F32, F16 or BF16 (any alignment), as fp32.
std::vector<float> read_floats(std::string_view bytes, storage::DType dtype);

bool all_finite(const std::vector<float>& values);

/// W + scale B A, computed in fp32 and rounded once. Takes twice the memory of the largest tensor. Not thread-safe.
class MergedWeights {
 public:
  /// Opens and checks model and adapter, and reads the adapter once. Without an adapter (empty path), the weights are
  /// those of the model. W is the model's own weight or, if `onto` has a quantised base_precision, what a run with it
  /// computes with. Without `decode`, a quantised base is refused. Throws ConfigError for that, FormatError for an
  /// unsupported model or adapter or for two that do not belong together, IoError.
  MergedWeights(const std::filesystem::path& model, const std::filesystem::path& adapter, DecodeLinear decode,
                const ModelSection& onto = {});

  /// The model's config, with room for the adapter's token rows.
  const model::ModelConfig& config() const { return config_; }
  const AdapterConfig& adapter() const { return adapter_; }
  const storage::WeightFiles& weights() const { return weights_; }

  /// True if the folder is stored quantised.
  bool is_base_quantised() const { return !parts_of_quantised_.empty(); }
  /// The scales and maps of quantised linears, which the result does not have.
  const std::set<std::string>& parts_of_quantised() const { return parts_of_quantised_; }
  std::int64_t num_tensors() const {
    return static_cast<std::int64_t>(weights_.names().size() - parts_of_quantised_.size());
  }
  /// How many of them the adapter changes.
  std::int64_t num_merged() const;

  // Tensors are named as in weights().
  std::vector<std::int64_t> shape_of(const std::string& name) const;
  /// `wanted`, else the tensor's own dtype; for linears stored quantised, config.json's (bf16 if it has none). Tensors other
  /// than weights, and those beside the text model, keep theirs.
  storage::DType dtype_of(const std::string& name, std::optional<storage::DType> wanted) const;
  /// True if bytes() computes the tensor: decodes it, merges it, or adds token rows.
  bool is_computed(const std::string& name) const;

  /// The tensor in dtype `target`, valid until the next call. Throws FormatError for NaN or infinity in a file,
  /// NumericError if the result does not fit `target`.
  std::string_view bytes(const std::string& name, storage::DType target);

 private:
  /// An adapted weight.
  struct Site {
    model::AdapterSpec spec;
    std::vector<std::int64_t> shape;  ///< [out, in]
    std::vector<model::Parameter> tensors() const { return model::adapter_tensors(spec, shape[1], shape[0]); }
  };

  std::map<std::string, Site> adapted_sites() const;
  std::vector<model::Parameter> adapter_tensor_list() const;
  bool gets_token_rows(const std::string& name) const;
  TokenRowsToMerge rows_for(const std::string& name) const;
  void find_quantised(const ModelSection& onto);
  std::vector<float> read(const model::Parameter& tensor) const;
  [[noreturn]] void refuse_result(const storage::TensorEntry& entry, storage::DType target) const;

  DecodeLinear decode_;
  bool has_adapter_;
  model::ModelConfig config_;
  storage::WeightFiles weights_;
  AdapterConfig adapter_;
  std::map<std::string, Site> sites_;
  model::TokenRows token_rows_;
  std::optional<storage::WeightFiles> tensors_;           ///< the adapter's
  std::map<std::string, model::StoredLinear> quantised_;  ///< by weight name; those to be quantised have no scales
  std::set<std::string> parts_of_quantised_;
  std::string buffer_;
  const storage::TensorEntry* last_ = nullptr;
};

}  // namespace lora_train::lora
