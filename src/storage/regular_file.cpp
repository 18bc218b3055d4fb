#include "lora_train/storage/regular_file.h"

#include <system_error>

#include "lora_train/base/error.h"

namespace lora_train::storage {

void require_regular_file(const std::filesystem::path& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  throw FormatError(path.string(), std::filesystem::is_directory(status)
                                       ? "is a folder; a regular file was expected"
                                       : "is a pipe, a socket or a device; a regular file was expected");
}

}  // namespace lora_train::storage
