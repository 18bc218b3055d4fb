#include "lora_train/lora/adapter_file.h"

#include "adapter_names.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/philox.h"
#include "lora_train/model/resident_weights.h"
#include "lora_train/model/tensor_io.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::lora {
namespace {

std::vector<std::string> parameter_names(const std::vector<model::AdapterSpec>& specs) {
  std::vector<std::string> names;
  for (const auto& spec : specs) {
    for (const char matrix : {'A', 'B'}) names.push_back(model::peft_parameter_name(spec.layer, spec.slot, matrix));
  }
  return names;
}

}  // namespace

void load_adapter(const std::filesystem::path& folder, const std::vector<model::AdapterSpec>& specs,
                  model::Parameters& parameters) {
  const auto path = folder / kTensorFile;
  if (!std::filesystem::exists(path)) {
    throw FormatError(path.string(), "is missing; expected a PEFT adapter folder with adapter_config.json and " +
                                         std::string(kTensorFile) + " (.bin adapters are refused: save with safetensors)");
  }
  const storage::SafetensorsFile file(path);
  std::set<std::string> expected;
  for (const auto& name : parameter_names(specs)) {
    expected.insert(name);
    const std::string where = path.string() + ": " + name;
    const storage::TensorEntry* entry = file.find(name);
    if (entry == nullptr) throw FormatError(where, "is missing, but adapter_config.json targets this linear");
    at::Tensor value = parameters.value(name);
    if (entry->shape != value.sizes().vec()) {
      throw FormatError(where, "is " + storage::describe(*entry) + ", expected shape " + c10::str(value.sizes()) +
                                   "; the adapter belongs to another model or rank");
    }
    if (!storage::is_weight_dtype(entry->dtype)) {
      throw FormatError(where, "is " + storage::describe(*entry) + "; expected F32, F16 or BF16: save the adapter again");
    }
    model::copy_elements(*entry, file.bytes(*entry), where, value);
    if (!at::isfinite(value).all().item<bool>()) throw FormatError(where, "holds NaN or infinity");
  }
  for (const auto& entry : file.tensors()) {
    if (!expected.contains(entry.name)) {
      throw FormatError(path.string() + ": " + entry.name,
                        "is not a LoRA tensor that adapter_config.json announces; it would be ignored");
    }
  }
}

std::vector<storage::FileToWrite> adapter_files(const AdapterConfig& config, const std::vector<std::string>& target_modules,
                                                const model::Parameters& parameters, SaveDtype dtype) {
  const auto type = dtype == SaveDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
  return {{kTensorFile, "", model::values_to_write(parameters, type)},
          {kConfigFile, adapter_config_json(config, target_modules)}};
}

void init_adapter_values(const std::vector<model::AdapterSpec>& specs, std::uint64_t seed, model::Parameters& parameters) {
  for (const auto& spec : specs) {
    const std::string name = model::peft_parameter_name(spec.layer, spec.slot, 'A');
    const at::Tensor a = at::empty(parameters.value(name).sizes(), at::kFloat);  // on the host: the same on every device
    const int64_t rows = a.size(0), columns = a.size(1);
    const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(columns)));
    const PhiloxKey key = philox_key(seed, RandomPurpose::kLoraInit, name);
    float* out = a.mutable_data_ptr<float>();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; column += 4) {
        const PhiloxCounter bits = philox4x32({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column / 4), 0, 0}, key);
        for (int64_t i = 0; i < std::min<int64_t>(4, columns - column); ++i) {
          out[row * columns + column + i] = philox_symmetric(bits[static_cast<std::size_t>(i)]) * bound;
        }
      }
    }
    parameters.value(name).copy_(a);
    parameters.value(model::peft_parameter_name(spec.layer, spec.slot, 'B')).zero_();
  }
}

}  // namespace lora_train::lora
