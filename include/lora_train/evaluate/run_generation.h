// `generate`: completions of the base and of an adapter, from one copy of the weights.
#pragma once

#include "lora_train/evaluate/generate_request.h"

namespace lora_train::evaluate {

/// Generates completions of the adapter and, with compare, of the base from the same weights. Throws Error.
GenerateTotals run_generation(const GenerateRequest& request, GenerateSink& sink);

}  // namespace lora_train::evaluate
