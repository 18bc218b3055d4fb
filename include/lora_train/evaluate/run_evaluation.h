// `eval`: the loss of the base or an adapter on evaluation data, and the other tasks of the request.
#pragma once

#include <vector>

#include "lora_train/evaluate/eval_request.h"

namespace lora_train::evaluate {

/// Evaluates the base or the adapter on eval_datasets, one result per data set. Throws Error.
std::vector<EvalResult> run_evaluation(const EvalRequest& request);

}  // namespace lora_train::evaluate
