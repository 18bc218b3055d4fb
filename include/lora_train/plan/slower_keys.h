// Keys that save memory at the cost of time, in a run that has the memory. No launch, no allocation.
#pragma once

#include <string>
#include <vector>

#include "lora_train/plan/run_spec.h"

namespace lora_train::plan {

/// For each of gradient_checkpointing, activation_offload, mlp_tile_tokens, decoded_layers and base_precision that the profile sets, and without
/// which a micro-batch of the same size also fits with less recomputation or decoding: a line with both plans. Empty on a CPU.
std::vector<std::string> slower_keys(const RunFacts& facts, const RunSpec& spec);

}  // namespace lora_train::plan
