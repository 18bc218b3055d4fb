// How sure a model is of an answer: its distribution over the confidence tokens.
#pragma once

#include <span>

#include "lora_train/data/encode/confidence_tokens.h"
#include "lora_train/evaluate/eval_request.h"

namespace lora_train::evaluate {

/// Of the logits of the whole vocabulary at the place where the confidence token follows: softmax over the confidence tokens alone.
ConfidenceReading read_confidence(std::span<const float> logits, const data::ConfidenceTokens& tokens);

}  // namespace lora_train::evaluate
