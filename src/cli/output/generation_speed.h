// How fast tokens were read and generated, in words.
#pragma once

#include <string>

#include "lora_train/evaluate/generate_request.h"

namespace lora_train::cli {

/// "40 prompt tokens in 0.52 s (76.9 tok/s); 30 new tokens; decoding, without the first of each answer: ..."
std::string describe(const evaluate::GenerateTotals& totals);

}  // namespace lora_train::cli
