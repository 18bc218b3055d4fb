#include "result_file.h"

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"

namespace lora_train::cli {

void refuse_foreign(const std::string& command, const std::string& file, bool (*is_ours)(std::string_view start)) {
  constexpr std::size_t kStartBytes = 65536;
  if (file.empty() || path_kind(file) == PathKind::kNone) return;
  const std::string start = read_start(file, kStartBytes);
  if (start.empty() || is_ours(start)) return;
  throw ConfigError(
      file, "was not written by " + command + ", so it is not replaced: name another file, or delete it yourself");
}

void write_result(const std::string& file, std::string_view bytes) {
  write_file_atomic(file, bytes);
  log_info(file + ": written");
}

}  // namespace lora_train::cli
