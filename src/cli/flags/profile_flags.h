// The flags that set a profile, shared by the commands that take one, and processes of this program started with the
// same profile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "lora_train/config/load.h"
#include "lora_train/device/gpu_table.h"
#include "lora_train/launch/world.h"

namespace lora_train::cli {

/// A flag that is one profile key: "--output-dir" for "output_dir".
struct KeyFlag {
  const char* flag;
  const char* key;
  const char* help;
};

inline constexpr KeyFlag kModelFlag{"--model", "model", "model folder, or org/name in the local Hugging Face cache"};
inline constexpr KeyFlag kTemplateFlag{"--chat-template", "chat_template",
                                       "name of a built-in template, or a .jinja file"};
inline constexpr KeyFlag kTrainDataFlag{"--train-data", "datasets", "training data: file, folder or glob"};
inline constexpr KeyFlag kEvalDataFlag{"--eval-data", "eval_datasets", "evaluation data: file, folder or glob"};
inline constexpr KeyFlag kOutputDirFlag{"--output-dir", "output_dir", "output folder of the run"};
inline constexpr KeyFlag kResumeFlag{"--resume", "resume_from_checkpoint", "auto, none or a checkpoint folder"};

/// --profile (also --config, or a file name alone), --set, trailing key=value, the key flags of the command, and every
/// other key as a flag (--lora-r).
class ProfileFlags {
 public:
  ProfileFlags(CommandParser& parser, const std::vector<KeyFlag>& key_flags);
  ProfileFlags(const ProfileFlags&) = delete;
  ProfileFlags& operator=(const ProfileFlags&) = delete;

  /// Call it after parsing. Later wins: files in order, then --set and key=value in order, then the key flags, then
  /// everything that reaches into a value (datasets[0].path=x).
  ProfileSources sources() const;

  /// True if the files are shipped profiles, which have no data.
  bool are_shipped() const;
  bool has_profile() const { return !profiles().empty(); }
  /// Puts a file before all others.
  void add_profile(const std::string& file) { profiles_.insert(profiles_.begin(), file); }
  /// True if nothing was given.
  bool is_empty() const;

 private:
  /// --profile, and words that stand alone and are not settings.
  std::vector<std::string> profiles() const;

  /// Refuses a folder given as a profile; if the command has --adapter, that takes a run.
  void refuse_folders() const;

  /// Refuses a list written "a,b" that is split into several words, since the later ones would be profiles.
  void refuse_split_lists(const ProfileSources& sources) const;

  CommandParser& parser_;
  std::vector<std::string> profiles_, settings_, trailing_;
  std::vector<Override> overrides_;  ///< keys as flags
  std::vector<KeyFlag> key_flags_;
  std::vector<std::string> key_values_;
  std::vector<CLI::Option*> key_options_;
};

/// The arguments of `train` that name the same profile.
std::vector<std::string> as_arguments(const ProfileSources& sources);

/// The program's configs/gpus.json.
std::vector<device::GpuFacts> shipped_gpus();

/// The profile's target GPU, if it names one.
std::optional<device::GpuFacts> target_gpu(const Profile& profile);

/// Calls load_profile and logs its notes and warnings. An init_adapter that is a run becomes the PEFT folder in it.
LoadedProfile load_and_log(const ProfileSources& sources);
/// The same, with its mistakes added to `findings`.
LoadedProfile load_and_log(const ProfileSources& sources, Findings& findings);

class RanksFlag {
 public:
  /// Adds --nproc. `world`: launch::world_from().
  RanksFlag(CommandParser& parser, const launch::World& world, const std::string& help);
  RanksFlag(const RanksFlag&) = delete;
  RanksFlag& operator=(const RanksFlag&) = delete;

  /// Call it after parsing: true if this process only starts the ranks of `start`. Refuses --nproc if another launcher
  /// has started this process. If it is a rank, sets its output: rank 0 alone writes to stdout and reports common
  /// events; the others report their own errors.
  bool starts_ranks() const;
  /// Runs the command with the same arguments in child processes; returns the exit code.
  int start(const std::string& command, const std::vector<std::string>& arguments) const;

 private:
  CommandParser& parser_;
  const launch::World& world_;
  int num_ranks_ = 1;
};

/// Thrown after a second signal: ends the command with this code.
struct Killed {
  int exit_code;
};

/// Runs this program with these arguments, the command first, in child processes (launch::run_local_ranks), and returns
/// its exit code. `has_signal`: set to whether a signal came meanwhile; nothing else in this process has seen it.
/// Throws Killed if a second one came.
int start_program(const std::vector<std::string>& arguments, int num_ranks, bool* has_signal = nullptr);

}  // namespace lora_train::cli
