// Files that a command writes where the user says: --csv, --html, --png.
#pragma once

#include <string>
#include <string_view>

namespace lora_train::cli {

/// Throws ConfigError(file) if there is a file already that `command` did not write, judging by its first 64 KiB. Call it before any
/// work. An empty name is none.
void refuse_foreign(const std::string& command, const std::string& file, bool (*is_ours)(std::string_view start));

/// Writes the file atomically and logs it. Throws IoError.
void write_result(const std::string& file, std::string_view bytes);

}  // namespace lora_train::cli
