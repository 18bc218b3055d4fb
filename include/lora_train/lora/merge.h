// `merge` folds an adapter into the weights of a Hugging Face folder. `merge --portable` rewrites an adapter so that
// servers that ignore rsLoRA and patterns compute it correctly. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::model {
struct StoredLinear;
}
namespace lora_train::storage {
class WeightFiles;
}

namespace lora_train::lora {

struct MergeRequest {
  std::filesystem::path model;       ///< Hugging Face folder
  std::filesystem::path adapter;     ///< PEFT folder
  std::filesystem::path output_dir;  ///< new or empty; with `overwrite`, also the result of an earlier merge
  std::string model_name;            ///< for README.md: org/name, or a path
  /// kBF16, kF16 or kF32 for every weight; unset: each keeps its own; quantised ones get config.json's dtype (bf16 if
  /// it has none).
  std::optional<storage::DType> dtype;
  /// Its base_precision, if quantised: that of the weights to merge into, of a folder that is not (MergedWeights).
  ModelSection onto;
  bool overwrite = false;
};

/// Decodes a linear of a quantised base to fp32 [out, in] (model::decode_linear). Without it, such a base is refused.
using DecodeLinear =
    std::function<std::vector<float>(const model::StoredLinear& linear, const storage::WeightFiles& weights)>;

/// Callbacks during a merge. Each may be empty.
struct MergeHooks {
  DecodeLinear decode;
  /// Called before each tensor with the number done, the total number, and its name.
  std::function<void(std::int64_t num_done, std::int64_t num_tensors, std::string_view name)> progress;
  /// Called once the folder is in place. If it throws, the folder is removed (or the older one restored).
  std::function<void(const std::filesystem::path& folder)> check;
};

struct MergeResult {
  std::filesystem::path folder;  ///< absolute
  std::int64_t num_tensors = 0;  ///< tensors written
  std::int64_t num_merged = 0;   ///< how many of them the adapter changed
  std::uint64_t weight_bytes = 0;
  std::int64_t num_files = 0;
};

/// Writes W + scale B A, computed in fp32 and rounded once, laid out in files as in the source (same names, same
/// tensors in each, an index if there is one), with config.json and the other text files. Tokenizer, chat template and
/// generation_config.json come from the adapter if it has a tokenizer (it was trained with them), else from the model.
/// Quantised linears are decoded, as are those to be quantised (`onto`), and the result is plain. Works on one tensor at a time, in twice the memory of the
/// largest tensor. The folder appears complete or not at all. Throws ConfigError for an output folder that may not be
/// written, FormatError for an unsupported model or adapter or for two that do not belong together, NumericError if a
/// merged weight does not fit its dtype, IoError, StopError.
MergeResult merge_adapter(const MergeRequest& request, const MergeHooks& hooks = {});

/// The folder of the tokenizer that goes with the merged model: the adapter's if it holds one, else the model's.
std::filesystem::path merged_tokenizer_folder(const std::filesystem::path& model, const std::filesystem::path& adapter);

// Checks a merge: compares the logits of the merged folder with those of base model and adapter. Needs torch: the engine
// computes it.

struct MergeCheckRequest {
  std::filesystem::path model, adapter, merged;
  std::vector<std::vector<std::int32_t>> rows;  ///< token ids, no row empty; at most a few thousand tokens in total
  std::vector<ModelSection> bases;              ///< how the base is read (base_precision), for each comparison
};

struct MergeCheck {
  double max_difference = 0;          ///< between two logits, over all positions and the whole vocabulary
  double max_logit = 0;               ///< largest |logit| of base and adapter, for scale
  std::size_t row = 0, position = 0;  ///< position of the largest difference
  std::int64_t num_positions = 0;
  std::int64_t num_argmax_changed = 0;  ///< positions at which another token is the most likely
};

/// One result per base. Runs the models in fp32 on the CPU, with one layer in memory at a time, and keeps the logits of
/// the merged one. Throws FormatError, NumericError naming row and position if a logit is not finite, StopError.
std::vector<MergeCheck> check_merge(const MergeCheckRequest& request);

struct PortableRequest {
  std::filesystem::path adapter, output_dir;
  bool overwrite = false;
};

struct PortableResult {
  std::filesystem::path folder;
  std::int64_t num_linears = 0;
  std::int64_t num_padded = 0;    ///< linears of a rank below `rank`, padded with zeros
  std::int64_t num_rescaled = 0;  ///< linears whose scale was multiplied into B (one rounding in fp32)
  std::int64_t rank = 0;
  double alpha = 0;
};

/// Writes the same adapter with one rank and one lora_alpha, without rsLoRA and patterns. Needs no model. scale B A of
/// each linear stays the same; lower ranks are padded with zeros. If all linears have one scale and scale * rank is a
/// whole number, that product becomes lora_alpha and no value changes. Otherwise lora_alpha is the rank, so that the
/// scale is 1, and each B is multiplied by its scale. Tensors are F32. Copies the other files of the folder, and
/// rewrites the usage section of README.md. Throws what merge_adapter throws.
PortableResult make_portable(const PortableRequest& request);

}  // namespace lora_train::lora
