// `generate`: completions of the base and of an adapter, from one copy of the weights.
#pragma once

#include "lora_train/evaluate/generate_request.h"

namespace lora_train::evaluate {

/// Generates completions of the adapter and, with compare, of the base from the same weights. Several ranks divide the prompts
/// that rank 0 has; totals are of all, seconds of the slowest. Throws Error; StopError once rank 0 has all answers so far.
GenerateTotals run_generation(const GenerateRequest& request, GenerateSink& sink);

}  // namespace lora_train::evaluate
