#include "lora_train/model/projection.h"

#include <algorithm>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dropout/dropout.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/kernels/lora/lora.h"

// N tokens, D input features, O outputs, C adapter columns.

namespace lora_train::model {
namespace {

const kernels::GemmExtras kThin{.work_class = kernels::WorkClass::kLora};

bool drops(const LoraAdapter& adapter, const DropoutContext& dropout) {
  return dropout.enabled && adapter.dropout > 0.0;
}

/// Memory for x [N, D]. Rows of scratch are narrower than x if x is a tile.
at::Tensor scratch_like(const at::Tensor& x, const LinearPass& pass) {
  return pass.scratch.as_strided(x.sizes(), {std::max(pass.scratch.stride(0), x.size(1)), 1});
}

/// x with this adapter's dropout mask applied, in scratch.
at::Tensor masked(const LoraAdapter& adapter, const at::Tensor& x, const LinearPass& pass) {
  const DropoutContext& dropout = pass.dropout;
  at::Tensor out = scratch_like(x, pass);
  kernels::dropout_forward(x, dropout.token_document, dropout.token_position, dropout.keys[adapter.index],
                           adapter.dropout, out);
  return out;
}

/// Zeroes the values that other adapters than a token's own wrote into its columns of s [N, C].
void keep_own_columns(const Projection& projection, const LinearPass& pass, at::Tensor& s) {
  if (!pass.row_owners.defined() || !projection.column_owners.defined()) return;
  s.masked_fill_(at::ne(projection.column_owners, pass.row_owners), 0);
}

/// True if any adapter of the projection has a dropout mask in this pass.
bool has_masks(const Projection& projection, const DropoutContext& dropout) {
  return std::ranges::any_of(projection.adapters, [&](const LoraAdapter& adapter) { return drops(adapter, dropout); });
}

/// The destinations of each adapter's dB. `scale` multiplies the gradients.
std::vector<kernels::LoraPart> parts_of_b(const Projection& projection, double scale) {
  std::vector<kernels::LoraPart> parts;
  for (const auto& adapter : projection.adapters) {
    parts.push_back({adapter.column, adapter.rank, adapter.out_begin, adapter.out_end, scale * adapter.scale,
                     adapter.grads[kLoraB]});
  }
  return parts;
}

/// Adds `scale` times dA of every adapter to its gradient. x [N, D], ds [N, C].
void add_gradients_of_a(const Projection& projection, const at::Tensor& x, const at::Tensor& ds, double scale,
                        const LinearPass& pass) {
  std::vector<kernels::LoraPart> unmasked;  // one pass over x for all of them
  for (const auto& adapter : projection.adapters) {
    const kernels::LoraPart part{adapter.column, adapter.rank, 0, 0, scale, adapter.grads[kLoraA]};
    if (drops(adapter, pass.dropout)) {
      kernels::lora_grad_a(ds, masked(adapter, x, pass), {part});
    } else {
      unmasked.push_back(part);
    }
  }
  if (!unmasked.empty()) kernels::lora_grad_a(ds, x, unmasked);
}

/// dx += scale dS A, through the dropout masks if there are any.
void add_adapter_input_gradient(const Projection& projection, const at::Tensor& ds, at::Tensor& dx, double scale,
                                const LinearPass& pass) {
  const kernels::GemmExtras add{.accumulate = true, .alpha = scale, .work_class = kernels::WorkClass::kLora};
  if (!has_masks(projection, pass.dropout)) return kernels::gemm(ds, projection.lora_a(), dx, add);
  for (const auto& adapter : projection.adapters) {
    const at::Tensor ds_part = ds.narrow(1, adapter.column, adapter.rank);
    const at::Tensor a = projection.lora_a().narrow(0, adapter.column, adapter.rank);
    if (!drops(adapter, pass.dropout)) {
      kernels::gemm(ds_part, a, dx, add);
      continue;
    }
    at::Tensor dx_part = scratch_like(dx, pass);
    kernels::gemm(ds_part, a, dx_part, {.alpha = scale, .work_class = kernels::WorkClass::kLora});
    const at::Tensor part = masked(adapter, dx_part, pass);  // in place: masked() writes to its input
    kernels::run_or_capture([dx, part] { dx.add_(part); });
  }
}

void add_weight_gradients(Projection& projection, const at::Tensor& x, const at::Tensor& dy) {
  if (projection.grad_weight.defined()) {
    kernels::gemm(dy.t(), x, projection.grad_weight, {.accumulate = true, .alpha = projection.output_scale});
  }
  if (!projection.grad_bias.defined()) return;
  kernels::run_or_capture([grad = projection.grad_bias, dy, scale = projection.output_scale] {
    grad.add_(at::sum(dy, {0}, false, at::kFloat), scale);
  });
}

/// The gradients of the adapters, and dx: base and adapter in one product if they share a matrix. In between, dS is the
/// gradient of S; it includes output_scale only if the product applied it.
void adapted_backward(Projection& projection, const at::Tensor& input, at::Tensor& d_output, at::Tensor& d_input,
                      bool need_input_grad, const LinearPass& pass) {
  const int64_t D = projection.in_features, O = projection.out_features, C = projection.num_columns;
  const double scale = projection.output_scale;
  const at::Tensor dy = d_output.narrow(1, 0, O), x = input.narrow(1, 0, D), s = input.narrow(1, D, C);
  const bool is_beside_dy = projection.has_columns(GradientColumns::kBesideOutput);
  const bool is_in_product = projection.is_fused() && !is_beside_dy && need_input_grad;
  at::Tensor dx = d_input.narrow(1, 0, D), ds = is_beside_dy ? d_output.narrow(1, O, C) : d_input.narrow(1, D, C);
  if (is_in_product) {
    kernels::gemm(dy, projection.weight_and_columns(), d_input, {.alpha = scale});  // [dx | dS]
    kernels::lora_grad_b(dy, s, parts_of_b(projection, scale));
  } else {
    kernels::lora_grad_s_and_b(dy, projection.scaled_b(), s, ds, parts_of_b(projection, scale));
  }
  const double ds_scale = is_in_product ? 1 : scale;
  add_gradients_of_a(projection, x, ds, ds_scale, pass);
  if (!need_input_grad) return;
  if (projection.is_fused() && is_beside_dy && !has_masks(projection, pass.dropout)) {
    return kernels::gemm(d_output, projection.weight_and_rows(), dx, {.alpha = scale});
  }
  if (!is_in_product) kernels::gemm(dy, projection.base_weight(), dx, {.alpha = scale});
  add_adapter_input_gradient(projection, ds, dx, ds_scale, pass);
}

}  // namespace

void linear_product(Product kind, const at::Tensor& x, const at::Tensor& weight, const kernels::GemmExtras& extras,
                    at::Tensor& y) {
  if (kind == Product::kSkinny) {
    return kernels::skinny_gemm(x, weight, extras.bias, extras.residual, y, extras.alpha);
  }
  kernels::gemm(x, weight.t(), y, extras);
}

void fill_adapter_columns(const Projection& projection, at::Tensor& input, const LinearPass& pass) {
  if (projection.num_columns == 0 || !pass.use_adapter) return;
  const at::Tensor x = input.narrow(1, 0, projection.in_features), a = projection.lora_a();
  at::Tensor s = input.narrow(1, projection.in_features, projection.num_columns);
  if (pass.product == Product::kSkinny || !has_masks(projection, pass.dropout)) {
    linear_product(pass.product, x, a, kThin, s);
    return keep_own_columns(projection, pass, s);
  }
  const auto fill = [&](const at::Tensor& from, int64_t column, int64_t count) {
    at::Tensor part = s.narrow(1, column, count);
    kernels::gemm(from, a.narrow(0, column, count).t(), part, kThin);
  };
  for (const auto& adapter : projection.adapters) {
    fill(drops(adapter, pass.dropout) ? masked(adapter, x, pass) : x, adapter.column, adapter.rank);
  }
  const int64_t used = projection.adapters.back().column + projection.adapters.back().rank;
  if (used < projection.num_columns) fill(x, used, projection.num_columns - used);  // unused rows of A are zero
}

void add_adapter_copies(const Projection& projection, const AddCopy& add) {
  for (const auto& adapter : projection.adapters) {
    const at::Tensor b = projection.scaled_b().narrow(0, adapter.out_begin, adapter.out_end - adapter.out_begin);
    add(adapter.masters[kLoraB], adapter.scale, b.narrow(1, adapter.column, adapter.rank));
    add(adapter.masters[kLoraA], 1.0, projection.lora_a().narrow(0, adapter.column, adapter.rank));
  }
}

void projection_forward(const Projection& projection, const at::Tensor& input, const at::Tensor& residual,
                        at::Tensor& y, const LinearPass& pass) {
  const kernels::GemmExtras extras{.bias = projection.bias, .residual = residual, .alpha = projection.output_scale};
  const bool is_adapted = projection.num_columns > 0 && pass.use_adapter;
  if (is_adapted && projection.is_fused()) {
    return linear_product(pass.product, input, projection.weight_and_columns(), extras, y);
  }
  linear_product(pass.product, input.narrow(1, 0, projection.in_features), projection.base_weight(), extras, y);
  if (!is_adapted) return;
  const at::Tensor columns = input.narrow(1, projection.in_features, projection.num_columns);
  const double alpha = projection.output_scale;
  if (pass.product == Product::kSkinny) return kernels::skinny_gemm(columns, projection.scaled_b(), {}, y, y, alpha);
  kernels::gemm(columns, projection.scaled_b().t(), y,
                {.accumulate = true, .alpha = alpha, .work_class = kernels::WorkClass::kLora});
}

void projection_backward(Projection& projection, const at::Tensor& input, at::Tensor& d_output, at::Tensor& d_input,
                         bool need_input_grad, const LinearPass& pass) {
  const at::Tensor dy = d_output.narrow(1, 0, projection.out_features);
  add_weight_gradients(projection, input.narrow(1, 0, projection.in_features), dy);
  if (projection.num_columns > 0) {
    return adapted_backward(projection, input, d_output, d_input, need_input_grad, pass);
  }
  at::Tensor dx = d_input.narrow(1, 0, projection.in_features);
  if (need_input_grad) kernels::gemm(dy, projection.base_weight(), dx, {.alpha = projection.output_scale});
}

}  // namespace lora_train::model
