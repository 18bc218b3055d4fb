#include "lora_train/lora/adapter_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "lora_train/base/philox.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/storage/run_names.h"

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

/// With several adapters: the tensor's name in its adapter's own file; empty if it belongs to another adapter.
std::string name_in_file(const std::string& name, const std::string& owner_name) {
  if (owner_name.empty()) return name;
  for (const char* matrix : {"lora_A", "lora_B"}) {
    const std::string suffix = model::adapter_suffix(matrix, owner_name);
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size()) + model::adapter_suffix(matrix, "");
  }
  return "";
}

}  // namespace

void load_adapter(const std::filesystem::path& folder, model::Trainables& parameters, std::int64_t num_new_rows,
                  const std::string& owner_name) {
  std::vector<model::Parameter> tensors;
  std::vector<std::string> names;
  for (model::Parameter& tensor : stored_tensors(parameters, num_new_rows)) {
    const std::string name = name_in_file(tensor.name, owner_name);
    if (name.empty()) continue;
    names.push_back(tensor.name);
    tensors.push_back(std::move(tensor));
    tensors.back().name = name;
  }
  const storage::WeightFiles file = open_adapter_tensors(folder, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const model::Parameter& tensor = tensors[i];
    const storage::TensorEntry& entry = *file.find(tensor.name);
    at::Tensor value = parameters.value(names[i]).narrow(0, 0, tensor.shape.front());
    model::copy_elements(entry, file.bytes(entry), file.where(entry), value);
    if (!at::isfinite(value).all().item<bool>()) refuse_non_finite(file, entry);
  }
}

std::vector<storage::FileToWrite> adapter_files(const AdapterConfig& config, const model::Trainables& parameters,
                                                Precision precision) {
  const auto type = precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
  std::vector<storage::FileToWrite> files = {{storage::kAdapterFile, "", model::values_to_write(parameters, type)},
                                             {storage::kAdapterConfigFile, adapter_config_json(config)}};
  for (storage::TensorToWrite& tensor : files.front().tensors) {
    tensor.name = model::name_in_class(tensor.name, config.module_prefix);
  }
  if (!config.base_weights.empty()) files.push_back({storage::kBaseModelFile, base_file_text(config.base_weights)});
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
