#include "lora_train/run_folder/replaced_run.h"

#include "lora_train/base/error.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/run_folder/own_entries.h"
#include "lora_train/storage/atomic_folder.h"
#include "lora_train/storage/run_marker.h"
#include "names.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;

/// Deletes what a run wrote under `name`; files of others in it move to the folder of that name in `home`.
void discard(const fs::path& folder, const std::string& name, const fs::path& home) {
  if (path_kind(folder / name) == PathKind::kFolder) {
    storage::discard_folder(folder / name, home / name, own_entries);
  } else {
    remove_tree(folder / name);
  }
}

void discard_replaced(const fs::path& folder) {
  const fs::path replaced = folder / kReplacedFolder;
  if (path_kind(replaced) != PathKind::kFolder) return;
  for (const auto& name : list_folder(replaced)) {
    if (is_run_file(name)) discard(replaced, name, folder);
  }
  if (list_folder(replaced).empty()) remove_folder(replaced);
}

void move_all(const fs::path& folder, const std::vector<std::string>& names, const fs::path& to) {
  if (path_kind(to) == PathKind::kNone) make_folder(to);
  for (const auto& name : names) {
    discard(to, name, folder);
    rename_path(folder / name, to / name);
  }
  sync_folder(to);
}

}  // namespace

void set_run_aside(const fs::path& folder) {
  const std::vector<std::string> names = files_of_run(folder);
  if (names.size() <= 1) return;  // nothing, or only the marker of this run
  const fs::path replaced = folder / kReplacedFolder;
  const bool keeps_one = storage::read_marker(replaced).has_value();  // it is moved last
  if (keeps_one && list(folder).empty()) {
    for (const auto& name : names) discard(folder, name, folder);
  } else {
    if (keeps_one) discard_replaced(folder);
    move_all(folder, names, replaced);
    log_info(folder.string() + ": the run there stays in " + kReplacedFolder +
             " until this one has saved its first checkpoint or result");
  }
  storage::write_new_marker(folder, /*began_with_overwrite=*/true);
}

void delete_replaced_run(const fs::path& folder) {
  try {
    discard_replaced(folder);
  } catch (const IoError& error) {
    log_warning(std::string(error.what()) + "; the run that was replaced is still there");
  }
}

}  // namespace lora_train::run_folder
