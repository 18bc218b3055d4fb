#include "lora_train/storage/atomic_folder.h"

#include <unistd.h>

#include <deque>

#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";

fs::path temporary_name(const fs::path& path) {
  return path.parent_path() / (std::string(kTemporary) + path.filename().string() + "-" + std::to_string(::getpid()));
}

/// Swaps the names of two folders.
void exchange(const fs::path& temporary, const fs::path& target) {
  if (exchange_paths(temporary, target)) return;
  // The file system cannot exchange them: for a moment `target` does not exist.
  const fs::path old = temporary.string() + "-old";
  rename_path(target, old);
  try {
    rename_path(temporary, target);
  } catch (...) {
    rename_path(old, target);
    throw;
  }
  rename_path(old, temporary);
}

/// Removes "-<digits>" from the end of a name; false if there is none.
bool drop_number(std::string& name) {
  const std::size_t dash = name.find_last_not_of("0123456789");
  if (dash == std::string::npos || dash == 0 || name[dash] != '-' || dash + 1 == name.size()) return false;
  name.resize(dash);
  return true;
}

/// Folders: .tmp-<name>-<process>, also with -old. Files: .tmp-<name>-<process>-<number>.
bool is_temporary_of(std::string_view temporary, const std::function<bool(const std::string&)>& is_ours) {
  if (!temporary.starts_with(kTemporary)) return false;
  std::string name(temporary.substr(kTemporary.size()));
  if (name.ends_with("-old")) name.resize(name.size() - 4);
  while (drop_number(name)) {
    if (is_ours(name)) return true;
  }
  return false;
}

/// The next run deletes what a failed deletion leaves (delete_temporaries).
void remove_quietly(const fs::path& path) noexcept {
  try {
    remove_tree(path);
  } catch (const std::exception& error) {
    log_warning(std::string(error.what()) + "; delete it by hand");
  }
}

}  // namespace

AtomicFolder::AtomicFolder(fs::path target) : target_(std::move(target)), temporary_(temporary_name(target_)) {
  remove_tree(temporary_);
  make_folder(temporary_);
}

AtomicFolder::~AtomicFolder() { remove_quietly(temporary_); }

void AtomicFolder::write(const std::vector<FileToWrite>& files) {
  std::deque<FileWriter> writers;
  std::vector<SafetensorsLayout> layouts;
  for (const auto& file : files) {
    layouts.emplace_back(file.tensors);
    writers.emplace_back(temporary_ / file.name, file.tensors.empty() ? file.text.size() : layouts.back().num_bytes());
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].tensors.empty()) {
      writers[i].write(files[i].text);
    } else {
      layouts[i].write(writers[i]);
    }
    files_[files[i].name] = writers[i].finish();
  }
}

void AtomicFolder::commit() {
  sync_folder(temporary_);
  has_replaced_ = path_kind(target_) != PathKind::kNone;
  if (has_replaced_) {
    exchange(temporary_, target_);
  } else {
    rename_path(temporary_, target_);
  }
  sync_folder(target_.parent_path());
}

void AtomicFolder::take_back() {
  if (has_replaced_) {
    exchange(temporary_, target_);
  } else {
    rename_path(target_, temporary_);
  }
  sync_folder(target_.parent_path());
}

void write_folder(const fs::path& target, const std::vector<FileToWrite>& files) {
  AtomicFolder folder(target);
  folder.write(files);
  folder.commit();
}

void delete_folder(const fs::path& folder) {
  const fs::path temporary = temporary_name(folder);
  remove_tree(temporary);
  rename_path(folder, temporary);
  remove_tree(temporary);
}

void delete_temporaries(const fs::path& folder, const std::function<bool(const std::string&)>& is_ours) {
  for (const auto& name : list_folder(folder)) {
    if (is_temporary_of(name, is_ours)) remove_tree(folder / name);
  }
}

}  // namespace lora_train::storage
