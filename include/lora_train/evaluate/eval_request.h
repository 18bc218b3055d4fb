// What `eval` asks of the engine, and what it is told. Plain data without torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lora_train/config/profile.h"

namespace lora_train::evaluate {

/// What `eval` measures besides the loss.
struct EvalTasks {
  bool choices = false;      ///< the rows have choices (data/render/choices.h)
  bool exact_match = false;  ///< greedy answers against the rows' own
  std::string answer_regex;  ///< picks the answer out of both; empty = the whole text
  std::int64_t max_new_tokens = 256;
};

struct EvalRequest {
  Profile profile;
  std::filesystem::path adapter;  ///< PEFT folder; empty = the base model
  EvalTasks tasks = {};
  bool quiet = false;  ///< no progress bar
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
  double weight_sum = 0;                          ///< of these tokens in the loss
  long long num_rows_cut = 0, num_rows_lost = 0;  ///< overlength: truncate; every reason that the ledger has
  std::optional<ChoiceFigures> choices = {};
  std::optional<MatchFigures> exact_match = {};
};

}  // namespace lora_train::evaluate
