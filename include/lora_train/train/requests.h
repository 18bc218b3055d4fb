// What the commands ask of the engine. Plain data without torch: the executable fills it before LibTorch is loaded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"

namespace lora_train::train {

struct TrainRequest {
  Profile profile;              ///< resolved: defaults, files, --set and flags applied; resume_from_checkpoint included
  std::string profile_hash;     ///< of the resolved profile
  std::vector<std::string> allow_changed;  ///< keys of --allow-changed
  bool overwrite = false;
  bool dry_run = false;
  bool quiet = false;           ///< no progress bar
};

struct TrainResult {
  int exit_code = 0;
  std::string summary_json;  ///< what summary.json says, in one line; that of the earlier run where it was complete
};

struct EvalRequest {
  Profile profile;
  std::filesystem::path adapter;  ///< PEFT folder; empty = the base model
};

/// One line of `eval` (contract.md, section 1).
struct EvalResult {
  std::string name;
  double loss = 0, perplexity = 0, token_accuracy = 0, ece = 0;
  long long num_tokens = 0;
};

/// The table of functions that liblora_train_engine.so exports through lora_train_engine(). Functions throw Error.
struct EngineApi {
  int version;  ///< kEngineVersion of the library
  TrainResult (*train)(const TrainRequest&);
  std::vector<EvalResult> (*evaluate)(const EvalRequest&);
  std::string (*torch_version)();
};

inline constexpr int kEngineVersion = 2;

}  // namespace lora_train::train

extern "C" const lora_train::train::EngineApi* lora_train_engine();
