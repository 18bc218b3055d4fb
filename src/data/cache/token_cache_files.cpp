#include "lora_train/data/cache/token_cache_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/data/cache/document_store.h"
#include "table_lock.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLimitVariable = "LORA_TRAIN_CACHE_MAXSIZE";
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kDefaultLimit = 64 * kGiB;

/// Removes leading characters that are in `set`; false if there are fewer than `least`.
bool drop_front(std::string_view& text, const char* set, std::size_t least) {
  const std::size_t end = std::min(text.find_first_not_of(set), text.size());
  text.remove_prefix(end);
  return end >= least;
}

bool is_table_name(std::string_view name) {
  constexpr std::string_view kEnd = ".tokens";
  constexpr std::size_t kDigits = 32;
  if (name.size() != kDigits + kEnd.size() || !name.ends_with(kEnd)) return false;
  return drop_front(name, "0123456789abcdef", kDigits);
}

/// True for names that AtomicFileWriter gives.
bool is_temporary_name(std::string_view name) {
  constexpr std::string_view kStart = ".tmp-";
  const std::size_t dash = name.find('-', kStart.size());
  if (!name.starts_with(kStart) || dash == std::string_view::npos) return false;
  if (!is_table_name(name.substr(kStart.size(), dash - kStart.size()))) return false;
  for (std::string_view rest = name.substr(dash); !rest.empty();) {
    if (rest.front() != '-') return false;
    rest.remove_prefix(1);
    if (!drop_front(rest, "0123456789", 1)) return false;
  }
  return true;
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

[[noreturn]] void refuse_limit(const std::string& text) {
  throw ConfigError(kLimitVariable, "\"{}\" is not a size; expected for example 100G, 500M or 0 (no limit)", text);
}

}  // namespace

fs::path user_token_cache() {
  const fs::path folder = user_folder("XDG_CACHE_HOME", ".cache");
  return folder.empty() ? fs::path() : folder / "tokens";
}

std::uint64_t token_cache_limit() {
  const char* const value = std::getenv(kLimitVariable);
  if (value == nullptr || *value == 0) return kDefaultLimit;
  const std::string text = value;
  char* end = nullptr;
  const double number = std::strtod(value, &end);
  std::string_view unit = end;
  double factor = kGiB;
  if (const auto at = std::string_view("KMGT").find(unit.substr(0, 1)); !unit.empty()) {
    if (at == std::string_view::npos) refuse_limit(text);
    factor = std::exp2(10.0 * static_cast<double>(at + 1));
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") refuse_limit(text);
  }
  if (end == value || !(number >= 0) || number * factor >= 1e19) refuse_limit(text);
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

}  // namespace lora_train::data
