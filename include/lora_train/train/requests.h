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

struct DoctorRequest {
  bool use_cuda = false;  ///< on the first GPU, else on the CPU
};

/// One of our kernels against its reference, on the device and in the dtype that `name` says: "rms_norm forward fp32".
struct KernelCheck {
  std::string name;
  std::string shape;         ///< "N=37 D=896"
  double max_error = 0;      ///< largest of its outputs' |own - reference| / |reference| (Euclidean norms)
  double tolerance = 0;
  double own_us = 0, reference_us = 0;  ///< of one call
  bool passed = false;
  std::string note;  ///< why it could not be run, or what is special
};

/// The table of functions that liblora_train_engine.so exports through lora_train_engine(). Functions throw Error.
struct EngineApi {
  int version;  ///< kEngineVersion of the library
  TrainResult (*train)(const TrainRequest&);
  std::vector<EvalResult> (*evaluate)(const EvalRequest&);
  std::string (*torch_version)();
  std::vector<KernelCheck> (*check_kernels)(const DoctorRequest&);
};

inline constexpr int kEngineVersion = 3;

}  // namespace lora_train::train

extern "C" const lora_train::train::EngineApi* lora_train_engine();
