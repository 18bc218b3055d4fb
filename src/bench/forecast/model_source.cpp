#include "model_source.h"

#include <algorithm>
#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::bench {
namespace {

bool has_weights(const std::filesystem::path& folder) {
  const auto is_weights = [](const auto& entry) { return entry.path().extension() == ".safetensors"; };
  return std::any_of(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator(), is_weights);
}

}  // namespace

plan::ModelFiles open_model_files(const Profile& profile) {
  const ModelSection& section = profile.model;
  plan::ModelFiles files = plan::open_model_without_weights(section, profile.adapter.init_adapter);
  const auto& folder = files.resolved.folder;
  if (has_weights(folder)) {
    files.base = plan::base_storage(section, files.config, storage::open_model_weights(folder));
  } else if (files.config.quantization.method == model::QuantMethod::kNone) {
    files.base = plan::base_storage(section, files.config);
  } else {
    throw FormatError(folder.string(), "is quantised (" + files.config.quantization.description +
                                           "), and which of its linears are, only its weights say; they are not there");
  }
  return files;
}

}  // namespace lora_train::bench
