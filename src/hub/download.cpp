#include "lora_train/hub/download.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "cache_folder.h"
#include "hub_api.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::hub {
namespace {

struct FetchPlan {
  const storage::HubId& repository;
  const CacheFolder& cache;
  std::string commit;
  std::vector<RepositoryFile> files;  ///< those to fetch
  bool use_ranges = true;  ///< false: each file in one piece from its start, for a server that knows no ranges
  std::function<void(const DownloadProgress&)> progress = {};
};

constexpr std::size_t kNumConnections = 8;

constexpr std::size_t kHashBuffer = 1u << 20;

/// Another connection has failed, and its error counts.
struct Abandoned {};

/// A file while it is fetched. Its lock lives as long as it.
struct OpenFile {
  OpenFile(const CacheFolder& cache, const RepositoryFile& of) : file(of), lock(cache, of) {}

  RepositoryFile file;
  BlobLock lock;
  std::unique_ptr<PartialFile> partial;
  bool is_resumed = false;  ///< some bytes are from an earlier download
  std::size_t next_segment = 0;
  std::atomic<std::size_t> num_left{0};  ///< segments that are not complete
};

struct Job {
  std::shared_ptr<OpenFile> open;
  std::size_t segment = 0;
};

class Fetch {
 public:
  Fetch(Hub& hub, const FetchPlan& plan) : hub_(hub), plan_(plan) {
    for (const RepositoryFile& file : plan.files) progress_.total_bytes += file.num_bytes;
  }

  /// Gives every file its blob and its name in the snapshot. The first failure ends all connections and is thrown; what
  /// has arrived stays. Returns the number of bytes downloaded. Throws TransferError (kNoRanges) if use_ranges is set
  /// but the server cannot do ranges.
  std::uint64_t run() {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kNumConnections; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (error_ != nullptr) std::rethrow_exception(error_);
    return num_downloaded_;
  }

 private:
  void work() {
    try {
      while (const auto job = next_job()) {
        fetch(*job->open, job->segment);
        if (--job->open->num_left == 0) finish(*job->open);
      }
    } catch (const Abandoned&) {
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (error_ == nullptr) error_ = std::current_exception();
      has_failed_ = true;
    }
  }

  void poll() const {
    if (has_failed_) throw Abandoned();
    throw_if_stop_requested();
  }

  /// The next segment that lacks bytes. Opens files in turn; while it waits for the lock of one, so do the other
  /// threads.
  std::optional<Job> next_job() {
    const std::lock_guard lock(mutex_);
    for (;;) {
      poll();
      if (current_ != nullptr) {
        if (const auto segment = next_segment(*current_)) return Job{current_, *segment};
      }
      current_.reset();  // its lock is free when its last segment is done: the next file may have the same contents
      if (next_file_ == plan_.files.size()) return std::nullopt;
      current_ = open(plan_.files[next_file_++]);
    }
  }

  /// The segments to ask for; without ranges, the first stands for all.
  std::size_t num_asked(const OpenFile& open) const {
    return plan_.use_ranges ? open.partial->num_segments() : std::min<std::size_t>(open.partial->num_segments(), 1);
  }

  std::optional<std::size_t> next_segment(OpenFile& open) const {
    while (open.next_segment < num_asked(open)) {
      const std::size_t segment = open.next_segment++;
      if (open.partial->num_missing(segment) > 0) return segment;
    }
    return std::nullopt;
  }

  /// Null if nothing is left to fetch.
  std::shared_ptr<OpenFile> open(const RepositoryFile& file) {
    auto open = std::make_shared<OpenFile>(plan_.cache, file);
    if (plan_.cache.has_blob(file)) {  // another process was faster, or another file has the same contents
      plan_.cache.link(file, plan_.commit);
      count(file.num_bytes);
      return nullptr;
    }
    open->partial = std::make_unique<PartialFile>(plan_.cache.partial(file), file.num_bytes);
    PartialFile& partial = *open->partial;
    if (!plan_.use_ranges) partial.restart();
    for (std::size_t i = 0; i < num_asked(*open); ++i) open->num_left += partial.num_missing(i) > 0;
    open->is_resumed = partial.num_done() > 0;
    count(partial.num_done());
    if (open->num_left > 0) return open;
    finish(*open);
    return nullptr;
  }

  /// Fetches what the segment lacks; without ranges, the whole file from its start.
  void fetch(OpenFile& open, std::size_t segment) {
    PartialFile& partial = *open.partial;
    Request request = hub_.request(hub_.file_path(plan_.repository, plan_.commit, open.file.path));
    request.poll = [this] { poll(); };
    if (plan_.use_ranges) request.range = {partial.end(segment) - partial.num_missing(segment), partial.end(segment)};
    request.sink = [&](std::string_view bytes) {
      count(bytes.size());
      num_downloaded_ += bytes.size();
      while (!bytes.empty()) {
        const bool has_next = !plan_.use_ranges && segment + 1 < partial.num_segments();
        const auto piece = has_next ? bytes.substr(0, partial.num_missing(segment)) : bytes;
        partial.append(segment, piece);
        bytes.remove_prefix(piece.size());
        if (has_next && partial.num_missing(segment) == 0) ++segment;
      }
    };
    const Answer answer = hub_.send(request);
    if (!answer.is_ok()) hub_.refuse(answer, plan_.repository);
    if (partial.num_missing(segment) > 0) fail_short(open);
  }

  [[noreturn]] void fail_short(const OpenFile& open) const {
    throw IoError(fmt::format("{}/{}", plan_.repository.full_name(), open.file.path),
                  "the server sent fewer bytes than it promised. Run the command again; it resumes.");
  }

  /// Checks the contents and gives them their name. Bytes from an earlier download may be damaged; the file is then
  /// downloaded again from the start.
  void finish(OpenFile& open) {
    const std::string found = hash(*open.partial, open.file);
    if (found != open.file.etag) {
      if (!open.is_resumed) fail_hash(open, found);
      log_info(open.file.path + ": the bytes from an earlier download are damaged; downloading the file again");
      open.is_resumed = false;
      open.partial->restart();
      uncount(open.file.num_bytes);
      for (std::size_t i = 0; i < num_asked(open); ++i) fetch(open, i);
      return finish(open);
    }
    open.partial->publish(plan_.cache.blob(open.file));
    sync_folder(plan_.cache.blob(open.file).parent_path());
    plan_.cache.link(open.file, plan_.commit);
  }

  [[noreturn]] void fail_hash(OpenFile& open, const std::string& found) const {
    remove_tree(open.partial->path());
    const char* const name = open.file.digest == DigestKind::kSha256 ? "SHA-256 " : "SHA-1 ";
    throw IoError(fmt::format("{}/{}", plan_.repository.full_name(), open.file.path),
                  std::string("the download is not the hub's file: ") + name + found + " instead of " + open.file.etag +
                      ". A proxy or a mirror has changed it. Nothing was kept; run the command again.");
  }

  std::string hash(const PartialFile& partial, const RepositoryFile& file) {
    Digest digest(file.digest, file.num_bytes);
    FileReader reader(partial.path());
    std::string buffer(kHashBuffer, '\0');
    for (std::uint64_t left = file.num_bytes; left > 0;) {
      poll();
      const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size()));
      const std::size_t num_read = reader.read(buffer.data(), wanted);
      if (num_read == 0) throw IoError(partial.path().string(), "shrank while it was being read.");
      digest.update({buffer.data(), num_read});
      left -= num_read;
    }
    return digest.hex();
  }

  void count(std::uint64_t num_bytes) {
    const std::lock_guard lock(progress_mutex_);
    progress_.num_bytes += num_bytes;
    progress_.is_verifying = progress_.num_bytes == progress_.total_bytes;
    if (plan_.progress) plan_.progress(progress_);
  }

  void uncount(std::uint64_t num_bytes) {
    const std::lock_guard lock(progress_mutex_);
    progress_.num_bytes -= num_bytes;
  }

  Hub& hub_;
  const FetchPlan& plan_;
  std::mutex mutex_;  ///< of next_job
  std::shared_ptr<OpenFile> current_;
  std::size_t next_file_ = 0;
  std::mutex progress_mutex_, error_mutex_;
  DownloadProgress progress_;
  std::atomic<std::uint64_t> num_downloaded_{0};
  std::atomic<bool> has_failed_{false};
  std::exception_ptr error_;
};

std::uint64_t size_of(const std::vector<RepositoryFile>& files) {
  std::uint64_t num_bytes = 0;
  for (const RepositoryFile& file : files) num_bytes += file.num_bytes;
  return num_bytes;
}

/// The files that the snapshot lacks. Files whose contents are already in the cache get their name at once.
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

/// Checks the space before the first byte; a file that has begun already has its space.
void require_space(const CacheFolder& cache, const std::vector<RepositoryFile>& missing) {
  std::uint64_t needed = 0;
  std::unordered_set<std::string> counted;
  for (const RepositoryFile& file : missing) {
    const bool has_space = std::filesystem::exists(cache.partial(file));
    if (!has_space && counted.insert(file.etag).second) needed += file.num_bytes;
  }
  const std::uint64_t free = cache.free_bytes();
  if (needed <= free) return;
  throw IoError(cache.path().string(),
                "the download needs {}, but {} are free there. Free some space, or set HF_HOME to a folder on a larger "
                "disk.",
                format_bytes(needed), format_bytes(free));
}

DownloadResult find_offline(const DownloadRequest& request) {
  DownloadResult result;
  result.snapshot = storage::find_in_hub_cache(request.id);
  if (result.snapshot.empty())
    throw IoError("HF_HUB_OFFLINE", "forbids the network, and {} is not in the cache. Unset it to download.",
                  request.id.full_name());
  log_info("HF_HUB_OFFLINE forbids the network; using what the cache has");
  result.commit = result.snapshot.filename().string();
  result.is_adapter = storage::holds_adapter(result.snapshot);
  return result;
}

}  // namespace

DownloadResult download(const DownloadRequest& request) {
  if (is_offline()) return find_offline(request);
  const storage::HubId& repository = request.id;
  const CacheFolder cache(repository);
  Hub hub;
  DownloadResult result;
  result.commit = hub.find_commit(repository);
  NeededFiles files{hub.list_files(repository, result.commit), {}};
  if (!request.all_files && repository.kind == storage::HubKind::kModel)
    files = needed_files(files.needed, repository.full_name());
  if (files.needed.empty()) throw IoError(repository.full_name(), "has no files at {}.", repository.revision);
  for (const RepositoryFile& file : files.skipped) result.skipped.push_back({file.path, file.num_bytes});
  result.num_files = std::ssize(files.needed);
  result.num_bytes = size_of(files.needed);
  result.is_adapter = std::ranges::any_of(
      files.needed, [](const RepositoryFile& file) { return file.path == storage::kAdapterConfigFile; });

  cache.create();
  FetchPlan plan{.repository = repository,
                 .cache = cache,
                 .commit = result.commit,
                 .files = missing_files(cache, files.needed, result.commit),
                 .progress = request.progress};
  require_space(cache, plan.files);
  try {
    result.num_downloaded_bytes = Fetch(hub, plan).run();
  } catch (const TransferError& error) {
    if (error.failure() != Failure::kNoRanges) throw;
    log_info("the server cannot send parts of files: each file comes in one piece and cannot be resumed");
    plan.files = missing_files(cache, files.needed, result.commit);
    plan.use_ranges = false;
    result.num_downloaded_bytes = Fetch(hub, plan).run();
  }
  cache.write_reference(repository.revision, result.commit);
  result.snapshot = cache.snapshot(result.commit);
  return result;
}

}  // namespace lora_train::hub
