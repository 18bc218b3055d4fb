// Saves and loads the tensors of a checkpoint. A save copies the state in one short pause; a thread writes it while
// training continues.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/lora/adapter_file.h"
#include "lora_train/model/weights/trainables.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/storage/atomic_folder.h"

namespace lora_train::run {

/// The files for parameter values and optimizer state. They point into both, which must be in host memory. Writing a
/// file throws NumericError for NaN or infinity. A null adapter means full fine-tuning.
std::vector<storage::FileToWrite> checkpoint_files(const lora::AdapterConfig* adapter,
                                                   const model::Trainables& parameters,
                                                   const optim::OptimizerState& optimizer);

/// Reads these files into `parameters` and `optimizer`. Throws FormatError if a tensor is missing or unexpected or has
/// the wrong shape.
void load_checkpoint_tensors(const std::filesystem::path& checkpoint, bool is_adapter, model::Trainables& parameters,
                             optim::OptimizerState& optimizer);

/// Reads only the parameters.
void load_checkpoint_parameters(const std::filesystem::path& checkpoint, bool is_adapter,
                                model::Trainables& parameters);

/// The parts of a checkpoint. The objects they refer to must outlive the saver.
struct SavedParts {
  const RunSection& section;
  const lora::AdapterConfig* adapter = nullptr;  ///< null: full fine-tuning
  const model::Trainables& parameters;
  const optim::OptimizerState& optimizer;
  const run_folder::Contents& contents;  ///< shared by all checkpoints of the run; each save adds state and files
};

class BackgroundSaver {
 public:
  /// Allocates the copy of masters and optimizer state. On a CPU, if the copy would take more than half of
  /// `free_memory` (bytes), start() makes none and returns once the checkpoint is written, so training waits.
  /// Parameters on a GPU are always copied.
  explicit BackgroundSaver(SavedParts parts, std::int64_t free_memory = report::available_host_memory());

  /// Starts saving the current parameters with this state. No other save may be running.
  void start(const run_folder::TrainState& state);
  bool is_busy() const { return saver_.is_busy(); }
  /// See run_folder::CheckpointWriter.
  std::optional<run_folder::SaveResult> poll() { return saver_.poll(); }
  std::optional<run_folder::SaveResult> wait() { return saver_.wait(); }

 private:
  const SavedParts parts_;
  struct Snapshot {
    model::Trainables parameters;
    optim::OptimizerState optimizer;
  };
  std::optional<Snapshot> snapshot_;    ///< in host memory; a save reads it while training continues
  run_folder::CheckpointWriter saver_;  ///< declared after the snapshot, which it reads until destroyed
};

}  // namespace lora_train::run
