#include "token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/token_cache_files.h"
#include "lora_train/storage/atomic_folder.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPollInterval(50);

/// False if another process deleted the file between open() and flock().
bool has_the_name(int fd, const fs::path& file) {
  struct stat held {};
  struct stat named {};
  return ::fstat(fd, &held) == 0 && S_ISREG(held.st_mode) && ::lstat(file.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

constexpr std::string_view kEnd = ".tokens";
constexpr const char* kLimitVariable = "LORA_TRAIN_CACHE_MAXSIZE";
constexpr std::uint64_t kDefaultLimit = std::uint64_t{64} << 30;

bool is_table_name(std::string_view name) {
  constexpr std::size_t kDigits = 32;
  return name.ends_with(kEnd) && name.size() == kDigits + kEnd.size() &&
         name.find_first_not_of("0123456789abcdef") == kDigits;
}

bool is_temporary_name(std::string_view name) {
  const auto table = storage::name_of_temporary_file(name);
  return table && is_table_name(*table);
}

std::vector<fs::path> files_of(const fs::path& folder, bool (*has_name)(std::string_view)) {
  std::vector<fs::path> files;
  if (folder.empty() || !fs::is_directory(folder)) return files;
  for (const std::string& name : list_folder(folder)) {
    const fs::path file = folder / name;
    if (has_name(name) && is_token_table(file)) files.push_back(file);
  }
  return files;
}

/// Deletes the file unless a process uses it.
bool delete_if_unused(const fs::path& file) {
  const TableLock lock(file, TableLock::Mode::kExclusive);
  std::error_code error;
  return lock.is_held() && fs::remove(file, error);
}

constexpr std::size_t kPiece = std::size_t{16} << 20;  // bytes copied between two checks for a stop

/// Sets the file's time, which records the table's last use.
void touch(const fs::path& file) {
  std::error_code error;  // fails in a folder that others write
  fs::last_write_time(file, fs::file_time_type::clock::now(), error);
}

std::shared_ptr<const TokenTable> open_if_good(const fs::path& file, const std::string& key) {
  if (!is_token_table(file)) return nullptr;  // refuse_foreign() reports it
  const auto lock = std::make_shared<TableLock>(file, TableLock::Mode::kShared);
  if (!lock->is_held() && !lock->is_unsupported()) return nullptr;
  try {
    auto table = std::make_shared<TokenTable>(MappedFile(file), key, lock);
    touch(file);
    return table;
  } catch (const StopError&) {
    throw;
  } catch (const Error& problem) {
    std::error_code error;
    log_warning(std::string(problem.what()) + "; rebuilding it");
    fs::remove(file, error);
    return nullptr;
  }
}

/// Throws IoError if a table would replace `file` and the cache did not write it.
void refuse_foreign(const fs::path& file) {
  const PathKind kind = path_kind(file);
  if (kind != PathKind::kNone && kind != PathKind::kFile) throw IoError(file.string(), "is a link or a folder");
  if (kind == PathKind::kFile && !is_token_table(file)) {
    throw IoError(file.string(), "is not a token table, so it was not replaced; delete it yourself");
  }
}

constexpr const char* kAuto = "auto";

/// Empty if the folder is missing or acceptable.
std::string problem_of(const fs::path& folder) {
  struct stat named {};
  struct stat info {};
  if (::lstat(folder.c_str(), &named) != 0) return {};
  if (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return "is not a folder";
  for (const uid_t owner : {named.st_uid, info.st_uid}) {
    if (owner != ::geteuid() && owner != 0) return fmt::format("belongs to user {}", owner);
  }
  if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0)
    return "is writable by everyone (chmod o-w fixes that)";
  return {};
}

/// False if the file is a link, not a regular file, or written by another user. Does not throw.
bool is_own_file(const fs::path& file) {
  struct stat info {};
  return ::lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

}  // namespace

TableLock::TableLock(const fs::path& file, Mode mode)
    // NFS grants an exclusive lock only on a file open for writing.
    : file_(::open(file.c_str(), (mode == Mode::kShared ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
  if (!file_.is_open()) return;
  while (::flock(file_.get(), mode == Mode::kShared ? LOCK_SH : LOCK_EX | LOCK_NB) != 0) {
    is_busy_ = errno == EWOULDBLOCK;
    is_unsupported_ = !is_busy_ && errno != EINTR;
    if (errno != EINTR) return;
    throw_if_stop_requested();
  }
  is_held_ = has_the_name(file_.get(), file);
}

std::pair<std::unique_ptr<AtomicFileWriter>, std::shared_ptr<TableLock>> open_locked(const fs::path& file,
                                                                                     std::size_t expected_bytes) {
  constexpr int kMaxAttempts = 10;
  for (int i = 0; i < kMaxAttempts; ++i) {
    auto writer = std::make_unique<AtomicFileWriter>(file, expected_bytes);
    auto lock = std::make_shared<TableLock>(writer->temporary(), TableLock::Mode::kShared);
    if (lock->is_held() || lock->is_unsupported()) return {std::move(writer), std::move(lock)};
    // Another process mistook the new file for one of a dead process: try again.
  }
  throw IoError(file.string(), "cannot lock its temporary file");
}

fs::path user_token_cache() {
  const fs::path folder = user_folder("XDG_CACHE_HOME", ".cache");
  return folder.empty() ? fs::path() : folder / "tokens";
}

std::uint64_t token_cache_limit() {
  const char* const value = std::getenv(kLimitVariable);
  if (value == nullptr || *value == 0) return kDefaultLimit;
  char* end = nullptr;
  const double number = std::strtod(value, &end);
  const std::string_view unit = *end == 0 ? "G" : end, ending = unit.substr(1);
  const std::size_t power = std::string_view("KMGT").find(unit.front()) + 1;  // 0: no such unit
  const double factor = std::exp2(10.0 * static_cast<double>(power));
  if (end == value || !(number >= 0) || number * factor >= 1e19 || power == 0 ||
      !(ending.empty() || ending == "B" || ending == "iB")) {
    throw ConfigError(kLimitVariable, "\"{}\" is not a size; expected for example 100G, 500M or 0 (no limit)", value);
  }
  return number == 0 ? kNoCacheLimit : static_cast<std::uint64_t>(number * factor);
}

std::vector<CachedTable> list_token_tables(const fs::path& folder) {
  std::vector<CachedTable> tables;
  for (const fs::path& file : files_of(folder, is_table_name)) {
    struct stat info {};
    if (::lstat(file.c_str(), &info) != 0) continue;  // deleted in between
    const bool is_busy = TableLock(file, TableLock::Mode::kExclusive).is_busy();
    tables.push_back({file, static_cast<std::uint64_t>(info.st_size), info.st_mtim.tv_sec, is_busy});
  }
  std::stable_sort(tables.begin(), tables.end(),
                   [](const CachedTable& a, const CachedTable& b) { return a.last_used < b.last_used; });
  return tables;
}

DeletedTables shrink_token_cache(const fs::path& folder, std::uint64_t limit, std::int64_t used_before) {
  DeletedTables deleted;
  if (limit == kNoCacheLimit) return deleted;
  const std::vector<CachedTable> tables = list_token_tables(folder);
  std::uint64_t total = 0;
  for (const CachedTable& table : tables) total += table.num_bytes;
  for (const CachedTable& table : tables) {
    if (total <= limit || table.last_used >= used_before) break;
    if (table.is_in_use || !delete_if_unused(table.file)) continue;
    total -= table.num_bytes;
    deleted.num_bytes += table.num_bytes;
    ++deleted.num_tables;
  }
  return deleted;
}

void sweep_token_cache(const fs::path& folder) {
  for (const fs::path& file : files_of(folder, is_temporary_name)) delete_if_unused(file);
}

TokenCache::TokenCache(fs::path folder, std::string stage_dir)
    : folder_(std::move(folder)),
      stage_dir_(std::move(stage_dir)),
      stage_folder_(find_stage_folder(stage_dir_)),
      limit_(token_cache_limit()) {
  if (folder_.empty() || folder_ != user_token_cache()) return;
  try {
    storage::make_private_folder(folder_);
  } catch (const IoError& error) {
    log_warning("not using the token cache, keeping examples in memory: {}. Fix this, or set dataset_prepared_path",
                error.what());
    folder_.clear();
  }
}

void TokenCache::shrink() const {
  for (const fs::path& folder : {folder_, stage_folder_}) {
    const DeletedTables deleted = shrink_token_cache(folder, limit_);
    if (deleted.num_tables == 0) continue;
    log_info("{}: deleted the {} oldest token tables ({}) to stay within {} (LORA_TRAIN_CACHE_MAXSIZE)",
             folder.string(), format_count(deleted.num_tables), format_bytes(static_cast<double>(deleted.num_bytes)),
             format_bytes(static_cast<double>(limit_)));
  }
}

fs::path TokenCache::file_of(const fs::path& folder, const std::string& key) const {
  return folder / (key + std::string(kEnd));
}

std::shared_ptr<const TokenTable> TokenCache::find(const std::string& key) const {
  return folder_.empty() ? nullptr : open_if_good(file_of(folder_, key), key);
}

Descriptor TokenCache::wait_to_build(const std::string& key, const std::string& what) const {
  if (folder_.empty()) return Descriptor();
  std::error_code error;  // writer() reports it
  fs::create_directories(folder_, error);
  Descriptor lock(::open((folder_ / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  struct stat info {};
  if (!lock.is_open() || ::fstat(lock.get(), &info) != 0 || !S_ISREG(info.st_mode)) return Descriptor();
  struct flock byte {};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = static_cast<off_t>(std::stoull(hash128_hex(key).substr(0, 15), nullptr, 16));
  byte.l_len = 1;
  LinePace pace(std::chrono::seconds(1));
  while (::fcntl(lock.get(), F_OFD_SETLK, &byte) != 0 && (errno == EAGAIN || errno == EACCES || errno == EINTR)) {
    throw_if_stop_requested();
    if (pace.is_due()) log_info(what + "another process is building the token table; waiting for it");
    std::this_thread::sleep_for(kPollInterval);
  }
  return lock;
}

TokenTableWriter TokenCache::writer(const std::string& key) const {
  if (folder_.empty()) return {fs::path(), key};
  try {
    fs::create_directories(folder_);
    sweep_token_cache(folder_);
    refuse_foreign(file_of(folder_, key));
    return {file_of(folder_, key), key};
  } catch (const std::exception& error) {
    log_warning(
        "cannot write the token cache, keeping examples in memory: {}. Set dataset_prepared_path to a writable folder",
        error.what());
    return {fs::path(), key};
  }
}

std::shared_ptr<const TokenTable> TokenCache::staged(std::shared_ptr<const TokenTable> table,
                                                     const std::string& key) const {
  if (stage_folder_.empty() || table->path().empty()) return table;
  const fs::path file = file_of(stage_folder_, key);
  try {
    if (stage_dir_ == kAuto || !fs::exists(stage_folder_)) storage::make_private_folder(stage_folder_);
    sweep_token_cache(stage_folder_);
    if (auto there = is_own_file(file) ? open_if_good(file, key) : nullptr) {
      log_info("stage_dir: {} exists already", file.string());
      return there;
    }
    refuse_foreign(file);
    const std::string_view source = table->bytes();
    const auto room = fs::space(stage_folder_).available;
    if (room < source.size()) {
      throw IoError(stage_folder_.string(), "has {} free, {} needed", format_bytes(static_cast<double>(room)),
                    format_bytes(static_cast<double>(source.size())));
    }
    const auto [copy, lock] = open_locked(file, source.size());
    for (std::size_t begin = 0; begin < source.size(); begin += kPiece) {
      throw_if_stop_requested();
      copy->write(source.substr(begin, kPiece));
    }
    copy->commit();
    log_info("stage_dir: copied {} to {}", format_bytes(static_cast<double>(source.size())), file.string());
    return std::make_shared<TokenTable>(MappedFile(file), key, lock);
  } catch (const StopError&) {
    throw;
  } catch (const std::exception& error) {
    log_warning("not using stage_dir; reading tokens from {}: {}", table->path().string(), error.what());
    return table;
  }
}

fs::path find_stage_folder(const std::string& stage_dir) {
  // No user chose the `auto` folder: problems with it, here or on creation, are warnings, and the run goes on without
  // it.
  if (stage_dir == kAuto) {
    std::error_code error;
    const fs::path temporary = fs::temp_directory_path(error);
    if (!error) return temporary / (fmt::format("lora-train-stage-{}", ::geteuid()));
    log_warning("stage_dir: found no folder for temporary files (TMPDIR, else /tmp); reading files in place");
    return {};
  }
  const fs::path folder = stage_dir;
  if (const std::string problem = stage_dir.empty() ? "" : problem_of(folder); !problem.empty()) {
    throw ConfigError("stage_dir", "{} {}: others could replace your data. Use a folder that you own, or auto",
                      folder.string(), problem);
  }
  return folder;
}

}  // namespace lora_train::data
