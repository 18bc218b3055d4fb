// checkpoint-<step>/: everything a run needs to go on as if it had never stopped, and a manifest that says whether it is
// whole. docs/formats.md has every file and key, docs/durability.md what is promised and how it is tested.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/storage/atomic_folder.h"

namespace lora_train::checkpoint {

inline constexpr const char* kFolderPrefix = "checkpoint-";
inline constexpr const char* kStateFile = "trainer_state.json";
inline constexpr const char* kProfileFile = "profile.yaml";
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";

/// What a run carries from step to step beside parameters and moments.
struct TrainState {
  std::int64_t step = 0;        ///< last finished
  std::int64_t started_at = 0;  ///< when the run began, seconds since 1970: what templates take for now
  double epoch = 0;
  std::int64_t tokens = 0, supervised_tokens = 0;
  std::optional<double> eval_loss, best_eval_loss;
  std::optional<std::int64_t> best_step;
  std::optional<std::int64_t> eval_step;  ///< of the last evaluation that came to its end
  double loss_sum = 0;                    ///< since the last logged step: sum over supervised tokens by their weights
  double loss_weight = 0;                 ///< sum of these weights; "loss_tokens" in the file
  std::int64_t loss_chunk_rows = 0;  ///< rows of a chunk of the loss head, on which the last bits depend; 0: not known
  std::string
      tuning;  ///< JSON object: what was chosen by measuring, so that a resumed run chooses the same; empty: nothing
};

/// Hashes of what the run reads. A difference on resume names what changed. Empty: there is none.
struct Fingerprints {
  std::string data, tokenizer, chat_template, model, profile;
  bool operator==(const Fingerprints&) const = default;
};

/// A checkpoint in memory.
struct Contents {
  TrainState state;
  std::int64_t total_steps = 0;
  double num_epochs = 0;
  std::int64_t world_size = 1;
  Fingerprints fingerprints;
  std::string profile_yaml;                 ///< resolved; what a run that goes on from here is compared with
  std::vector<storage::FileToWrite> files;  ///< adapter or weights, optimizer
};

/// Writes output_dir/checkpoint-<step> as storage::AtomicFolder does, the manifest (size and hash per file) last, and
/// reads it back. `sync_first`: files beside it that have to be on the disk before it is (metrics.jsonl). Returns the
/// folder. Throws IoError, leaving older checkpoints as they were.
std::filesystem::path save(const std::filesystem::path& output_dir, const Contents& contents,
                           const std::vector<std::filesystem::path>& sync_first = {});

/// The step of a folder named checkpoint-<step>, else nothing.
std::optional<std::int64_t> step_of(const std::filesystem::path& folder);

/// The checkpoints of a run, newest first; none where there is no folder. Nothing of them has been read yet.
std::vector<std::filesystem::path> list(const std::filesystem::path& output_dir);

/// Empty when every file is there as the manifest says, byte for byte, else what is wrong. `after_each_mib` may throw
/// StopError.
std::string verify(const std::filesystem::path& checkpoint, const std::function<void()>& after_each_mib = nullptr);

/// The newest checkpoint that verifies and has the name of its step; a warning says why newer ones were passed over.
/// Nothing when there is none. Throws StopError when a stop is asked for.
std::optional<std::filesystem::path> newest_good(const std::filesystem::path& output_dir);

/// State and fingerprints of a checkpoint that verifies. Throws FormatError.
struct Description {
  TrainState state;
  Fingerprints fingerprints;
  std::int64_t world_size = 1;
};
Description describe(const std::filesystem::path& checkpoint);

/// Of the checkpoints up to `newest`, which stays in any case, deletes the oldest until `keep` are left and, on top of them,
/// the one of `best_step`. What cannot be deleted is warned of.
void rotate(const std::filesystem::path& output_dir, std::int64_t newest, std::int64_t keep,
            std::optional<std::int64_t> best_step);

/// Deletes what a run that goes on from `step` leaves behind: damaged ones, or another future.
void delete_after(const std::filesystem::path& output_dir, std::int64_t step);

}  // namespace lora_train::checkpoint
