// The file of answers that `generate --output` and `teach` write, and how a second call resumes it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/config/sampling.h"

namespace lora_train::teach {

/// The settings that affect the answers, by name; values are JSON. Differences are reported in this order.
using GenerationSettings = std::vector<std::pair<std::string, std::string>>;

/// The sampling settings that affect the answers.
GenerationSettings sampling_settings(const SamplingOptions& sampling);

/// JSON lines, one per prompt, each with the prompt and its number ("index"), appended as answers arrive.
/// FILE.settings.json next to it ensures that a later call resumes only with the same settings. Does not look for
/// earlier answers in a device or a pipe. Not thread-safe.
class GenerationFile {
 public:
  /// Opens or creates the file, and cuts off an incomplete last line. `prompts` are the JSON texts of all prompts;
  /// `program`, for messages, is the command that writes the file. Throws ConfigError if the file was written with
  /// other settings or for other prompts, is not such a file, or is being written by another process; IoError.
  GenerationFile(std::string program, std::filesystem::path path, const GenerationSettings& settings,
                 const std::vector<std::string>& prompts);

  /// True if prompt i has its line.
  bool is_done(std::size_t i) const { return is_done_[i]; }
  std::size_t num_done() const;

  /// Appends the line of prompt i, given without its end. On failure, no part of it stays in the file: IoError.
  void append(std::size_t i, const std::string& line);
  /// The lines so far, in the order of the prompts; empty for a prompt without one.
  std::vector<std::string> lines() const;
  /// Call it after the last line: syncs, and sorts the lines into the order of the prompts.
  void finish();

 private:
  void open();
  void check_settings(const GenerationSettings& settings) const;
  /// Checks the file before it is replaced: it may be someone else's.
  void check_settings_file(const GenerationSettings& settings) const;
  void check_torn_line(std::string_view rest) const;
  void read_lines(std::string_view text, const std::vector<std::string>& prompts);
  void cut_off() const;
  std::filesystem::path settings_path() const { return path_.string() + ".settings.json"; }

  std::string program_;
  std::filesystem::path path_;
  bool is_regular_ = true;
  std::vector<bool> is_done_;
  std::size_t size_ = 0;  ///< bytes of whole lines
  FileDescriptor file_;
};

}  // namespace lora_train::teach
