// Files that a download or a stranger has left in a model folder.
#pragma once

#include <filesystem>
#include <string>

namespace lora_train::tokenizer {

/// The whole file. Throws FormatError for a folder, a pipe, a socket, a device (reading might never end) and a Git LFS
/// pointer, IoError when it cannot be read.
std::string read_folder_file(const std::filesystem::path& path);

}  // namespace lora_train::tokenizer
