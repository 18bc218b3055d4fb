// A linear with several outputs over one input (q|k|v, o, gate|up, down), its LoRA adapters inside the GEMM.
//
// N tokens, D input features, O outputs of all parts, C = sum of the ranks of its adapters.
// weight is [W | sB] with C appended columns, the input buffer is [x | xA^T]; then y = [x | S] [W | sB]^T is base plus
// LoRA in one GEMM, and dy [W | sB] = [dx | dS] (reference: own derivation, docs/architecture.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace lora_train::model {

/// One LoRA adapter on outputs [out_begin, out_end) of a projection.
struct LoraAdapter {
  std::string path;  ///< "model.layers.0.self_attn.q_proj"; names the dropout stream
  int64_t out_begin = 0, out_end = 0;
  int64_t column = 0, rank = 0;  ///< its columns are [D + column, D + column + rank)
  double scale = 1.0, dropout = 0.0;
  at::Tensor a, b;            ///< masters [rank, D], [out_end - out_begin, rank] fp32
  at::Tensor grad_a, grad_b;  ///< added to
};

struct Projection {
  int64_t in_features = 0, out_features = 0, num_columns = 0;
  at::Tensor weight;  ///< [O, D + C] compute dtype
  at::Tensor bias;    ///< [O] compute dtype or undefined
  at::Tensor lora_a;  ///< [C, D] compute dtype, the adapters' A stacked; undefined when C = 0
  std::vector<LoraAdapter> adapters;
  at::Tensor grad_weight;  ///< [O, D] fp32, added to, or undefined (frozen)
  at::Tensor grad_bias;    ///< [O] fp32, added to, or undefined

  int64_t input_width() const { return in_features + num_columns; }
};

/// What dropout masks of this micro-batch are drawn from; p = 0 everywhere when off (evaluation).
struct DropoutContext {
  bool enabled = false;
  std::uint64_t seed = 0;
  std::int64_t step = 0;                         ///< optimizer step
  at::Tensor token_document, token_position;     ///< [N] int32: document in the global step, token in its document
};

/// Writes [sB] into the columns of weight and the stacked A. To be called when the masters have changed.
void write_adapter_columns(Projection& projection);

/// Fills the last C columns of input [N, D + C], whose first D columns hold x. scratch [N, >= D] is used with dropout.
void fill_adapter_columns(const Projection& projection, at::Tensor& input, const DropoutContext& dropout,
                          const at::Tensor& scratch);

/// y = input [W | sB]^T + bias (+ residual). input [N, D + C] with its columns filled; y [N, O];
/// residual [N, O] or undefined, may not be y.
void projection_forward(const Projection& projection, const at::Tensor& input, const at::Tensor& residual, at::Tensor& y);

/// Gradients. dy [N, O]; input as in the forward. d_input [N, D + C]: its first D columns become dx when
/// need_input_grad, the rest is scratch. Adds to every defined gradient of the projection.
void projection_backward(Projection& projection, const at::Tensor& input, const at::Tensor& dy, at::Tensor& d_input,
                         bool need_input_grad, const DropoutContext& dropout, const at::Tensor& scratch);

}  // namespace lora_train::model
