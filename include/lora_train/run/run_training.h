// `train`: a whole run, from request to summary. Does not include torch.
#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/device/gpu_table.h"
#include "lora_train/launch/world.h"
#include "lora_train/report/metrics_writer.h"

namespace lora_train::run {

struct TrainRequest {
  Profile profile;           ///< resolved: defaults, files, --set and flags applied, resume_from_checkpoint included
  std::string profile_hash;  ///< hash of the resolved profile
  std::vector<std::string> allow_changed;  ///< keys given with --allow-changed
  bool overwrite = false;
  bool dry_run = false;
  bool quiet = false;                               ///< no progress bar
  std::filesystem::path gpu_table = {};             ///< configs/gpus.json, for prices; may be empty
  std::optional<device::GpuFacts> target_gpu = {};  ///< the GPU named by profile.run.target_gpu
  launch::World world = {};
  report::Provenance provenance = {};
  std::exception_ptr failure = {};     ///< why one of several ranks has no profile: all ranks fail with it
  std::exception_ptr bad_inputs = {};  ///< problems with files named by the profile that rule out the run
};

struct TrainResult {
  int exit_code = 0;
  std::string summary_json;  ///< summary.json in one line; from the earlier run if that was already complete
};

/// Trains, writes everything in output_dir and returns the content of summary.json. Throws on any failure; if the
/// folder exists by then, still writes summary.json and leaves run.log open for the error report. A stop request is not
/// an error: returns exit_code 75.
TrainResult run_training(const TrainRequest& request);

}  // namespace lora_train::run
