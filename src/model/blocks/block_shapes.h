// The shapes of the blocks, and the meaning of each index into their lists.
#pragma once

#include "lora_train/model/layer_shape.h"

namespace lora_train::model::attention {

enum ProjectionIndex { kQkv, kO };
enum NormIndex { kInputNorm, kQNorm, kKNorm, kOutputNorm };
enum SavedIndex { kNormed, kRstd, kQkvOut, kQkRaw, kQkRstd, kAttended, kLse, kBranch, kBranchRstd };

BlockShape shape(const ModelConfig& config, std::int64_t layer);

}  // namespace lora_train::model::attention

namespace lora_train::model::mlp {

enum ProjectionIndex { kGateUp, kDown };
enum NormIndex { kInputNorm, kOutputNorm };
enum SavedIndex { kNormed, kRstd, kGateUpOut, kActivated, kBranch, kBranchRstd };

/// gate_up: the form of gate|up's backward. kBesideOutput puts dS into mlp.gate_up, which its gradient overwrites.
BlockShape shape(const ModelConfig& config, std::int64_t layer, GradientColumns gate_up);

}  // namespace lora_train::model::mlp
