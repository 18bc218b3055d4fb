// A linear with several outputs over one input (q|k|v, o, gate|up, down), its LoRA adapters inside the GEMM.
//
// N tokens, D input features, O outputs of all parts, C columns: the ranks of its adapters, rounded up to kColumnStep.
// weight is [W | sB ; A | 0], the input buffer is [x | S] with S = x A^T; then y = [x | S] [W | sB]^T is base plus LoRA in
// one GEMM. The backward has two forms (own derivation, docs/performance.md): [dx | dS] = dy [W | sB], then dx += dS A; or
// dS = dy sB first, then dx = [dy | dS] [W ; A].
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace lora_train::model {

/// One LoRA adapter on outputs [out_begin, out_end) of a projection.
struct LoraAdapter {
  std::string path;  ///< "model.layers.0.self_attn.q_proj"
  int64_t out_begin = 0, out_end = 0;
  int64_t column = 0, rank = 0;  ///< its columns are [D + column, D + column + rank), its rows of A those past O
  double scale = 1.0, dropout = 0.0;
  at::Tensor a, b;            ///< masters [rank, D], [out_end - out_begin, rank] fp32
  at::Tensor grad_a, grad_b;  ///< added to
  int64_t index = 0;          ///< among all adapters of the model: its row of DropoutContext::keys
};

/// Elements that columns come in: rows of bf16 buffers stay aligned to 16 bytes whatever the ranks are. Columns of no
/// adapter are zero.
constexpr int64_t kColumnStep = 8;

/// Where the backward leaves dS, and with it the form of the backward.
enum class GradientColumns {
  kBesideInput,  ///< [dx | dS] in one GEMM; adding dS A reads and writes dx once more: 4 D bytes a token in bf16
  kBesideOutput  ///< [dy | dS]: dx needs nothing more; making dS reads dy once more: 2 O bytes
};

struct Projection {
  int64_t in_features = 0, out_features = 0, num_columns = 0;
  GradientColumns gradient_columns = GradientColumns::kBesideInput;
  at::Tensor weight;  ///< [O + C, D + C] compute dtype, [W | sB ; A | 0]
  at::Tensor bias;    ///< [O] compute dtype or undefined
  std::vector<LoraAdapter> adapters;
  at::Tensor grad_weight;  ///< [O, D] fp32, added to, or undefined (frozen)
  at::Tensor grad_bias;    ///< [O] fp32, added to, or undefined

  /// Columns of the buffers of the input, and of the gradients of input and output.
  int64_t input_width() const { return in_features + num_columns; }
  int64_t d_input_width() const { return in_features + (has_columns(GradientColumns::kBesideInput) ? num_columns : 0); }
  int64_t d_output_width() const { return out_features + (has_columns(GradientColumns::kBesideOutput) ? num_columns : 0); }
  bool has_columns(GradientColumns where) const { return num_columns > 0 && gradient_columns == where; }

  at::Tensor weight_and_columns() const { return weight.narrow(0, 0, out_features); }              ///< [W | sB]
  at::Tensor weight_and_rows() const { return weight.narrow(1, 0, in_features); }                  ///< [W ; A]
  at::Tensor base_weight() const { return weight_and_columns().narrow(1, 0, in_features); }        ///< W
  at::Tensor scaled_b() const { return weight_and_columns().narrow(1, in_features, num_columns); }  ///< sB
  at::Tensor lora_a() const { return weight_and_rows().narrow(0, out_features, num_columns); }      ///< A
};

/// Gives the adapter the columns after those of the adapters before it. Not once the weight is there.
void add_adapter(Projection& projection, LoraAdapter adapter);

/// What dropout masks of this micro-batch are drawn from; p = 0 everywhere when off (evaluation).
struct DropoutContext {
  bool enabled = false;
  at::Tensor keys;                               ///< [adapters of the model, 2] int32: kernels/dropout.h
  at::Tensor token_document, token_position;     ///< [N] int32: document in the global step, token in its document
};

/// Writes sB and A into weight. To be called when the masters have changed.
void write_adapter_columns(Projection& projection);

/// Fills the last C columns of input [N, D + C], whose first D columns hold x. scratch [N, >= D] is used with dropout.
void fill_adapter_columns(const Projection& projection, at::Tensor& input, const DropoutContext& dropout,
                          const at::Tensor& scratch);

/// y = input [W | sB]^T + bias (+ residual). input [N, D + C] with its columns filled; y [N, O];
/// residual [N, O] or undefined, may not be y.
void projection_forward(const Projection& projection, const at::Tensor& input, const at::Tensor& residual, at::Tensor& y);

/// Gradients. d_output [N, d_output_width()]: dy in its first O columns, the rest is scratch; input as in the forward.
/// d_input [N, d_input_width()]: its first D columns become dx when need_input_grad, the rest is scratch. Adds to every
/// defined gradient of the projection.
void projection_backward(Projection& projection, const at::Tensor& input, at::Tensor& d_output, at::Tensor& d_input,
                         bool need_input_grad, const DropoutContext& dropout, const at::Tensor& scratch);

}  // namespace lora_train::model
