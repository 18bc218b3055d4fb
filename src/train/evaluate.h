// Loss, token accuracy and calibration of a model on a set of documents.
#pragma once

#include <functional>

#include "lora_train/data/plan.h"
#include "lora_train/data/prepare.h"
#include "lora_train/model/activations.h"
#include "lora_train/model/decoder.h"
#include "lora_train/train/requests.h"

namespace lora_train::train {

/// Runs through all documents once. `should_stop` is asked before each micro-batch; true ends early with an empty
/// result (num_tokens 0). ece: 15 equal-width bins over the confidence of the most likely token. Throws NumericError,
/// naming rows of the micro-batch, when its loss is not finite.
EvalResult evaluate(model::Decoder& decoder, model::Activations& activations, const data::NamedStore& data,
                    const std::vector<data::MicroBatchPlan>& plan, const std::function<bool()>& should_stop);

}  // namespace lora_train::train
