// Downloads models, adapters and datasets from the Hugging Face hub into the local cache, in the layout of
// huggingface_hub (storage/hub_cache.h finds them there).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lora_train/storage/hub_cache.h"

namespace lora_train::hub {

struct DownloadProgress {
  std::uint64_t num_bytes = 0,
                total_bytes = 0;  ///< of the files that the cache lacks, including bytes from an earlier download
  bool is_verifying = false;      ///< all bytes are there; their hashes are being checked
};

struct DownloadRequest {
  storage::HubId id;
  bool all_files = false;                                      ///< of a model; otherwise only needed_files()
  std::function<void(const DownloadProgress&)> progress = {};  ///< from any thread, one call at a time
};

struct SkippedFile {
  std::string path;
  std::uint64_t num_bytes = 0;
};

struct DownloadResult {
  std::filesystem::path snapshot;
  std::string commit;
  std::int64_t num_files = 0;
  std::uint64_t num_bytes = 0;             ///< of these files
  std::uint64_t num_downloaded_bytes = 0;  ///< 0: all were there already
  std::vector<SkippedFile> skipped;
  bool is_adapter = false;
};

/// Downloads what the cache lacks, on eight connections, each with 64 MiB of a file at a time. Checks every file (size;
/// SHA-256, or git's SHA-1 for small ones) before it gets its name, and writes the reference (refs/main) last, so that
/// the cache is whole whenever this ends. Keeps partial files for the next call. Other processes that download the same
/// file wait (.locks, as huggingface_hub). Reads HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_TOKEN_PATH, HF_ENDPOINT,
/// HF_HUB_OFFLINE.
/// Throws IoError for failures of network, server and disk, FormatError for a model without safetensors, StopError.
DownloadResult download(const DownloadRequest& request);

}  // namespace lora_train::hub
