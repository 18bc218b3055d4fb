// Compute views of the weights, and their source for layers. Layer code never owns weights: it acquires them from
// BaseWeights and releases them, so that an implementation can read, decode or gather them on demand.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lora_train/kernels/embedding/embedding.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

/// A weight that is no linear, with its gradient (undefined when frozen).
struct SmallWeight {
  at::Tensor weight;  ///< its shape in the files; compute dtype, or fp32 (keeps_fp32); undefined if there is none
  at::Tensor grad;    ///< fp32, accumulated into
};

/// The weights of a block, in the order of BlockShape::projections and ::small.
struct BlockWeights {
  std::vector<Projection> projections;
  std::vector<SmallWeight> small;
};

using LayerWeights = std::vector<BlockWeights>;

/// Embedding [V, D], final norm and head [V, D]. grad_* are fp32 [V, D] or undefined. With tied embeddings, head is
/// embedding.
struct OuterWeights {
  at::Tensor embedding, head;
  at::Tensor grad_embedding, grad_head;
  SmallWeight final_norm;
  kernels::TrainableRows rows;       ///< trained rows of the embedding
  kernels::TrainableRows head_rows;  ///< trained rows of the head; with tied embeddings, same as `rows`
  bool is_tied = false;
};

enum class Pass { kForward, kBackward };

class BaseWeights {
 public:
  virtual ~BaseWeights() = default;
  /// The layer's weights, with adapter columns written. Valid until the same layer and pass are released.
  virtual LayerWeights& acquire(int64_t layer, Pass pass) = 0;
  virtual void release(int64_t layer, Pass pass) = 0;
  /// The same for the outer weights: embedding, final norm and head.
  virtual OuterWeights& acquire_outer(Pass pass) = 0;
  virtual void release_outer(Pass pass) = 0;
  /// Rewrites everything derived from the masters (of adapters or weights). Call it after they have changed.
  virtual void refresh() = 0;
};

/// Acquires the weights of a layer, and releases them at the end of the scope.
class AcquiredLayer {
 public:
  AcquiredLayer(BaseWeights& weights, int64_t layer, Pass pass)
      : weights_(weights), layer_(layer), pass_(pass), acquired_(weights.acquire(layer, pass)) {}
  ~AcquiredLayer() { weights_.release(layer_, pass_); }
  AcquiredLayer(const AcquiredLayer&) = delete;
  AcquiredLayer& operator=(const AcquiredLayer&) = delete;

  LayerWeights& operator*() const { return acquired_; }

 private:
  BaseWeights& weights_;
  int64_t layer_;
  Pass pass_;
  LayerWeights& acquired_;
};

}  // namespace lora_train::model
