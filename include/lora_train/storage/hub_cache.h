// Models and datasets in the local Hugging Face cache, with the locations and variables of huggingface_hub. Never uses
// the network.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train::storage {

enum class HubKind { kModel, kDataset };

/// A repository on the hub, at a revision.
struct HubId {
  std::string organisation, name;
  std::string revision = "main";  ///< a branch, a tag or a commit
  HubKind kind = HubKind::kModel;

  std::string full_name() const { return organisation + "/" + name; }
};

/// Parses "org/name" or "org/name@revision"; nothing for any other text.
std::optional<HubId> parse_hub_id(std::string_view text, HubKind kind = HubKind::kModel);

/// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hub_cache_folder();

/// $HF_TOKEN, else the file $HF_TOKEN_PATH, else the file "token" in $HF_HOME, where `hf auth login` leaves it; empty
/// if there is none.
std::string hub_token();

/// "models--org--name", which holds refs, snapshots and blobs of one repository, below hub_cache_folder().
std::string hub_folder_name(const HubId& id);

/// The folder with the files of that revision; empty if the cache has none.
std::filesystem::path find_in_hub_cache(const HubId& id);

/// For messages: "not in the local Hugging Face cache (FOLDER). ... : lora-train download org/name".
std::string not_in_hub_cache(const HubId& id);

}  // namespace lora_train::storage
