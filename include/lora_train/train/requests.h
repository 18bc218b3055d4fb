// What the commands ask of the engine. Plain data without torch: the executable fills it before LibTorch is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/generate/sampling.h"
#include "lora_train/lora/merge_check.h"
#include "lora_train/train/bench_request.h"

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

/// What `eval` measures besides the loss.
struct EvalTasks {
  bool choices = false;      ///< the rows have choices (data/choices.h)
  bool exact_match = false;  ///< greedy answers against the rows' own
  std::string answer_regex;  ///< picks the answer out of both; empty = the whole text
  std::int64_t max_new_tokens = 256;
};

struct EvalRequest {
  Profile profile;
  std::filesystem::path adapter;  ///< PEFT folder; empty = the base model
  EvalTasks tasks = {};
  bool quiet = false;             ///< no progress bar
};

/// Forced choice among given completions, by summed log probabilities.
struct ChoiceFigures {
  double accuracy = 0;             ///< the likeliest choice is the right one
  double normalized_accuracy = 0;  ///< the same with log probabilities per character of the choice
  double ece = 0;                  ///< 15 bins over the share of the likeliest choice among all of its row
  double brier = 0;                ///< mean over rows of sum over choices of (share - is right)^2
  long long num_rows = 0;
};

/// Greedy answers that equal the row's.
struct MatchFigures {
  double rate = 0;
  long long num_matched = 0, num_answers = 0;
  long long num_cut = 0;  ///< answers that max_new_tokens or the context ended
};

/// One line of `eval` (contract.md, section 1).
struct EvalResult {
  std::string name;
  double loss = 0, perplexity = 0, token_accuracy = 0, ece = 0;
  long long num_tokens = 0;
  double weight_sum = 0;  ///< of these tokens in the loss
  long long num_rows_cut = 0, num_rows_lost = 0;  ///< overlength: truncate; every reason that the ledger has
  std::optional<ChoiceFigures> choices = {};
  std::optional<MatchFigures> exact_match = {};
};

struct GeneratePrompt {
  std::vector<std::int32_t> ids;
  std::int64_t index = 0;  ///< in the whole file of prompts: keys the sampler
  std::int64_t max_new_tokens = 0;
  std::string name;        ///< for messages: "prompts.jsonl:3"
};

struct GenerateRequest {
  Profile profile;                ///< model, device, precision and what else concerns the engine
  std::filesystem::path adapter;  ///< PEFT folder; empty = the base model
  bool compare = false;           ///< completions of the base too, from the same weights
  std::vector<GeneratePrompt> prompts;
  std::vector<std::int32_t> stop_ids;
  generate::SamplingOptions sampling = {};
};

/// What hears of tokens as they are made. Called in the thread that called generate(); what it throws ends that call.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  /// Weights are loaded; tokens follow.
  virtual void on_start() = 0;
  /// `prompt`: position in GenerateRequest::prompts. False ends this completion.
  virtual bool on_token(std::size_t prompt, bool is_base, std::int32_t id) = 0;
  /// The completion has ended; is_cut: neither by a stop id nor by on_token.
  virtual void on_done(std::size_t prompt, bool is_base, bool is_cut) = 0;
};

/// Tokens and seconds, as generate::GenerateStats.
struct GenerateTotals {
  std::int64_t prompt_tokens = 0, new_tokens = 0, decoded_tokens = 0;
  double prompt_s = 0, decode_s = 0;
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
/// Valid only where the library's lora_train_build_id() is the caller's LORA_TRAIN_BUILD_ID: ask for that first.
struct EngineApi {
  TrainResult (*train)(const TrainRequest&);
  std::vector<EvalResult> (*evaluate)(const EvalRequest&);
  std::string (*torch_version)();
  std::vector<KernelCheck> (*check_kernels)(const DoctorRequest&);
  /// StopError between two tokens; what was done by then has been given to the sink.
  GenerateTotals (*generate)(const GenerateRequest&, GenerateSink&);
  lora::MergeCheck (*check_merge)(const lora::MergeCheckRequest&);
  BenchResult (*bench)(const BenchRequest&);
};

}  // namespace lora_train::train

extern "C" const lora_train::train::EngineApi* lora_train_engine();
