// Finds and checks the tensors of one linear, for stored_linear.cpp, and reads bitsandbytes' quant_state.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::model {

// Shared by the checks of plain and quantised weights (expected_weights.cpp).

/// "[2, 3]"
std::string show_shape(const std::vector<std::int64_t>& shape);

/// Throws FormatError if the tensor is missing.
const storage::TensorEntry& require_weight(const TensorSpec& spec, const ModelConfig& config,
                                           const storage::WeightFiles& weights);
/// Throws FormatError unless the tensor has the shape of `spec`.
void require_shape(const TensorSpec& spec, const storage::TensorEntry& entry, const ModelConfig& config,
                   const storage::WeightFiles& weights);
/// The quantisation state of a weight: the tensors of a folder that go with `name`, by their names, without the weight.
std::vector<std::string> quantised_parts(const std::string& name, const storage::WeightFiles& weights);

struct QuantState {
  std::string quant_type;  ///< "nf4", "fp4"
  std::int64_t block_size = 0;
  std::int64_t nested_block_size = 0;  ///< 0: scales are not nested
  double nested_offset = 0;
  std::vector<std::int64_t> shape;
};

/// `where` is "file: tensor". Throws FormatError (where = "file: tensor: key") for text that is not such JSON, a key
/// that is missing, unknown or of the wrong type, and a block size that bitsandbytes does not allow.
QuantState parse_quant_state(std::string_view json, const std::string& where);

// The quantisation state of a linear, after its name and a dot.
inline constexpr const char* kAbsmax = "weight.absmax";
inline constexpr const char* kQuantMap = "weight.quant_map";
inline constexpr const char* kNestedAbsmax = "weight.nested_absmax";
inline constexpr const char* kNestedQuantMap = "weight.nested_quant_map";
inline constexpr const char* kNf4State = "weight.quant_state.bitsandbytes__nf4";
inline constexpr const char* kFp4State = "weight.quant_state.bitsandbytes__fp4";
inline constexpr const char* kScb = "SCB";
inline constexpr const char* kWeightFormat = "weight_format";
inline constexpr const char* kWeightScaleInv = "weight_scale_inv";
inline constexpr const char* kWeightScale = "weight_scale";
inline constexpr const char* k4BitParts[] = {kAbsmax, kQuantMap, kNestedAbsmax, kNestedQuantMap, kNf4State, kFp4State};
inline constexpr const char* kInt8Parts[] = {kScb, kWeightFormat};
inline constexpr const char* kFp8Parts[] = {kWeightScaleInv, kWeightScale};
// Scales of activations, for servers that compute in 8 bits.
inline constexpr const char* kUnreadParts[] = {"input_scale", "activation_scale", "output_scale"};

inline constexpr std::int64_t kMapSize = 16, kNestedMapSize = 256;

/// The quantisation state of a weight.
class Parts {
 public:
  Parts(const std::string& weight, const storage::WeightFiles& files)
      : prefix_(weight.substr(0, weight.size() - std::strlen("weight"))), files_(files) {}

  std::string full_name(const std::string& part) const { return prefix_ + part; }
  const storage::TensorEntry* find(const std::string& part) const { return files_.find(prefix_ + part); }
  template <typename Names>
  const storage::TensorEntry* first_of(const Names& parts) const {
    for (const char* part : parts) {
      if (const auto* entry = find(part)) return entry;
    }
    return nullptr;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    const auto add = [&](const auto& parts) {
      for (const char* part : parts) {
        if (const auto* entry = find(part)) all.push_back(entry->name);
      }
    };
    add(k4BitParts), add(kInt8Parts), add(kFp8Parts), add(kUnreadParts);
    return all;
  }

 private:
  std::string prefix_;
  const storage::WeightFiles& files_;
};

/// Reads scales or a map. Throws FormatError at NaN or infinity.
void require_finite(const storage::TensorEntry& entry, const storage::WeightFiles& files);

/// Recognises and reads one linear, except the values of its scales. All functions throw FormatError.
class LinearReader {
 public:
  LinearReader(const ModelConfig& config, const TensorSpec& spec, const storage::WeightFiles& files)
      : config_(config),
        spec_(spec),
        files_(files),
        weight_(require_weight(spec, config, files)),
        parts_(spec.name, files) {}

  /// Format, its name, sizes and weight. Reads no data.
  StoredLinear recognise() const;
  void read_4bit(StoredLinear& linear) const;
  void read_int8(StoredLinear& linear) const;
  void read_fp8(StoredLinear& linear) const;
  void require_plain() const { require_shape(spec_, weight_, config_, files_); }
  void require_agreement(const StoredLinear& linear) const;

 private:
  [[noreturn]] void reject(const storage::TensorEntry& entry, const std::string& what) const {
    throw FormatError(files_.where(entry), what);
  }
  [[noreturn]] void refuse_unknown() const;
  const storage::TensorEntry& require(const std::string& part, const std::string& why) const;
  void require_layout(const storage::TensorEntry& entry, storage::DType dtype, const std::vector<std::int64_t>& shape,
                      const std::string& what) const;
  void read_nested(const QuantState& state, const storage::TensorEntry& state_entry, StoredLinear& linear) const;
  void read_scale_blocks(const storage::TensorEntry& scales, StoredLinear& linear) const;
  std::int64_t num_weights() const { return spec_.shape[0] * spec_.shape[1]; }

  const ModelConfig& config_;
  const TensorSpec& spec_;
  const storage::WeightFiles& files_;
  const storage::TensorEntry& weight_;
  Parts parts_;
};

}  // namespace lora_train::model
