// A decoder layer: runs its blocks in order, forward and backward, without autograd. Training, evaluation, generation
// and merge run the same code and differ only in the ForwardPass.
// N tokens, D hidden, H heads, K kv heads, E head size.
#pragma once

#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/rope/rope.h"
#include "lora_train/kernels/sequences.h"
#include "lora_train/model/activations.h"
#include "lora_train/model/weights/weights.h"

namespace lora_train::model {

struct Batch;

/// Views of a q|k|v buffer: q [N, H, E], k and v [N, K, E].
struct QkvViews {
  at::Tensor q, k, v;
};

/// What a gated delta net keeps of the sequences of a cache: kernels/causal_conv, kernels/gated_delta.
struct RecurrentStates {
  at::Tensor convolution, rule;  ///< undefined: nothing
};

/// The attention of a pass: within the documents of a batch, or to a cache.
class AttentionPass {
 public:
  virtual ~AttentionPass() = default;
  /// Writes out [N, H, E] and, if a backward follows, lse [N, H].
  virtual void forward(int64_t layer, const QkvViews& qkv, at::Tensor& out, at::Tensor& lse) = 0;
  /// For the layers without attention, whose sequences do not mix either.
  virtual const kernels::Sequences& sequences() const = 0;
  virtual RecurrentStates states(int64_t) const { return {}; }
};

/// Attention within each document, with its backward.
class DocumentAttention : public AttentionPass {
 public:
  /// `windowed` is the backend for layers with a sliding window. `config` and `batch` must outlive the object.
  DocumentAttention(const ModelConfig& config, const Batch& batch, kernels::AttentionBackend backend,
                    kernels::AttentionBackend windowed)
      : config_(config), batch_(batch), backend_(backend), windowed_(windowed) {}

  void forward(int64_t layer, const QkvViews& qkv, at::Tensor& out, at::Tensor& lse) override;
  const kernels::Sequences& sequences() const override;
  /// `gradients`: buffers for the gradients of q, k and v; a backend may return its own memory instead.
  void backward(int64_t layer, const at::Tensor& d_out, const QkvViews& qkv, const at::Tensor& out,
                const at::Tensor& lse, kernels::AttentionGradients& gradients) const;

 private:
  const kernels::AttentionLayout& layout(int64_t layer) const;
  const ModelConfig& config_;
  const Batch& batch_;
  kernels::AttentionBackend backend_, windowed_;
};

/// cos and sin of every position, for layers without and with a sliding window.
struct RopeTables {
  kernels::RopeTable global, windowed;
  const kernels::RopeTable& of(const ModelConfig& config, int64_t layer) const {
    return config.layer_window[static_cast<std::size_t>(layer)] == 0 ? global : windowed;
  }
};

/// Inputs of a forward pass besides weights and activations.
struct ForwardPass {
  const ModelConfig& config;
  const ModelShape& shape;
  const RopeTables& rope;
  const at::Tensor& positions;  ///< [N] int32
  AttentionPass& attention;
  LinearPass linear{};
};

/// Additional inputs of a backward pass.
struct BackwardPass {
  const ForwardPass& forward;  ///< the pass to differentiate
  const DocumentAttention& attention;
  const Activations& buffers;
};

/// Computes one layer from its input to `output` [N, D], a different buffer. Fills the rest of `saved`.
void layer_forward(const ForwardPass& pass, const LayerWeights& weights, int64_t layer, LayerActivations& saved,
                   at::Tensor& output);

/// d_hidden [N, D]: gradient of the layer's output on entry, of its input on return (when need_input_grad). Recomputes
/// what the layer did not keep.
void layer_backward(const BackwardPass& pass, LayerWeights& weights, int64_t layer, LayerActivations& saved,
                    at::Tensor& d_hidden, bool need_input_grad);

}  // namespace lora_train::model
