// Reads eval_answers.jsonl: samples of what the model said before and after training.
#pragma once

#include <filesystem>
#include <vector>

#include "lora_train/metrics/run_folder.h"

namespace lora_train::metrics {

inline constexpr const char* kAnswersFile = "eval_answers.jsonl";

/// In the order of the file, at most 1000. Lines that are no answers are left out.
std::vector<LoggedAnswer> read_answers(const std::filesystem::path& file);

}  // namespace lora_train::metrics
