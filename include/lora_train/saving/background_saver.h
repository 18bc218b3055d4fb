// Saves a run while it trains: the state is copied in one short stall, a thread writes the copy.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/checkpoint/checkpoint.h"
#include "lora_train/checkpoint/saver.h"
#include "lora_train/config/profile.h"
#include "lora_train/saving/checkpoint_tensors.h"

namespace lora_train::saving {

/// What a checkpoint is made of; all of it outlives the saver.
struct SavedParts {
  const RunSection& section;
  const lora::AdapterConfig* adapter = nullptr;  ///< null: full fine-tuning
  std::vector<std::string> target_modules;       ///< of the adapter
  const model::Trainables& parameters;
  const optim::OptimizerState& optimizer;
  const checkpoint::Contents& contents;  ///< of every checkpoint of the run; state and files come with each
};

class BackgroundSaver {
 public:
  /// Allocates the copy: masters and optimizer state. Where that does not fit, saving stops training instead; what a GPU
  /// trains is always copied.
  explicit BackgroundSaver(SavedParts parts);

  /// Starts to save the run as it is now, in this state. No save may be under way.
  void start(const checkpoint::TrainState& state);
  bool is_busy() const { return saver_.is_busy(); }
  /// See checkpoint::Saver.
  std::optional<checkpoint::SaveResult> poll() { return saver_.poll(); }
  std::optional<checkpoint::SaveResult> wait() { return saver_.wait(); }

 private:
  const SavedParts parts_;
  struct Snapshot {
    model::Trainables parameters;
    optim::OptimizerState optimizer;
  };
  std::optional<Snapshot> snapshot_;  ///< in host memory; a save goes on from it while training does
  checkpoint::Saver saver_;           ///< after the snapshot, which it reads until it ends
};

}  // namespace lora_train::saving
