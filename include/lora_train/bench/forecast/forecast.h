// `plan`: memory, time and cost of a run on GPUs that are not here.
#pragma once

#include "lora_train/bench/forecast/forecast_request.h"

namespace lora_train::bench {

/// Reads config.json, tokenizer and data, no weights; a folder without weights will do. Memory is that of the RunSpec which the run
/// itself would decide on for such a GPU (plan/run_spec.h). Time is the least that its products, attention and memory traffic
/// take at the GPU's rates (plan/step_limits.h), and what a program usually loses.
///
/// Throws Error as a run does before it loads weights.
ForecastResult make_forecast(const ForecastRequest& request);

/// Why the run of a profile does not fit a GPU, and what to change, for `check`: plan::misfit() of one rank, without weights.
/// Empty if it fits, and where that cannot be known: the model's folder, or what it needs of its weights, is not there, or
/// max_seq_len is `auto` and the data are missing or more than 16 MiB.
std::string check_fit(const FitRequest& request);

}  // namespace lora_train::bench
