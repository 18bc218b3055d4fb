#include "token_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/token_cache_files.h"
#include "lora_train/storage/atomic_folder.h"
#include "table_lock.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20;  // bytes copied between two checks for a stop

namespace fs = std::filesystem;

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
    auto table = TokenTable::open(file, key, lock);
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
  const auto is_foreign = [](const struct stat& info) { return info.st_uid != ::geteuid() && info.st_uid != 0; };
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return {};
  if (is_foreign(info)) return fmt::format("belongs to user {}", info.st_uid);
  if (::stat(folder.c_str(), &info) != 0) return "is a dangling link";
  if (!S_ISDIR(info.st_mode)) return "is not a folder";
  if (is_foreign(info)) return fmt::format("is a link to a folder owned by user {}", info.st_uid);
  if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0)
    return "is writable by everyone (chmod o-w fixes that)";
  return {};
}

/// Creates the folder, for this user only, if it is missing. For `auto`, it must be private. Throws IoError.
void make_stage_folder(const std::string& stage_dir, const fs::path& folder) {
  if (stage_dir == kAuto || !fs::exists(folder)) storage::make_private_folder(folder);
}

/// False if the file is a link, not a regular file, or written by another user. Does not throw.
bool is_own_file(const fs::path& file) {
  struct stat info {};
  return ::lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

}  // namespace

TokenCache::TokenCache(fs::path folder, std::string stage_dir)
    : folder_(std::move(folder)),
      stage_dir_(std::move(stage_dir)),
      stage_folder_(find_stage_folder(stage_dir_)),
      limit_(token_cache_limit()) {
  if (folder_.empty() || folder_ != user_token_cache()) return;
  try {
    storage::make_private_folder(folder_);
  } catch (const IoError& error) {
    log_warning("{}{}. Fix this, or set dataset_prepared_path",
                "not using the token cache, keeping examples in memory: ", error.what());
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
  return folder / (key + ".tokens");
}

std::shared_ptr<const TokenTable> TokenCache::find(const std::string& key) const {
  return folder_.empty() ? nullptr : open_if_good(file_of(folder_, key), key);
}

std::unique_ptr<BuildLock> TokenCache::wait_to_build(const std::string& key, const std::string& what) const {
  if (folder_.empty()) return nullptr;
  std::error_code error;  // writer() reports it
  fs::create_directories(folder_, error);
  return std::make_unique<BuildLock>(folder_, key, what);
}

TokenTableWriter TokenCache::writer(const std::string& key) const {
  if (folder_.empty()) return {fs::path(), key};
  try {
    fs::create_directories(folder_);
    sweep_token_cache(folder_);
    refuse_foreign(file_of(folder_, key));
    return {file_of(folder_, key), key};
  } catch (const std::exception& error) {
    log_warning("{}{}. Set dataset_prepared_path to a writable folder",
                "cannot write the token cache, keeping examples in memory: ", error.what());
    return {fs::path(), key};
  }
}

std::shared_ptr<const TokenTable> TokenCache::staged(std::shared_ptr<const TokenTable> table,
                                                     const std::string& key) const {
  if (stage_folder_.empty() || table->path().empty()) return table;
  const fs::path file = file_of(stage_folder_, key);
  try {
    make_stage_folder(stage_dir_, stage_folder_);
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
    return TokenTable::open(file, key, lock);
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
