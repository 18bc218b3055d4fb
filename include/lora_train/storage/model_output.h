// The model or adapter folder that a command writes: where it may be, and which files it copies from other folders.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/storage/atomic_folder.h"

namespace lora_train::storage {

enum class OutputKind { kModel, kAdapter };

/// In each output: who made it, what it holds and the names of the files. Files not on the list are somebody else's.
inline constexpr const char* kOutputMarker = ".lora-train-output.json";

/// A folder that this process locks (flock) until it ends.
class HeldFolder {
 public:
  explicit HeldFolder(const std::filesystem::path& folder);

  bool is_held() const { return is_held_; }
  bool is_busy() const { return is_busy_; }  ///< another one holds it; neither: no such folder, or one without locks

 private:
  Descriptor folder_;
  bool is_held_ = false, is_busy_ = false;
};

/// The output of a running command. It appears whole at commit(); until then it is a temporary folder next to the
/// target, which the destructor deletes, or the next command to that place if the process was killed. Only one command
/// at a time writes to a place.
class OutputFolder {
 public:
  /// Creates the parents and deletes leftovers of killed commands. Throws ConfigError if the folder is one of the
  /// inputs or holds one; if it is a file; if it is not empty and `overwrite` is not set; if `overwrite` is set and it
  /// is not an output of that kind (kOutputMarker) or holds a file that the marker does not list; or if another command
  /// is writing there. Throws IoError.
  OutputFolder(const std::filesystem::path& requested, OutputKind kind,
               const std::vector<std::filesystem::path>& inputs, bool overwrite);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// The target: absolute, links followed.
  const std::filesystem::path& path() const { return target_; }
  /// A place for an intermediate output, which must be gone before commit().
  std::filesystem::path intermediate(const std::string& name) const { return folder_->temporary() / name; }

  /// See AtomicFolder.
  void write(const std::vector<FileToWrite>& files);
  /// Moves the files of a finished output to this one and deletes its folder. Throws IoError.
  void take_files_of(const std::filesystem::path& output);
  /// Puts the folder in place, then calls check(folder) if there is one. If that throws, the older folder is
  /// restored. Throws ConfigError if the target has been filled meanwhile and may not be overwritten.
  void commit(const std::function<void(const std::filesystem::path& folder)>& check = {});

 private:
  void delete_leftovers() const;

  OutputKind kind_;
  bool overwrite_;
  std::filesystem::path target_;
  HeldFolder held_target_;                    ///< what is replaced
  std::optional<HeldFolder> held_temporary_;  ///< both until folder_ has deleted what is left
  std::optional<AtomicFolder> folder_;
  std::vector<std::string> taken_;
};

/// The files to copy along with the weights (.json, .txt, .jinja, .model, .tiktoken, licences), sorted by name: neither
/// weights nor their index, and no hidden files.
std::vector<std::string> companion_files(const std::filesystem::path& folder);

/// A copy of the file, ready to write.
FileToWrite copy_of(const std::filesystem::path& file);

/// Gives the files of a model or adapter a template for chats with tools: both templates go into tokenizer_config.json,
/// in place of chat_template.jinja. transformers' other form for two templates needs a folder.
void add_tool_template(const std::string& tool_use, std::vector<FileToWrite>& files);
/// The same with the template of that form in `folder`, if there is one.
void copy_tool_template(const std::filesystem::path& folder, std::vector<FileToWrite>& files);

/// The template for chats with tools of a folder whose chat_template.jinja is for others, as transformers writes it.
std::filesystem::path tool_template_file(const std::filesystem::path& folder);

}  // namespace lora_train::storage
