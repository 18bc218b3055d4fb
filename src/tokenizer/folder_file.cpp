#include "folder_file.h"

#include <system_error>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"

namespace lora_train::tokenizer {

std::string read_folder_file(const std::filesystem::path& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw FormatError(path.string(), std::filesystem::is_directory(status)
                                         ? "is a folder; a regular file was expected"
                                         : "is a pipe, a socket or a device; a regular file was expected");
  }
  std::string text = read_file(path);
  if (text.starts_with("version https://git-lfs.github")) {
    throw FormatError(path.string(),
                      "this is a Git LFS pointer, not the file it stands for: run `git lfs pull` in its folder");
  }
  return text;
}

}  // namespace lora_train::tokenizer
