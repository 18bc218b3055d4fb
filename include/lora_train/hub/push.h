// Uploads adapters and models to the Hugging Face hub.
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
  std::optional<std::string> text = {};  ///< instead of the file's contents
  std::uint64_t num_bytes = 0;
};

/// The files of a folder that push() uploads.
struct PushPlan {
  std::filesystem::path folder;  ///< the given one, or adapter/ or model/ of a run
  std::vector<PushFile> files;
  std::vector<std::string> skipped;
  bool has_card = false;
};

/// Lists the files of a PEFT adapter or a Hugging Face model: those in the folder itself, except hidden files and those
/// of a checkpoint (optimizer state), and additional_chat_templates/. In README.md, the folder's path becomes `name`
/// (org/name). Throws FormatError for any other folder, IoError.
PushPlan plan_push(const std::filesystem::path& folder, const std::string& name);

struct PushRequest {
  PushPlan plan;
  storage::HubId id;  ///< its revision is a branch, created from main if missing
  std::string message;
  bool is_public = false;
  /// Bytes hashed and uploaded so far, of all; from any thread, one call at a time.
  std::function<void(std::uint64_t num_bytes, std::uint64_t total_bytes)> progress = {};
};

struct PushResult {
  std::string url;             ///< of the repository
  std::string commit;          ///< now the newest of the branch
  std::int64_t num_files = 0;  ///< new or changed; 0: the repository had all of them
  std::uint64_t num_uploaded_bytes = 0;
  bool is_new = false;  ///< the repository was created
};

/// Creates the repository if it is missing (private unless is_public), uploads what it lacks, and ends with one commit:
/// until then nothing is visible, and a failure leaves the branch unchanged. Throws IoError.
PushResult push(const PushRequest& request);

}  // namespace lora_train::hub
