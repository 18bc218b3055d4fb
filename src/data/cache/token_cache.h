// Stores the token tables of datasets between runs, and copies them to a local disk (stage_dir).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lora_train/data/cache/document_store.h"
#include "table_lock.h"

namespace lora_train::data {

/// A folder of files <key>.tokens. The key covers everything that determines a table's content, so a file is never
/// stale; files appear complete, so two processes may build the same one at once. Deletes damaged files, unfinished
/// files of ended processes, and, beyond token_cache_limit(), the least recently used files (token_cache_files.h).
class TokenCache {
 public:
  /// `folder` empty: stores nothing, tables stay in memory. `stage_dir` (from the profile) empty: tables are read in
  /// place. Makes the user's own folder (user_token_cache()) private; if that is impossible, warns and does not use it.
  /// Throws what find_stage_folder throws.
  TokenCache(std::filesystem::path folder, std::string stage_dir);

  /// The table for `key`, or null. A damaged file counts as missing, with a warning.
  std::shared_ptr<const TokenTable> find(const std::string& key) const;
  /// While the result lives, other processes wait here for the same key: one process builds the table for all ranks of
  /// a host. `what` as in BuildLock.
  std::unique_ptr<BuildLock> wait_to_build(const std::string& key, const std::string& what) const;
  /// Writes a table for `key`; if the folder is not writable, warns and writes to memory.
  TokenTableWriter writer(const std::string& key) const;
  /// The table from the stage folder, after copying it there if needed. If that fails (no room), warns and returns
  /// `table`. Does not read a file that another user put there.
  std::shared_ptr<const TokenTable> staged(std::shared_ptr<const TokenTable> table, const std::string& key) const;

  /// Deletes tables beyond the limit, in both folders. Tables in use stay.
  void shrink() const;

 private:
  std::filesystem::path file_of(const std::filesystem::path& folder, const std::string& key) const;

  std::filesystem::path folder_;
  std::string stage_dir_;
  std::filesystem::path stage_folder_;
  std::uint64_t limit_;
};

/// The folder that stage_dir names; `auto` means lora-train-stage-<user id> in the temporary folder. Throws ConfigError
/// if it exists and is not a folder, belongs to another user (except root) or is that user's link, or if others may
/// replace its files.
std::filesystem::path find_stage_folder(const std::string& stage_dir);

}  // namespace lora_train::data
