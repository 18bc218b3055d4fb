// Folders and names in them, through FileOps. Everything throws IoError if the system refuses.
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

/// lora-train's own folder below $<variable>, where that is an absolute path, else below <folder> in the home; empty without a
/// home: user_folder("XDG_CACHE_HOME", ".cache").
std::filesystem::path user_folder(const char* variable, const std::filesystem::path& folder);

void make_folder(const std::filesystem::path& folder);

/// Creates the folder and its parents, and syncs its name, so that a power loss cannot take what is saved in it. One that is
/// there already, also as a link, is left as it is. A folder above that may not be synced is warned of.
void make_folders(const std::filesystem::path& folder);

/// Replaces a file at `to` atomically.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two paths of one file system atomically. False if the file system cannot.
bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other);

/// Deletes a file, a link or a folder with everything in it; no effect if it does not exist.
void remove_tree(const std::filesystem::path& path);

/// Deletes an empty folder.
void remove_folder(const std::filesystem::path& folder);

/// fsync of a folder, so that names created in it survive a power loss.
void sync_folder(const std::filesystem::path& folder);

/// Why a name from a file or a user must not be joined to a folder ("holds a path separator", ...), or null if it may.
const char* why_not_file_name(std::string_view name);

}  // namespace lora_train
