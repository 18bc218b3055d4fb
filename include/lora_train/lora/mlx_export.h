// `export --mlx`: writes an adapter for mlx-lm. No torch.
// Source: ml-explore/mlx-lm mlx_lm/tuner/utils.py (load_adapters, linear_to_lora_layers), tuner/lora.py (LoRALinear).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lora_train::lora {

struct MlxRequest {
  std::filesystem::path model;       ///< Hugging Face folder; only config.json is read
  std::filesystem::path adapter;     ///< PEFT folder
  std::filesystem::path output_dir;  ///< new or empty; with `overwrite`, also the result of an earlier export or merge
  std::string model_name;            ///< "model" of adapter_config.json: org/name, or a path
  bool overwrite = false;
};

struct MlxResult {
  std::filesystem::path folder;  ///< absolute
  std::int64_t num_linears = 0;
  std::int64_t num_layers = 0;    ///< counted from the last layer
  std::int64_t num_padded = 0;    ///< linears of a rank below `rank`, padded with zeros, which changes no product
  std::int64_t num_rescaled = 0;  ///< linears whose scale was multiplied into B (one rounding in fp32)
  std::int64_t rank = 0;
  double scale = 0;
};

/// Writes adapters.safetensors (F32: lora_a [in, rank], lora_b [rank, out]) and adapter_config.json. mlx-lm computes
/// y + scale (x lora_a) lora_b with one rank and one scale for all linears, rsLoRA or not: if the scales differ,
/// `scale` is 1 and each B is multiplied by its own. Linears are named within a layer ("self_attn.q_proj") if each of
/// the last num_layers layers has the same, else by their paths.
/// Throws FormatError for trained token rows and for an adapter that is damaged, not supported, or of another model;
/// ConfigError for an output folder that may not be written; NumericError, IoError.
MlxResult export_mlx(const MlxRequest& request);

}  // namespace lora_train::lora
