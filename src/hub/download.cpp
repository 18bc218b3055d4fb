#include "lora_train/hub/download.h"

#include <algorithm>
#include <unordered_set>

#include "cache_folder.h"
#include "fetch.h"
#include "hub_api.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "needed_files.h"
#include "partial_file.h"

namespace lora_train::hub {
namespace {

std::uint64_t size_of(const std::vector<RepositoryFile>& files) {
  std::uint64_t num_bytes = 0;
  for (const RepositoryFile& file : files) num_bytes += file.num_bytes;
  return num_bytes;
}

NeededFiles choose_files(const DownloadRequest& request, std::vector<RepositoryFile> files, const std::string& name) {
  if (request.all_files || request.kind == storage::HubKind::kDataset) return {std::move(files), {}};
  return needed_files(files, name);
}

/// Those that the snapshot lacks. Files whose contents are in the cache already get their name at once.
std::vector<RepositoryFile> missing_files(const CacheFolder& cache, const std::vector<RepositoryFile>& files,
                                          const std::string& commit) {
  std::vector<RepositoryFile> missing;
  for (const RepositoryFile& file : files) {
    if (cache.has_file(file, commit)) continue;
    if (cache.has_blob(file))
      cache.link(file, commit);
    else
      missing.push_back(file);
  }
  return missing;
}

/// Before the first byte: the rest of a file that has begun has its space already.
void require_space(const CacheFolder& cache, const std::vector<RepositoryFile>& missing) {
  std::uint64_t needed = 0;
  std::unordered_set<std::string> counted;
  for (const RepositoryFile& file : missing) {
    const bool has_space = std::filesystem::exists(cache.partial(file));
    if (!has_space && counted.insert(file.etag).second) needed += file.num_bytes;
  }
  const std::uint64_t free = cache.free_bytes();
  if (needed <= free) return;
  throw IoError(cache.path().string(), "the download needs " + format_bytes(static_cast<double>(needed)) + ", but " +
                                           format_bytes(static_cast<double>(free)) +
                                           " are free there. Free some, or set HF_HOME to a folder on a larger disk.");
}

DownloadResult find_offline(const DownloadRequest& request) {
  DownloadResult result;
  result.snapshot = storage::find_in_hub_cache(request.id, request.kind);
  if (result.snapshot.empty())
    throw IoError("HF_HUB_OFFLINE", "forbids the network, and " + request.id.organisation + "/" + request.id.name +
                                        " is not in the cache. Unset it to download.");
  log_info("HF_HUB_OFFLINE forbids the network; this is what the cache has");
  result.commit = result.snapshot.filename().string();
  result.is_adapter = std::filesystem::exists(result.snapshot / "adapter_config.json");
  return result;
}

}  // namespace

DownloadResult download(const DownloadRequest& request) {
  if (is_offline()) return find_offline(request);
  const Repository repository{request.id, request.kind};
  const CacheFolder cache(repository);
  Hub hub;
  DownloadResult result;
  result.commit = hub.find_commit(repository);
  const NeededFiles files = choose_files(request, hub.list_files(repository, result.commit), repository.name());
  if (files.needed.empty()) throw IoError(repository.name(), "has no files at " + repository.revision() + ".");
  for (const RepositoryFile& file : files.skipped) result.skipped.push_back({file.path, file.num_bytes});
  result.num_files = std::ssize(files.needed);
  result.num_bytes = size_of(files.needed);
  result.is_adapter =
      std::ranges::any_of(files.needed, [](const RepositoryFile& file) { return file.path == "adapter_config.json"; });

  cache.create();
  FetchPlan plan{.repository = repository,
                 .cache = cache,
                 .commit = result.commit,
                 .files = missing_files(cache, files.needed, result.commit),
                 .progress = request.progress};
  require_space(cache, plan.files);
  try {
    result.num_downloaded_bytes = fetch(hub, plan);
  } catch (const TransferError& error) {
    if (error.failure() != Failure::kNoRanges) throw;
    log_info("the server does not send parts of files; every file comes in one piece and cannot be resumed");
    plan.files = missing_files(cache, files.needed, result.commit);
    plan.use_ranges = false;
    result.num_downloaded_bytes = fetch(hub, plan);
  }
  cache.write_reference(repository.revision(), result.commit);
  result.snapshot = cache.snapshot(result.commit);
  return result;
}

}  // namespace lora_train::hub
