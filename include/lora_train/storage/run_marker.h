// run.json: tells a run folder of lora-train from any other folder (docs/formats.md). No other file does: other tools
// write metrics.jsonl, run.log and adapter/ too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lora_train::storage {

inline constexpr const char* kMadeBy = "lora-train";  ///< what every marker says

struct RunMarker {
  std::string run_id;                 ///< 32 random hexadecimal digits
  std::int64_t started_at = 0;        ///< seconds since 1970
  bool began_with_overwrite = false;  ///< by a command with --overwrite, which may not overwrite it again
};

/// The marker of the run in `folder`; nothing if run.json is missing, is not a regular file or was written by someone
/// else. Throws IoError.
std::optional<RunMarker> read_marker(const std::filesystem::path& folder);

/// True if a file or folder is a marker, or is next to one and has the name of something that a run writes, or begins
/// with "checkpoint-". Throws IoError.
bool is_output_of_run(const std::filesystem::path& path);

/// Marks the folder as that of a new run. Throws IoError.
void write_new_marker(const std::filesystem::path& folder, bool began_with_overwrite);

}  // namespace lora_train::storage
