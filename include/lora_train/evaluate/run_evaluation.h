// `eval`: the loss of the base or an adapter on evaluation data, and the other tasks of the request.
#pragma once

#include "lora_train/evaluate/eval_request.h"

namespace lora_train::evaluate {

/// Evaluates the base or the adapter on eval_datasets, one result per data set, and on eval_tasks. Throws Error.
Evaluation run_evaluation(const EvalRequest& request);

}  // namespace lora_train::evaluate
