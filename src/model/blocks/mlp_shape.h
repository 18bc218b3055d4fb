// The shape of a dense MLP block, and what each index of its lists means.
#pragma once

#include "lora_train/model/layer_shape.h"

namespace lora_train::model::mlp {

enum ProjectionIndex { kGateUp, kDown };
enum NormIndex { kInputNorm, kOutputNorm };
enum SavedIndex { kNormed, kRstd, kGateUpOut, kActivated, kBranch, kBranchRstd };

BlockShape shape(const ModelConfig& config, std::int64_t layer);

}  // namespace lora_train::model::mlp
