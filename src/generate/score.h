// Generator::score.
#pragma once

#include "generator_parts.h"

namespace lora_train::generate {

std::vector<std::vector<double>> score_requests(GeneratorParts& parts, std::span<const ScoreRequest> requests,
                                                bool use_adapter, const std::function<void(std::size_t)>& on_done);

}  // namespace lora_train::generate
