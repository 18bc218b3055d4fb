// Where codes of 4 bits change from one to the next.
#pragma once

#include <ATen/core/Tensor.h>

#include "lora_train/kernels/quantized_weight/weight_code.h"

namespace lora_train::kernels {

/// The thresholds of bitsandbytes' CUDA kernels, fp32 on the CPU: [15] between the values of nf4, or [7] between the magnitudes of
/// fp4. What lies on one belongs to the lower side.
at::Tensor thresholds_of(WeightCode code);

/// codes_by_magnitude[i]: the code of fp4's magnitude number i, ascending. [8] int64 on the CPU.
at::Tensor fp4_codes_by_magnitude();

}  // namespace lora_train::kernels
