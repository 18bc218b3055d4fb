// Models and datasets in the local Hugging Face cache, with the locations and variables of huggingface_hub. Never uses
// the network.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train::storage {

struct HubId {
  std::string organisation, name;
  std::string revision;  ///< a branch, a tag or a commit; empty = main
};

/// Parses "org/name" or "org/name@revision"; nothing for any other text.
std::optional<HubId> parse_hub_id(std::string_view text);

/// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hub_cache_folder();

/// $HF_TOKEN, else the file $HF_TOKEN_PATH, else the file "token" in $HF_HOME, where `hf auth login` leaves it; empty
/// if there is none.
std::string hub_token();

enum class HubKind { kModel, kDataset };

/// "models--org--name", which holds refs, snapshots and blobs of one repository, below hub_cache_folder().
std::string hub_folder_name(const HubId& id, HubKind kind);

/// The folder with the files of that revision; empty if the cache has none.
std::filesystem::path find_in_hub_cache(const HubId& id, HubKind kind);

/// For messages: "not in the local Hugging Face cache (FOLDER). ... : lora-train download org/name".
std::string not_in_hub_cache(const HubId& id, HubKind kind);

}  // namespace lora_train::storage
