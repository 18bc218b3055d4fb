// Brings files of a repository into the cache, several at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cache_folder.h"
#include "hub_api.h"
#include "lora_train/hub/download.h"

namespace lora_train::hub {

struct FetchPlan {
  const Repository& repository;
  const CacheFolder& cache;
  std::string commit;
  std::vector<RepositoryFile> files;  ///< those to fetch
  bool use_ranges = true;  ///< false: each file in one piece from its start, for a server that knows no ranges
  std::function<void(const DownloadProgress&)> progress = {};
};

/// Every file gets its blob and its name in the snapshot. The first failure ends all connections and is thrown; what has arrived stays.
/// Returns the bytes that were downloaded. Throws TransferError (kNoRanges) where use_ranges asks for what the server cannot do.
std::uint64_t fetch(Hub& hub, const FetchPlan& plan);

}  // namespace lora_train::hub
