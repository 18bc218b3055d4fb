// The shape of an attention block, and what each index of its lists means.
#pragma once

#include "lora_train/model/layer_shape.h"

namespace lora_train::model::attention {

enum ProjectionIndex { kQkv, kO };
enum NormIndex { kInputNorm, kQNorm, kKNorm, kOutputNorm };
enum SavedIndex { kNormed, kRstd, kQkvOut, kQkRaw, kQkRstd, kAttended, kLse, kBranch, kBranchRstd };

BlockShape shape(const ModelConfig& config, std::int64_t layer);

}  // namespace lora_train::model::attention
