#include "lora_train/run_folder/replaced_run.h"

#include "lora_train/base/error.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/checkpoint/checkpoint.h"
#include "lora_train/storage/run_marker.h"
#include "run_files.h"

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;

void move_all(const fs::path& folder, const std::vector<std::string>& names, const fs::path& to) {
  if (path_kind(to) == PathKind::kNone) make_folder(to);
  for (const auto& name : names) {
    remove_tree(to / name);
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
  if (keeps_one && checkpoint::list(folder).empty()) {
    for (const auto& name : names) remove_tree(folder / name);
  } else {
    if (keeps_one) remove_tree(replaced);
    move_all(folder, names, replaced);
    log_info(folder.string() + ": the run there stays in " + kReplacedFolder +
             " until this one has saved its first checkpoint or result");
  }
  storage::write_new_marker(folder, /*began_with_overwrite=*/true);
}

void delete_replaced_run(const fs::path& folder) {
  try {
    remove_tree(folder / kReplacedFolder);
  } catch (const IoError& error) {
    log_warning(std::string(error.what()) + "; the run that was replaced is still there");
  }
}

}  // namespace lora_train::run_folder
