#pragma once

#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "weight_view.h"

namespace lora_train::kernels {

/// The pointers of a weight that check_quantized_weight has passed.
WeightView view_of(const QuantizedWeight& weight);

}  // namespace lora_train::kernels
