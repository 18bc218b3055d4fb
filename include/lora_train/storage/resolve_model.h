// Resolves the profile key `model` to a folder on this machine. Never uses the network.
#pragma once

#include <filesystem>
#include <string>

namespace lora_train::storage {

struct ResolvedModel {
  std::filesystem::path folder;
  std::string hub_name;  ///< "org/name" if the folder is in the Hugging Face cache, else empty
};

/// `path_or_id` is a folder, or "org/name" or "org/name@revision" in the local cache (hub_cache.h).
/// Throws FormatError for a missing folder, for a folder that holds a pipe or a device, and for a model that is not in the
/// cache; that message has the command to download it.
ResolvedModel resolve_model(const std::string& path_or_id);

}  // namespace lora_train::storage
