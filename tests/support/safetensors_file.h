// Writes safetensors files for tests.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {

inline void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata = {{"format", "pt"}}) {
  const SafetensorsLayout layout(tensors, metadata);
  AtomicFileWriter writer(path, layout.num_bytes());
  layout.write(writer);
  writer.commit();
}

}  // namespace lora_train::storage
