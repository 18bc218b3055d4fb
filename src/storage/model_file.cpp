#include "lora_train/storage/model_file.h"

#include <system_error>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"

namespace lora_train::storage {

void require_regular_file(const std::filesystem::path& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  throw FormatError(path.string(), std::filesystem::is_directory(status)
                                       ? "is a folder; a regular file was expected"
                                       : "is a pipe, a socket or a device; a regular file was expected");
}

void refuse_lfs_pointer(std::string_view content, const std::string& path) {
  if (!content.starts_with("version https://git-lfs.github")) return;
  throw FormatError(path, "this is a Git LFS pointer, not the file it stands for: run `git lfs pull` in its folder");
}

std::string read_model_file(const std::filesystem::path& path) {
  require_regular_file(path);
  std::string bytes = read_file(path);
  refuse_lfs_pointer(bytes, path.string());
  return bytes;
}

std::string read_model_text(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMaxBytes = 100'000'000;  // as the header of a safetensors file
  require_regular_file(path);
  std::error_code code;
  const std::uintmax_t size = std::filesystem::file_size(path, code);
  if (!code && size > kMaxBytes) {
    throw FormatError(path.string(), "has " + std::to_string(size) + " bytes; at most " + std::to_string(kMaxBytes) +
                                         " were expected: download or save the file again");
  }
  std::string text = read_file(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw FormatError(path.string(), "the file is empty: download or save it again");
  }
  refuse_lfs_pointer(text, path.string());
  return text;
}

}  // namespace lora_train::storage
