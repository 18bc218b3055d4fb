// Weights in compute layout, and where they come from. Layer code never owns weights: it acquires a layer from a
// WeightSource and releases it, so that later sources can dequantise, gather from other ranks or load ahead.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "lora_train/kernels/embedding.h"
#include "lora_train/model/model_config.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

/// A norm weight with its gradient (undefined when frozen).
struct NormWeight {
  at::Tensor weight;  ///< [D] or [E] compute dtype
  at::Tensor grad;    ///< fp32, added to
};

struct LayerWeights {
  NormWeight input_norm, post_attention_norm;
  NormWeight q_norm, k_norm;       ///< undefined without qk_norm
  Projection qkv, o, gate_up, down;
};

/// Embedding, final norm and head. grad_* are fp32 [V, D] or undefined; with tied embeddings head is embedding.
struct OuterWeights {
  at::Tensor embedding, head;
  at::Tensor grad_embedding, grad_head;
  NormWeight final_norm;
  kernels::TrainableRows rows;  ///< shared by embedding and tied head
  bool is_tied = false;
};

enum class Pass { kForward, kBackward };

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The layer's weights, adapter columns written. Valid until release of the same layer and pass.
  virtual LayerWeights& acquire(int64_t layer, Pass pass) = 0;
  virtual void release(int64_t layer, Pass pass) = 0;
  virtual OuterWeights& outer() = 0;
  /// Masters of the adapters (or of the weights) have changed: what was derived from them must be made anew.
  virtual void refresh() = 0;
};

}  // namespace lora_train::model
