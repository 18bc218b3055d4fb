#include "checkpoint_tensors.h"

#include <ATen/ATen.h>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/checkpoint/checkpoint.h"
#include "lora_train/metrics/host_memory.h"
#include "lora_train/model/tensor_io.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::train {
namespace {

namespace fs = std::filesystem;

const char* const kAdapterFile = "adapter_model.safetensors";
const char* const kWeightsFile = "model.safetensors";
const std::string kFirstMoment = "exp_avg.", kSecondMoment = "exp_avg_sq.";

storage::FileToWrite moments_file(const model::Parameters& parameters) {
  storage::FileToWrite file{checkpoint::kOptimizerFile, ""};
  for (const auto& [prefix, flat] : {std::pair(kFirstMoment, parameters.exp_avg), std::pair(kSecondMoment, parameters.exp_avg_sq)}) {
    for (const auto& parameter : parameters.list()) {
      file.tensors.push_back(model::finite_tensor_to_write(prefix + parameter.name, parameters.view(flat, parameter.name)));
    }
  }
  return file;
}

void read_flat(const fs::path& path, const model::Parameters& parameters,
               const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  // Read, so that a disk that fails is an error; mapped where that takes memory that the run needs.
  const auto num_bytes = static_cast<std::int64_t>(fs::file_size(path));
  const bool has_room = num_bytes <= metrics::available_host_memory() / 2;
  const storage::SafetensorsFile file(has_room ? MappedFile::read(path) : MappedFile(path));
  std::size_t num_read = 0;
  for (const auto& [prefix, flat] : buffers) {
    for (const auto& parameter : parameters.list()) {
      throw_if_stop_requested();
      const std::string name = prefix + parameter.name, where = path.string() + ": " + name;
      const storage::TensorEntry* entry = file.find(name);
      if (entry == nullptr) throw FormatError(where, "is missing; the checkpoint belongs to another adapter or model");
      if (entry->shape != parameter.shape) {
        throw FormatError(where, "has another shape than this run needs: " + storage::describe(*entry));
      }
      model::copy_elements(*entry, file.bytes(*entry), where, parameters.view(flat, parameter.name));
      ++num_read;
    }
  }
  if (num_read != file.tensors().size()) {
    throw FormatError(path.string(), "holds tensors that this run does not train; the checkpoint belongs to another run");
  }
}

}  // namespace

std::vector<storage::FileToWrite> checkpoint_files(const lora::AdapterConfig* adapter,
                                                   const std::vector<std::string>& target_modules,
                                                   const model::Parameters& parameters) {
  std::vector<storage::FileToWrite> files;
  if (adapter != nullptr) {
    files = lora::adapter_files(*adapter, target_modules, parameters, lora::SaveDtype::kFloat32);
  } else {
    files.push_back({kWeightsFile, "", model::values_to_write(parameters, at::kFloat)});
  }
  files.push_back(moments_file(parameters));
  return files;
}

void load_checkpoint_tensors(const fs::path& checkpoint, bool is_adapter, model::Parameters& parameters) {
  read_flat(checkpoint / (is_adapter ? kAdapterFile : kWeightsFile), parameters, {{"", parameters.values}});
  read_flat(checkpoint / checkpoint::kOptimizerFile, parameters,
            {{kFirstMoment, parameters.exp_avg}, {kSecondMoment, parameters.exp_avg_sq}});
}

}  // namespace lora_train::train
