// The folder of a model on this machine (the network is never used), and checks of files of a model or adapter folder
// before they are parsed: an interrupted download or a stranger may have left
// something else in their place.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lora_train::storage {

/// Throws FormatError for a folder, a pipe, a socket or a device. Call it before opening a file: opening a pipe could
/// block, and reading a device might never end. Follows links; ignores a missing file, which fails when it is opened.
void require_regular_file(const std::filesystem::path& path);

/// Throws FormatError for the content of a Git LFS pointer; the message has the command that downloads the file.
void refuse_lfs_pointer(std::string_view content, const std::string& path);

/// The content of a file that is neither of these. Throws FormatError, IoError.
std::string read_model_file(const std::filesystem::path& path);

/// Reads a text file of up to 100 MB. Throws FormatError as above, and for an empty or larger file; IoError.
std::string read_model_text(const std::filesystem::path& path);

struct ResolvedModel {
  std::filesystem::path folder;
  std::string hub_name;  ///< "org/name" if the folder is in the Hugging Face cache, else empty
};

/// `path_or_id` is a folder, or "org/name" or "org/name@revision" in the local cache (hub_cache.h).
/// Throws FormatError for a missing folder, for a folder that holds a pipe or a device, and for a model that is not in
/// the cache; that message has the command to download it.
ResolvedModel resolve_model(const std::string& path_or_id);

}  // namespace lora_train::storage
