// The shapes of the blocks, and the meaning of each index into their lists.
#pragma once

#include "lora_train/model/layer_shape.h"

namespace lora_train::model::attention {

enum ProjectionIndex { kQkv, kO };
enum SmallIndex { kInputNorm, kQNorm, kKNorm, kOutputNorm };
/// With a gate, q|gate|k|v are projected into kProjected, attention goes to kUngated, and kAttended is the gated
/// output.
enum SavedIndex {
  kNormed,
  kRstd,
  kProjected,
  kQkvOut,
  kQkRaw,
  kQkRstd,
  kGate,
  kUngated,
  kAttended,
  kLse,
  kBranch,
  kBranchRstd
};

BlockShape shape(const ModelConfig& config, std::int64_t layer);

}  // namespace lora_train::model::attention

namespace lora_train::model::linear_attention {

enum ProjectionIndex { kIn, kOut };
enum SmallIndex { kInputNorm, kConvolution, kDecayRate, kStepBias, kGatedNorm, kOutputNorm };
/// Linears whose rows go by key head write to kByKeyHead; kProjected has their columns in the order q|k|v|z|b|a.
enum SavedIndex {
  kNormed,
  kRstd,
  kByKeyHead,
  kProjected,
  kConvolved,
  kScratch,
  kUngated,
  kGated,
  kBranch,
  kBranchRstd
};

BlockShape shape(const ModelConfig& config, std::int64_t layer);

}  // namespace lora_train::model::linear_attention

namespace lora_train::model::mlp {

enum ProjectionIndex { kGateUp, kDown };
enum SmallIndex { kInputNorm, kOutputNorm };
enum SavedIndex { kNormed, kRstd, kGateUpOut, kActivated, kBranch, kBranchRstd };

/// gate_up: the form of gate|up's backward. kBesideOutput puts dS into mlp.gate_up, which its gradient overwrites.
BlockShape shape(const ModelConfig& config, std::int64_t layer, GradientColumns gate_up);

}  // namespace lora_train::model::mlp
