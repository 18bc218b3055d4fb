// Contract in sampling.h, on a GPU in stream order: pointers are device memory. No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"
#include "lora_train/kernels/sampling/sampling.h"

namespace lora_train::kernels {

void sample_tokens_cuda(Rows<const float> logits, std::int64_t num_rows, std::int64_t V, const SamplingFilter& filter,
                        const std::int64_t* keys, const std::int64_t* positions, std::int32_t* chosen, Stream stream);

}  // namespace lora_train::kernels
