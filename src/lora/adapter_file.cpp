#include "lora_train/lora/adapter_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "adapter_names.h"
#include "lora_train/base/philox.h"
#include "lora_train/lora/adapter_base.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/model/tensor_io.h"

namespace lora_train::lora {
namespace {

/// The tensors of the file.
std::vector<model::Parameter> stored_tensors(const model::Trainables& parameters, std::int64_t num_new_rows) {
  std::vector<model::Parameter> tensors = parameters.list();
  for (auto& tensor : tensors) {
    if (tensor.name == model::kEmbeddingRows || tensor.name == model::kHeadRows) tensor.shape.front() -= num_new_rows;
  }
  std::erase_if(tensors, [](const model::Parameter& tensor) { return tensor.shape.front() == 0; });
  return tensors;
}

}  // namespace

void load_adapter(const std::filesystem::path& folder, model::Trainables& parameters, std::int64_t num_new_rows) {
  const std::vector<model::Parameter> tensors = stored_tensors(parameters, num_new_rows);
  const storage::SafetensorsFile file = open_adapter_tensors(folder, tensors);
  for (const auto& tensor : tensors) {
    const std::string& name = tensor.name;
    const storage::TensorEntry& entry = *file.find(name);
    at::Tensor value = parameters.value(name).narrow(0, 0, tensor.shape.front());
    model::copy_elements(entry, file.bytes(entry), file.path().string() + ": " + name, value);
    if (!at::isfinite(value).all().item<bool>()) refuse_non_finite(file, name);
  }
}

std::vector<storage::FileToWrite> adapter_files(const AdapterConfig& config,
                                                const std::vector<std::string>& target_modules,
                                                const model::Trainables& parameters, Precision precision) {
  const auto type = precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
  std::vector<storage::FileToWrite> files = {{kTensorFile, "", model::values_to_write(parameters, type)},
                                             {kConfigFile, adapter_config_json(config, target_modules)}};
  if (!config.base_weights.empty()) files.push_back({kBaseFile, base_file_text(config.base_weights)});
  return files;
}

void init_adapter_values(std::uint64_t seed, model::Trainables& parameters) {
  for (const auto& parameter : parameters.list()) {
    at::Tensor value = parameters.value(parameter.name);
    if (parameter.initial_values == model::InitialValues::kZeros) {
      value.zero_();
      continue;
    }
    const at::Tensor drawn = at::empty(value.sizes(), at::kFloat);  // on the host: the same on every device
    const int64_t rows = drawn.size(0), columns = drawn.size(1);
    const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(columns)));
    const PhiloxKey key = philox_key(seed, RandomPurpose::kLoraInit, parameter.name);
    float* out = drawn.mutable_data_ptr<float>();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; column += 4) {
        const PhiloxCounter bits =
            philox4x32({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column / 4), 0, 0}, key);
        for (int64_t i = 0; i < std::min<int64_t>(4, columns - column); ++i) {
          out[row * columns + column + i] = philox_symmetric(bits[static_cast<std::size_t>(i)]) * bound;
        }
      }
    }
    value.copy_(drawn);
  }
}

}  // namespace lora_train::lora
