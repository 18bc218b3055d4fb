// From what a profile says in `model` to a folder on this machine. Never touches the network.
#pragma once

#include <filesystem>
#include <string>

namespace lora_train::storage {

struct ResolvedModel {
  std::filesystem::path folder;
  std::string hub_name;  ///< "org/name" when it was found in the Hugging Face cache, else empty
};

/// `path_or_id` is a folder, or "org/name" or "org/name@revision" (branch, tag or commit; default main) in the local
/// cache: $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
/// Throws FormatError: no such folder, a folder that holds a pipe or a device, or not in the cache, with the line that
/// downloads it.
ResolvedModel resolve_model(const std::string& path_or_id);

/// The cache folder by the rule above.
std::filesystem::path hub_cache_folder();

}  // namespace lora_train::storage
