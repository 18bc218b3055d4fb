// One or more linears over one input (q|k|v, o, gate|up, down), with their LoRA adapters, computed as one product.
// Training, evaluation, generation and merge share this code.
//
// N tokens, D input features, O outputs of all linears, C adapter columns: the sum of the ranks, rounded up to
// kColumnStep. The input buffer is [x | S] with S = x A^T. If base and adapter share a dtype, they form one matrix [W |
// sB ; A | 0], and y = [x | S] [W | sB]^T is base plus LoRA in one GEMM. Otherwise (a base in another format) the base
// product comes first, and S (sB)^T is added to it. The fused backward has two forms (docs/performance.md):
// [dx | dS] = dy [W | sB], then dx += dS A; or dS = dy sB first, then dx = [dy | dS] [W ; A].
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "lora_train/kernels/cast/cast.h"
#include "lora_train/model/layer_shape.h"

namespace lora_train::kernels {
struct GemmExtras;
}

namespace lora_train::model {

/// One LoRA adapter on outputs [out_begin, out_end) of a projection.
struct LoraAdapter {
  std::string path;  ///< "model.layers.0.self_attn.q_proj"
  int64_t out_begin = 0, out_end = 0;
  int64_t column = 0, rank = 0;  ///< its columns are [D + column, D + column + rank), its rows of A those past O
  double scale = 1.0, dropout = 0.0;
  std::vector<at::Tensor> masters;  ///< fp32, by AdapterTensor
  std::vector<at::Tensor> grads;    ///< gradients of the masters, accumulated into
  int64_t index = 0;                ///< among all adapters of the model: its row of DropoutContext::keys
};

struct Projection : ProjectionSizes {
  Projection() = default;
  explicit Projection(const ProjectionSizes& sizes) : ProjectionSizes(sizes) {}

  at::Tensor weight;             ///< fused: [O + C, D + C] compute dtype, [W | sB ; A | 0]; else undefined
  at::Tensor base;               ///< not fused: W [O, D]
  at::Tensor b_columns, a_rows;  ///< not fused: sB [O, C] and A [C, D], compute dtype
  at::Tensor bias;               ///< [O] compute dtype, times output_scale; or undefined
  std::vector<LoraAdapter> adapters;
  at::Tensor column_owners;  ///< [C] int64: the adapter of each column; undefined: there is only one
  at::Tensor grad_weight;    ///< [O, D] fp32, accumulated into, or undefined (frozen)
  at::Tensor grad_bias;      ///< [O] fp32, accumulated into, or undefined

  bool is_fused() const { return weight.defined(); }
  at::Tensor weight_and_columns() const { return weight.narrow(0, 0, out_features); }  ///< [W | sB]
  at::Tensor weight_and_rows() const { return weight.narrow(1, 0, in_features); }      ///< [W ; A]
  at::Tensor base_weight() const { return is_fused() ? weight_and_columns().narrow(1, 0, in_features) : base; }  ///< W
  at::Tensor scaled_b() const {
    return is_fused() ? weight_and_columns().narrow(1, in_features, num_columns) : b_columns;  ///< sB
  }
  at::Tensor lora_a() const {
    return is_fused() ? weight_and_rows().narrow(0, out_features, num_columns) : a_rows;
  }  ///< A
};

/// The source of a micro-batch's dropout masks. If not `enabled` (evaluation), there are no masks.
struct DropoutContext {
  bool enabled = false;
  at::Tensor keys;                            ///< [adapters of the model, 2] int32: kernels/dropout/dropout.h
  at::Tensor token_document, token_position;  ///< [N] int32: document in the global step, token in its document
};

enum class Product {
  kGemm,
  kSkinny  ///< for few rows; a row gets the same bits in any batch (kernels/gemm/gemm.h)
};

/// How a forward pass computes linears.
struct LinearPass {
  DropoutContext dropout{};
  at::Tensor scratch{};     ///< [N, >= D] if an adapter needs it
  bool use_adapter = true;  ///< false: the base model, from the same weights
  Product product = Product::kGemm;
  at::Tensor row_owners{};  ///< [N, 1] int64: the adapter of each token, -1 = none; undefined: all adapters
};

/// to = from * scale.
using AddCopy = std::function<void(const at::Tensor& from, double scale, const at::Tensor& to)>;

/// Adds the copies that write sB and A next to the weight; run them after the masters have changed.
void add_adapter_copies(const Projection& projection, const AddCopy& add);

/// Fills the last C columns of input [N, D + C], whose first D columns hold x.
void fill_adapter_columns(const Projection& projection, at::Tensor& input, const LinearPass& pass);

/// y = output_scale (x W^T + S (sB)^T) + bias (+ residual). input [N, D + C] with its columns filled; y [N, O];
/// residual [N, O] or undefined, may not be y.
void projection_forward(const Projection& projection, const at::Tensor& input, const at::Tensor& residual,
                        at::Tensor& y, const LinearPass& pass);

/// The backward, with the adapter. d_output [N, d_output_width()]: dy in its first O columns, scratch in the rest;
/// input as in the forward. d_input [N, d_input_width()]: its first D columns become dx if need_input_grad, the rest is
/// scratch. Accumulates into every defined gradient of the projection.
void projection_backward(Projection& projection, const at::Tensor& input, at::Tensor& d_output, at::Tensor& d_input,
                         bool need_input_grad, const LinearPass& pass);

/// y = extras.alpha x weight^T + extras.bias + extras.residual. x [N, D], weight [O, D], also bf16 with an fp32 x, y
/// [N, O].
void linear_product(Product kind, const at::Tensor& x, const at::Tensor& weight, const kernels::GemmExtras& extras,
                    at::Tensor& y);

}  // namespace lora_train::model
