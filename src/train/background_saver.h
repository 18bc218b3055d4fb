// Saves a run while it trains: the state is copied in one short stall, a thread writes the copy.
#pragma once

#include <memory>
#include <optional>

#include "checkpoint_tensors.h"
#include "lora_train/checkpoint/saver.h"
#include "run_state.h"

namespace lora_train::train {

class BackgroundSaver {
 public:
  /// Allocates the copy: masters and optimizer state. Where that does not fit, saving stops training instead; what a GPU
  /// trains is always copied.
  explicit BackgroundSaver(const Run& run);

  /// Starts to save the run as it is. No save may be under way.
  void start();
  bool is_busy() const { return saver_.is_busy(); }
  /// See checkpoint::Saver.
  std::optional<checkpoint::SaveResult> poll() { return saver_.poll(); }
  std::optional<checkpoint::SaveResult> wait() { return saver_.wait(); }

 private:
  const Run& run_;
  std::vector<std::string> target_modules_;
  struct Snapshot {
    model::Trainables parameters;
    optim::OptimizerState optimizer;
  };
  std::optional<Snapshot> snapshot_;  ///< in host memory; a save goes on from it while training does
  checkpoint::Saver saver_;  ///< after the snapshot, which it reads until it ends
};

}  // namespace lora_train::train
