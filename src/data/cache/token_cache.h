// Stores the token tables of datasets between runs, and copies them to a local disk (stage_dir).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lora_train/data/cache/document_store.h"
#include "table_lock.h"

namespace lora_train::data {

/// A folder of files <key>.tokens. The key names everything that decides a table's content, so a file is never stale;
/// files appear whole, so two processes may build the same one at once. Deleted are damaged files, those of processes that ended
/// before they were complete, and, beyond token_cache_limit(), those that were not used for longest (token_cache_files.h).
class TokenCache {
 public:
  /// `folder` empty: nothing is kept, tables live in memory. `stage_dir` (of the profile) empty: tables are read where they are.
  /// The user's own folder (user_token_cache()) is made private, and not used, with a warning, where that is impossible.
  /// Throws what find_stage_folder throws.
  TokenCache(std::filesystem::path folder, std::string stage_dir);

  /// The table for `key`, or null. A damaged file counts as missing, with a warning.
  std::shared_ptr<const TokenTable> find(const std::string& key) const;
  /// While the result lives, other processes wait here for the same key: one builds it, for all ranks of a host. `what` as in
  /// BuildLock.
  std::unique_ptr<BuildLock> wait_to_build(const std::string& key, const std::string& what) const;
  /// Writes a table for `key`; where the folder cannot be written to it warns and writes to memory.
  TokenTableWriter writer(const std::string& key) const;
  /// The table from the stage folder, copied there first unless it is there already. Warns and returns `table` where
  /// that is not possible (no room). A file that another user put there is not read.
  std::shared_ptr<const TokenTable> staged(std::shared_ptr<const TokenTable> table, const std::string& key) const;

  /// Deletes what is beyond the limit, in both folders. Tables that somebody holds stay.
  void shrink() const;

 private:
  std::filesystem::path file_of(const std::filesystem::path& folder, const std::string& key) const;

  std::filesystem::path folder_;
  std::string stage_dir_;
  std::filesystem::path stage_folder_;
  std::uint64_t limit_;
};

/// The folder that stage_dir names, with `auto` as lora-train-stage-<user id> in the temporary folder. Throws ConfigError if it is
/// there and not a folder, or a folder or link of another user (root's are good), or one whose files others may replace.
std::filesystem::path find_stage_folder(const std::string& stage_dir);

}  // namespace lora_train::data
