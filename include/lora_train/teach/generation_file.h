// The file of answers that `generate --output` and `teach` write, and how a second call resumes it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lora_train/config/sampling.h"

namespace lora_train::teach {

/// The settings that affect the answers, by name; values are JSON. In the order in which differences are named.
using GenerationSettings = std::vector<std::pair<std::string, std::string>>;

/// What sampling decides of the answers.
GenerationSettings sampling_settings(const SamplingOptions& sampling);

/// Lines of JSON, one a prompt, each with the prompt and its number ("index"), appended as they are made; beside it
/// FILE.settings.json, so that a later call resumes only with the same settings. In a device or a pipe nothing is looked
/// for. Not thread-safe.
class GenerationFile {
 public:
  /// Opens or creates the file; a last line without its end is cut off. `prompts` are the JSON texts of all prompts, `program` the
  /// command that writes the file, for messages.
  /// Throws ConfigError where the file was written with other settings or for other prompts, is not such a file, or is being
  /// written by another process; IoError.
  GenerationFile(std::string program, std::filesystem::path path, const GenerationSettings& settings,
                 const std::vector<std::string>& prompts);
  GenerationFile(const GenerationFile&) = delete;
  GenerationFile& operator=(const GenerationFile&) = delete;

  /// Whether prompt i has its line.
  bool is_done(std::size_t i) const { return is_done_[i]; }
  std::size_t num_done() const;

  /// The line of prompt i, without its end. If the system refuses, nothing of it stays in the file: IoError.
  void append(std::size_t i, const std::string& line);
  /// The lines so far, in the order of the prompts; empty where a prompt has none.
  std::vector<std::string> lines() const;
  /// After the last line: syncs, and puts the lines into the order of the prompts.
  void finish();

 private:
  void open();
  void check_settings(const GenerationSettings& settings) const;
  /// Before it is replaced: it may be somebody else's.
  void check_settings_file(const GenerationSettings& settings) const;
  void check_torn_line(std::string_view rest) const;
  void read_lines(std::string_view text, const std::vector<std::string>& prompts);
  void cut_off() const;
  std::filesystem::path settings_path() const { return path_.string() + ".settings.json"; }

  struct Descriptor {
    int fd = -1;
    ~Descriptor();
  };

  std::string program_;
  std::filesystem::path path_;
  bool is_regular_ = true;
  std::vector<bool> is_done_;
  std::size_t size_ = 0;  ///< bytes of whole lines
  Descriptor descriptor_;
};

}  // namespace lora_train::teach
