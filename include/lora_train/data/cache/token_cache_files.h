// The files of the token cache: <32 hexadecimal digits>.tokens, and .tmp-<that>-<process>-<number> while one is
// written. A process that writes or reads one holds a lock on it (flock), which ends with the process. Nothing else in
// the folder is deleted, not even a file with such a name, unless it begins like a table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <vector>

namespace lora_train::data {

/// $XDG_CACHE_HOME (an absolute path) or ~/.cache, then lora-train/tokens; empty without a home directory.
std::filesystem::path user_token_cache();

inline constexpr std::uint64_t kNoCacheLimit = std::numeric_limits<std::uint64_t>::max();

/// Limit in bytes from LORA_TRAIN_CACHE_MAXSIZE ("100G", "500M"; a plain number is in GiB, 0 means no limit); default
/// 64 GiB. Throws ConfigError.
std::uint64_t token_cache_limit();

struct CachedTable {
  std::filesystem::path file;
  std::uint64_t num_bytes = 0;
  std::int64_t last_used = 0;  ///< seconds since 1970
  bool is_in_use = false;      ///< by a live process
};

/// Lists the tables, least recently used first. Empty if the folder does not exist.
std::vector<CachedTable> list_token_tables(const std::filesystem::path& folder);

struct DeletedTables {
  std::uint64_t num_tables = 0, num_bytes = 0;
};

/// Deletes the least recently used tables until the rest fit in `limit` bytes. Keeps tables that are in use, cannot be
/// locked, or were used at `used_before` (seconds since 1970) or later.
DeletedTables shrink_token_cache(const std::filesystem::path& folder, std::uint64_t limit,
                                 std::int64_t used_before = std::numeric_limits<std::int64_t>::max());

/// Deletes temporary files of processes that ended before completing their table.
void sweep_token_cache(const std::filesystem::path& folder);

}  // namespace lora_train::data
