// `eval`: loss and tasks of the base or an adapter. Request and results, without torch.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/launch/world.h"
#include "lora_train/report/eval_figures.h"
#include "lora_train/report/eval_files.h"

namespace lora_train::evaluate {

/// Measurements of `eval` on eval_datasets in addition to the loss.
struct EvalFlags {
  bool choices = false;      ///< the examples have choices (data/encode/task_examples.h)
  bool exact_match = false;  ///< compare greedy answers with the examples' own
  std::string answer_regex;  ///< extracts the answer from both texts; empty = the whole text
  std::int64_t max_new_tokens = 256;
};

struct EvalRequest {
  Profile profile;
  std::filesystem::path adapter;  ///< PEFT folder; empty = the base model
  EvalFlags flags = {};
  bool with_answers = false;  ///< all answers to eval_tasks
  bool quiet = false;         ///< no progress bar
  launch::World world = {};
  std::exception_ptr failure = {};  ///< why this rank of several has no request: all ranks end with it
};

/// Results for multiple choice among given completions, by summed log-probabilities.
struct ChoiceFigures {
  double accuracy = 0;             ///< share of examples whose most likely choice is the right one
  double normalized_accuracy = 0;  ///< the same with log-probabilities per character of the choice
  double ece = 0;                  ///< calibration error: 15 bins over the probability of the example's most likely
                                   ///< choice
  double brier = 0;                ///< mean over examples of the sum over choices of (probability - is right)^2
  long long num_rows = 0;
};

/// Results of comparing greedy answers with those of the examples.
struct MatchFigures {
  double rate = 0;
  long long num_matched = 0, num_answers = 0;
  long long num_cut = 0;  ///< answers cut off by max_new_tokens or the context length
};

/// One line of the output of `eval`: the results for one dataset.
struct EvalResult : report::EvalFigures {
  double weight_sum = 0;                     ///< sum of the loss weights of its tokens
  std::vector<double> document_losses = {};  ///< for each document: its part of loss * weight_sum
  long long num_cut = 0,
            num_lost = 0;  ///< truncated (overlength: truncate); dropped, for any reason in the ledger
  std::optional<ChoiceFigures> choices = {};
  std::optional<MatchFigures> exact_match = {};
};

/// An answer's confidence, read from the model's distribution over the confidence tokens.
struct ConfidenceReading {
  double expected = 0;         ///< probability of being right
  double most_likely = 0;      ///< stated by the most likely token; the first one in a tie
  std::vector<double> logits;  ///< for the tokens, in the order of confidence_tokens
};

struct TaskAnswer {
  report::EvalAnswer answer;  ///< without step
  std::optional<ConfidenceReading> reading = {};
};

/// The results for one of eval_tasks.
struct TaskResult : report::EvalFigures {
  long long num_cut = 0;                 ///< greedy answers cut off by max_new_tokens or the context length
  std::vector<TaskAnswer> answers = {};  ///< as many as requested
};

/// The output of `eval`.
struct Evaluation {
  std::vector<EvalResult> sets;
  std::vector<TaskResult> tasks;
};

/// Evaluates the base or the adapter on eval_datasets, one result per dataset, and on eval_tasks. Throws Error.
Evaluation run_evaluation(const EvalRequest& request);

}  // namespace lora_train::evaluate
