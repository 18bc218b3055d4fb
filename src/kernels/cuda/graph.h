// Contract in kernels/launch/graph.h.
#pragma once

#include "lora_train/kernels/launch/graph.h"

namespace lora_train::cuda {

std::unique_ptr<kernels::Graph> capture(const std::function<void()>& body);

}  // namespace lora_train::cuda
