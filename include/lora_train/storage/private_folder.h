// Folders whose default place other users could guess or write to: caches and staged copies of a user's data.
#pragma once

#include <filesystem>

namespace lora_train::storage {

/// Creates `folder`, and those missing above it, for this user only (mode 0700). One that is there already must be a folder
/// and no link, belong to this user, and not be writable for anybody else; it is closed to readers. Folders above that exist
/// are left as they are, and may be links. Throws IoError (the folder, and what is wrong with it).
void make_private_folder(const std::filesystem::path& folder);

}  // namespace lora_train::storage
