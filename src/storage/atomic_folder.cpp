#include "lora_train/storage/atomic_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";

/// An unused name: existing files may be anybody's.
fs::path temporary_name(const fs::path& path) {
  const std::string start = fmt::format("{}{}-", kTemporary, path.filename().string());
  fs::path name;
  auto number = static_cast<std::int64_t>(::getpid());
  do {
    name = path.parent_path() / (fmt::format("{}{}", start, number++));
  } while (path_kind(name) != PathKind::kNone);
  return name;
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
bool drop_number(std::string_view& name) {
  const std::size_t dash = name.find_last_not_of("0123456789");
  if (dash == std::string_view::npos || dash == 0 || name[dash] != '-' || dash + 1 == name.size()) return false;
  name = name.substr(0, dash);
  return true;
}

std::vector<std::string> entries(const fs::path& folder, const OwnEntries& own) {
  return own ? own(folder) : list_folder(folder);
}

/// The next run deletes what a failed deletion leaves (delete_temporaries).
void quietly(const std::function<void()>& remove) noexcept {
  try {
    remove();
  } catch (const std::exception& error) {
    log_warning(std::string(error.what()) + "; delete it by hand");
  }
}

constexpr mode_t kOnlyThisUser = 0700;
constexpr mode_t kWritableForOthers = S_IWGRP | S_IWOTH;

/// Removes a trailing slash, which would follow a link.
fs::path bare(const fs::path& folder) {
  const fs::path path = folder.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void make_missing(const fs::path& folder) {
  if (folder.empty() || fs::exists(folder)) return;
  make_missing(folder.parent_path());
  if (::mkdir(folder.c_str(), kOnlyThisUser) != 0 && errno != EEXIST) fail_with(folder, "cannot create the folder");
}

std::string problem_of(const struct stat& info) {
  if (!S_ISDIR(info.st_mode)) return S_ISLNK(info.st_mode) ? "is a link" : "is not a folder";
  if (info.st_uid != ::geteuid()) {
    return fmt::format("belongs to user {}, not to you ({})", info.st_uid, ::geteuid());
  }
  if ((info.st_mode & kWritableForOthers) == 0) return {};
  return fmt::format("can be written to by others (mode {:04o}; chmod 700 closes it)", info.st_mode & 07777);
}

}  // namespace

AtomicFolder::AtomicFolder(fs::path target, OwnEntries own)
    : target_(std::move(target)), temporary_(temporary_name(target_)), own_(std::move(own)) {
  make_folder(temporary_);
}

AtomicFolder::~AtomicFolder() {
  quietly([&] { holds_replaced_ ? discard_folder(temporary_, target_, own_) : remove_tree(temporary_); });
}

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
  holds_replaced_ = has_replaced_;
  sync_folder(target_.parent_path());
}

void AtomicFolder::take_back() {
  if (has_replaced_) {
    exchange(temporary_, target_);
  } else {
    rename_path(target_, temporary_);
  }
  holds_replaced_ = false;
  sync_folder(target_.parent_path());
}

std::vector<std::string> own_files(const fs::path& folder, const std::function<bool(const std::string&)>& is_ours) {
  std::vector<std::string> names = list_folder(folder);
  std::erase_if(names,
                [&](const std::string& name) { return !is_ours(name) || path_kind(folder / name) != PathKind::kFile; });
  return names;
}

void discard_folder(const fs::path& folder, const fs::path& home, const OwnEntries& own) {
  if (path_kind(folder) != PathKind::kFolder) return;
  std::vector<std::string> ours = entries(folder, own), kept;
  const bool moves = home != folder && path_kind(home) == PathKind::kFolder;
  for (const auto& name : list_folder(folder)) {
    if (std::ranges::count(ours, name) > 0) continue;
    if (moves && path_kind(home / name) == PathKind::kNone) {
      rename_path(folder / name, home / name);
    } else {
      kept.push_back(name);
    }
  }
  std::sort(ours.rbegin(), ours.rend());  // a marker, whose name starts with a dot, goes last
  for (const auto& name : ours) remove_tree(folder / name);
  if (kept.empty()) return remove_folder(folder);
  if (!ours.empty()) log_info("{}: keeping files that lora-train did not write: {}", folder.string(), join(kept, ", "));
}

void delete_folder(const fs::path& folder, const OwnEntries& own) {
  const std::vector<std::string> all = list_folder(folder), ours = entries(folder, own);
  if (!std::ranges::all_of(all, [&](const auto& name) { return std::ranges::count(ours, name) > 0; })) {
    return discard_folder(folder, folder, own);
  }
  const fs::path temporary = temporary_name(folder);
  rename_path(folder, temporary);
  remove_tree(temporary);
}

std::optional<std::string> name_of_temporary_folder(std::string_view temporary) {
  if (!temporary.starts_with(kTemporary)) return std::nullopt;
  temporary.remove_prefix(kTemporary.size());
  if (temporary.ends_with("-old")) temporary.remove_suffix(4);
  return drop_number(temporary) ? std::optional<std::string>(temporary) : std::nullopt;
}

std::optional<std::string> name_of_temporary_file(std::string_view temporary) {
  if (!temporary.starts_with(kTemporary)) return std::nullopt;
  temporary.remove_prefix(kTemporary.size());
  return drop_number(temporary) && drop_number(temporary) ? std::optional<std::string>(temporary) : std::nullopt;
}

void delete_temporaries(const fs::path& folder, const std::function<bool(const std::string&)>& is_ours,
                        const OwnEntries& own) {
  for (const auto& temporary : list_folder(folder)) {
    const fs::path path = folder / temporary;
    const bool is_folder = path_kind(path) == PathKind::kFolder;
    const auto name = is_folder ? name_of_temporary_folder(temporary) : name_of_temporary_file(temporary);
    if (!name || !is_ours(*name)) continue;
    if (!is_folder) {
      remove_tree(path);
    } else if (list_folder(path).empty() || !entries(path, own).empty()) {
      discard_folder(path, folder / *name, own);
    }
  }
}

void make_private_folder(const fs::path& requested) {
  const fs::path folder = bare(requested);
  const auto fail = [&](const std::string& problem) {
    throw IoError(folder.string(), problem + "; a folder of your own was expected");
  };
  make_missing(folder.parent_path());
  if (::mkdir(folder.c_str(), kOnlyThisUser) != 0 && errno != EEXIST) fail_with(folder, "cannot create the folder");
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) fail_with(folder, "cannot inspect the folder");
  if (const std::string problem = problem_of(info); !problem.empty()) fail(problem);
  // Inspects the open folder again: the name may belong to another one by now.
  const Descriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!open.is_open() || ::fstat(open.get(), &info) != 0) fail_with(folder, "cannot open the folder");
  if (const std::string problem = problem_of(info); !problem.empty()) fail(problem);
  if ((info.st_mode & 07777) != kOnlyThisUser && ::fchmod(open.get(), kOnlyThisUser) != 0) {
    fail_with(folder, "cannot close the folder to others");
  }
}

}  // namespace lora_train::storage
