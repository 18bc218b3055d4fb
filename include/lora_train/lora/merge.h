// `merge`: an adapter folded into a Hugging Face folder, and `merge --portable`: an adapter rewritten so that servers that
// ignore rsLoRA and patterns compute it correctly. No torch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lora_train/storage/safetensors.h"

namespace lora_train::lora {

struct MergeRequest {
  std::filesystem::path model;          ///< Hugging Face folder
  std::filesystem::path adapter;        ///< PEFT folder
  std::filesystem::path output_dir;     ///< new or empty, or with `overwrite` what an earlier merge wrote
  std::string model_name;               ///< for README.md: org/name, or a path
  std::optional<storage::DType> dtype;  ///< kBF16, kF16 or kF32 for every weight; unset: each as the model has it
  bool overwrite = false;
};

/// Calls to the caller meanwhile. Both may be empty.
struct MergeHooks {
  /// Before each tensor: how many are done, how many there are, and its name.
  std::function<void(std::int64_t num_done, std::int64_t num_tensors, std::string_view name)> progress;
  /// After the folder is in place. If it throws, the folder is removed again (or the older one restored).
  std::function<void(const std::filesystem::path& folder)> check;
};

struct MergeResult {
  std::filesystem::path folder;  ///< absolute
  std::int64_t num_tensors = 0;  ///< written
  std::int64_t num_merged = 0;   ///< of these, changed by the adapter
  std::uint64_t weight_bytes = 0;
  std::int64_t num_files = 0;
};

/// Writes weights in the files of the source (same names, same tensors in each, an index if there is one): W + scale B A in
/// fp32, rounded once, with config.json and the other text files. Tokenizer, chat template and generation_config.json are the
/// adapter's if it has a tokenizer (it was trained with them), else the model's. Works on one tensor at a time: memory is
/// twice the largest tensor, not the model. The folder appears complete or not at all.
/// Throws ConfigError for an output folder that may not be written, FormatError for a model or adapter that is not
/// supported or that do not belong together, NumericError when a merged weight does not fit its dtype, IoError, StopError.
MergeResult merge_adapter(const MergeRequest& request, const MergeHooks& hooks = {});

/// The folder of the tokenizer that goes with the merged model: the adapter's if it holds one, else the model's.
std::filesystem::path merged_tokenizer_folder(const std::filesystem::path& model, const std::filesystem::path& adapter);

struct PortableRequest {
  std::filesystem::path adapter, output_dir;
  bool overwrite = false;
};

struct PortableResult {
  std::filesystem::path folder;
  std::int64_t num_linears = 0;
  std::int64_t num_padded = 0;    ///< of these, of a lower rank than `rank`: padded with zeros
  std::int64_t num_rescaled = 0;  ///< whose scale was multiplied into B (one rounding in fp32)
  std::int64_t rank = 0;
  double alpha = 0;
};

/// The same adapter with one rank and one lora_alpha, without rsLoRA and patterns; needs no model. scale B A of each linear
/// stays: lower ranks are padded with zeros. Where all linears have one scale and it times the rank is a whole number, that
/// is lora_alpha and no value changes; else lora_alpha is the rank, so that the scale is 1, and B is multiplied by its scale.
/// Tensors are F32. Other files of the folder are copied; the usage section of README.md is rewritten. Throws as merge_adapter.
PortableResult make_portable(const PortableRequest& request);

}  // namespace lora_train::lora
