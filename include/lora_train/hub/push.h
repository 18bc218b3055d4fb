// Adapters and models to the Hugging Face hub.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/storage/hub_cache.h"

namespace lora_train::hub {

struct PushFile {
  std::string path;                      ///< in the repository
  std::filesystem::path file;            ///< on this machine
  std::optional<std::string> text = {};  ///< in place of the file's contents
  std::uint64_t num_bytes = 0;
};

/// What push() would upload of a folder.
struct PushPlan {
  std::filesystem::path folder;  ///< the given one, or adapter/ or model/ of a run
  std::vector<PushFile> files;
  std::vector<std::string> skipped;
  bool has_card = false;
};

/// The files of a PEFT adapter or a Hugging Face model: those of the folder itself, without hidden ones and those of a checkpoint
/// (optimizer state), and additional_chat_templates/. In README.md, the folder's path becomes `name` (org/name). Throws FormatError for
/// any other folder, IoError.
PushPlan plan_push(const std::filesystem::path& folder, const std::string& name);

struct PushRequest {
  PushPlan plan;
  storage::HubId id;            ///< its revision is not used
  std::string branch = "main";  ///< created from main if it is not there
  std::string message;
  bool is_public = false;
  /// Bytes that were hashed and uploaded, of all; from any thread, one call at a time.
  std::function<void(std::uint64_t num_bytes, std::uint64_t total_bytes)> progress = {};
};

struct PushResult {
  std::string url;             ///< of the repository
  std::string commit;          ///< now the newest of the branch
  std::int64_t num_files = 0;  ///< new or changed; 0: the repository had all of them
  std::uint64_t num_uploaded_bytes = 0;
  bool is_new = false;  ///< the repository was created
};

/// Creates the repository if it is not there (private unless is_public), uploads what it lacks, and ends with one commit: until then nobody
/// sees anything, and a failure leaves the branch as it was. Throws IoError.
PushResult push(const PushRequest& request);

}  // namespace lora_train::hub
