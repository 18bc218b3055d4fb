// Folders and names in them, through FileOps. Everything throws IoError when the system refuses.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/base/file_ops.h"

namespace lora_train {

/// Of the path itself; a link is kOther.
PathKind path_kind(const std::filesystem::path& path);

/// Names in a folder, sorted.
std::vector<std::string> list_folder(const std::filesystem::path& folder);

void make_folder(const std::filesystem::path& folder);

/// With all that is missing above it, and its name synced: what is saved in it later must not go with its folder. One that is
/// there already, also as a link, is left as it is. A folder above that may not be synced is warned of.
void make_folders(const std::filesystem::path& folder);

/// Takes the place of a file at `to`, in one step.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Two paths of one file system change names, in one step. False where the file system cannot.
bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other);

/// Deletes a file, a link or a folder with all that is in it; what is not there is deleted already.
void remove_tree(const std::filesystem::path& path);

/// fsync of a folder, so that names created in it survive a power loss.
void sync_folder(const std::filesystem::path& folder);

/// Why a name that a file or a person gave may not be joined to a folder ("holds a path separator", ...), or null.
const char* why_not_file_name(std::string_view name);

}  // namespace lora_train
