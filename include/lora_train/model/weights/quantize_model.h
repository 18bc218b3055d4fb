// `quantize`: writes a Hugging Face folder with quantised linears, for faster starts of runs that quantise the same
// model. The folder loads in transformers with bitsandbytes (nf4, int8), or as fine-grained FP8.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "lora_train/model/weights/stored_linear.h"

namespace lora_train::model {

struct QuantizeRequest {
  std::filesystem::path model;       ///< Hugging Face folder that is not quantised
  std::filesystem::path output_dir;  ///< new or empty; with `overwrite`, also a model that this program wrote
  LinearFormat format = LinearFormat::k4Bit;
  bool nested = true;  ///< k4Bit: scales in 8 bits too (double_quant)
  /// The linears to quantise ("model.layers.0.mlp.up_proj"); empty: all in the decoder layers.
  std::set<std::string> linears;
  bool overwrite = false;
  /// Called before each tensor with the number done, the total number, and its name. May be empty.
  std::function<void(std::int64_t num_done, std::int64_t num_tensors, std::string_view name)> progress;
};

struct QuantizeResult {
  std::filesystem::path folder;  ///< absolute
  std::int64_t num_linears = 0;
  std::uint64_t weight_bytes = 0;  ///< total over all tensors
  std::int64_t num_files = 0;
};

/// Quantises the linears of the decoder layers as base_precision does while it loads them; all other tensors stay as
/// they are. The weights are split into files as in the source. Memory: the quantised linears of one file. The folder
/// appears complete or not at all. Throws ConfigError for an output folder that may not be written, FormatError for a
/// model that is unsupported or already quantised, IoError, StopError.
QuantizeResult quantize_model(const QuantizeRequest& request);

}  // namespace lora_train::model
