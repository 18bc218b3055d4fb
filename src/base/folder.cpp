#include "lora_train/base/folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>

#include "file_call.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"

namespace lora_train {

std::filesystem::path user_folder(const char* variable, const std::filesystem::path& folder) {
  const char* const named = std::getenv(variable);
  const char* const home = std::getenv("HOME");
  if (named != nullptr && std::filesystem::path(named).is_absolute())
    return std::filesystem::path(named) / "lora-train";
  return home == nullptr || *home == 0 ? std::filesystem::path() : std::filesystem::path(home) / folder / "lora-train";
}

PathKind path_kind(const std::filesystem::path& path) {
  PathKind kind = PathKind::kNone;
  checked(path, "cannot inspect", [&] { return file_ops().kind(path.string(), kind); });
  return kind;
}

std::vector<std::string> list_folder(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  checked(folder, "cannot list the folder", [&] {
    names.clear();
    return file_ops().list(folder.string(), names);
  });
  std::sort(names.begin(), names.end());
  return names;
}

void make_folder(const std::filesystem::path& folder) {
  checked(folder, "cannot create the folder", [&] { return file_ops().make_folder(folder.string()); });
}

void make_folders(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  const std::filesystem::path parent = folder.parent_path();
  if (!folder.has_filename()) return parent == folder ? void() : make_folders(parent);  // "runs/first/"
  if (path_kind(folder) == PathKind::kNone) {
    make_folders(parent);
    const int result = retry_interrupted([&] { return file_ops().make_folder(folder.string()); });
    if (result < 0 && errno != EEXIST) fail_with(folder, "cannot create the folder", errno);  // EEXIST: another run's
  }
  try {
    sync_folder(parent);
  } catch (const IoError& error) {
    log_warning(std::string(error.what()) + "; a power loss may lose the new folder");
  }
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  checked(to, "cannot rename into place", [&] { return file_ops().rename(from.string(), to.string()); });
}

bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other) {
  if (retry_interrupted([&] { return file_ops().exchange(one.string(), other.string()); }) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  fail_with(other, "cannot rename into place", errno);
}

void remove_tree(const std::filesystem::path& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::kNone) return;
  if (kind != PathKind::kFolder) {
    checked(path, "cannot delete", [&] { return file_ops().unlink(path.string()); });
    return;
  }
  for (const auto& name : list_folder(path)) remove_tree(path / name);
  remove_folder(path);
}

void remove_folder(const std::filesystem::path& folder) {
  checked(folder, "cannot delete the folder", [&] { return file_ops().remove_folder(folder.string()); });
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder.empty() ? "." : folder;
  const OpenFile file(checked(name, "cannot open the folder to sync it",
                              [&] { return file_ops().open(name.string(), O_RDONLY | O_DIRECTORY); }));
  // EINVAL: a file system whose folders cannot be synced.
  if (retry_interrupted([&] { return file_ops().sync(file.get()); }) != 0 && errno != EINVAL) {
    fail_with(name, "cannot sync the folder", errno);
  }
}

const char* why_not_file_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.find_first_of("/\\") != std::string_view::npos) return "holds a path separator";
  if (name.find("..") != std::string_view::npos) return "holds \"..\"";
  if (name.front() == '-') return "starts with a dash";
  if (name.front() == '.') return "starts with a dot";
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "holds a control character";
  }
  return nullptr;
}

}  // namespace lora_train
