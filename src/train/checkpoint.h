// checkpoint-<step>/: a PEFT folder (or the fp32 weights of full fine-tuning) plus optimizer.safetensors,
// trainer_state.json, profile.yaml and manifest.json. docs/formats.md has every key.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/lora/adapter_file.h"
#include "lora_train/model/parameters.h"

namespace lora_train::train {

/// What a run carries from step to step beside the parameters and moments.
struct TrainState {
  std::int64_t step = 0;  ///< last finished
  double epoch = 0;
  std::int64_t tokens = 0, supervised_tokens = 0;
  std::optional<double> eval_loss, best_eval_loss;
  std::optional<std::int64_t> best_step;
  std::optional<std::int64_t> eval_step;  ///< of the last evaluation that came to its end
  double loss_sum = 0;                    ///< since the last logged step: sum over supervised tokens, and their number
  std::int64_t loss_tokens = 0;
};

struct CheckpointContext {
  const lora::AdapterConfig* adapter = nullptr;  ///< null: full fine-tuning
  std::vector<std::string> target_modules;
  std::int64_t total_steps = 0;
  double num_epochs = 0;
  std::string data_fingerprint;
  std::string profile_hash;
  std::string profile_yaml;  ///< resolved; what a run that goes on from here is compared with
};

/// Writes output_dir/checkpoint-<step>: into a temporary folder beside it, each file synced, the manifest (size and
/// hash per file) last, then renamed. Returns the folder. Throws IoError, leaving older checkpoints as they were.
std::filesystem::path save_checkpoint(const std::filesystem::path& output_dir, const TrainState& state,
                                      const model::Parameters& parameters, const CheckpointContext& context);

/// Names of the checkpoints of a run, newest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& output_dir);

/// Empty when the files are as the manifest says, else what is wrong.
std::string verify_checkpoint(const std::filesystem::path& checkpoint);

struct LoadedCheckpoint {
  TrainState state;
  std::string data_fingerprint;
};
/// Reads trainer_state.json only.
LoadedCheckpoint read_checkpoint_state(const std::filesystem::path& checkpoint);

/// Parameters and moments. Throws FormatError when a tensor is missing, misshapen or unexpected.
void load_checkpoint_tensors(const std::filesystem::path& checkpoint, bool is_adapter, model::Parameters& parameters);

/// Deletes the oldest checkpoints until `keep` are left and, on top of them, the one of `best_step`.
void rotate_checkpoints(const std::filesystem::path& output_dir, std::int64_t keep,
                        std::optional<std::int64_t> best_step);

/// Deletes what a run that goes on from `step` leaves behind: damaged ones, or another future.
void delete_checkpoints_after(const std::filesystem::path& output_dir, std::int64_t step);

}  // namespace lora_train::train
