// Every activation buffer of a forward and backward pass, planned before step 1.
// N tokens, D hidden, H heads, K kv heads, E head size, F ffn, L layers; C adapter columns of a projection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

#include "lora_train/model/weights.h"

namespace lora_train::model {

/// What a layer keeps for its backward (gradient_checkpointing). All give the same numbers.
enum class Recompute {
  kOff,    ///< everything
  kCheap,  ///< norms and SwiGLU are computed again
  kGateUp, ///< and the product of gate|up
  kFull    ///< only the layer's input is kept
};

/// Saved by the attention block of one layer.
struct AttentionActivations {
  at::Tensor normed;    ///< [N, D + C] norm output and adapter columns of q|k|v
  at::Tensor rstd;      ///< [N] fp32
  at::Tensor qkv;       ///< [N, (H + 2K) E], q and k after norm and RoPE
  at::Tensor qk_raw;    ///< [N, (H + K) E] q and k before their norm; undefined without qk_norm
  at::Tensor qk_rstd;   ///< [H + K, N] fp32, of the same
  at::Tensor out;       ///< [N, H E + C] attention output and adapter columns of o
  at::Tensor lse;       ///< [N, H] fp32
};

/// Saved by the MLP block of one layer.
struct MlpActivations {
  at::Tensor input;     ///< [N, D] residual stream after attention
  at::Tensor normed;    ///< [N, D + C]
  at::Tensor rstd;      ///< [N] fp32
  at::Tensor gate_up;   ///< [N, 2F]; holds its gradient after the backward
  at::Tensor hidden;    ///< [N, F + C] SwiGLU output and adapter columns of down
};

struct LayerActivations {
  at::Tensor input;     ///< [N, D] residual stream
  AttentionActivations attention;
  MlpActivations mlp;
};

/// Shapes that decide the size of the buffers.
struct ActivationShape {
  int64_t max_tokens = 0;
  at::ScalarType dtype;
  bool needs_backward = true;  ///< false: evaluation, one layer's buffers for all
  bool has_dropout = false;
  at::Device device = at::kCPU;  ///< at::kMeta only counts bytes
};

/// Buffers for at most max_tokens tokens; layers share those that their Recompute mode does not keep.
class Activations {
 public:
  /// recompute: one entry per layer.
  Activations(const ModelConfig& config, WeightSource& weights, const ActivationShape& shape,
              std::vector<Recompute> recompute);

  /// The layer's buffers cut to num_tokens rows.
  LayerActivations layer(int64_t layer, int64_t num_tokens) const;
  Recompute recompute(int64_t layer) const { return recompute_[static_cast<std::size_t>(layer)]; }
  int64_t max_tokens() const { return shape_.max_tokens; }
  /// Bytes of all buffers.
  int64_t bytes() const { return bytes_; }

  at::Tensor final_hidden;  ///< [max_tokens, D] output of the last layer
  at::Tensor d_hidden;      ///< [max_tokens, D] gradient of the residual stream; adapter columns lie beside it
  at::Tensor d_qkv;         ///< [max_tokens, (H + 2K) E], the same
  at::Tensor scratch;       ///< [max_tokens, widest input] with dropout
  /// Gradient of a projection's input with its columns: [num_tokens, d_input_width()], one buffer for all.
  at::Tensor d_input(const Projection& projection, int64_t num_tokens) const;
  /// d_hidden and d_qkv as the gradient of a projection's output: [num_tokens, d_output_width()].
  at::Tensor d_hidden_of(const Projection& projection, int64_t num_tokens) const;
  at::Tensor d_qkv_of(const Projection& projection, int64_t num_tokens) const;

 private:
  /// [max_tokens, row...]
  at::Tensor make(at::IntArrayRef row, at::ScalarType dtype);
  LayerActivations make_layer(const ModelConfig& config, const LayerWeights& weights, const LayerActivations* shared,
                              Recompute mode);
  ActivationShape shape_;
  std::vector<Recompute> recompute_;
  std::vector<LayerActivations> layers_;
  at::Tensor d_input_, wide_d_hidden_, wide_d_qkv_;
  int64_t bytes_ = 0;
};

/// The least recomputation whose buffers fit into budget_bytes, the same for every layer; kFull when none does.
Recompute choose_recompute(const ModelConfig& config, WeightSource& weights, const ActivationShape& shape,
                           int64_t budget_bytes);

}  // namespace lora_train::model
