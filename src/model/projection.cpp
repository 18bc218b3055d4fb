#include "lora_train/model/projection.h"

#include <ATen/ATen.h>

#include "linear_product.h"
#include "lora_columns.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/launch/graph.h"

// N tokens, D input features, O outputs, C adapter columns.
namespace lora_train::model {
namespace {

void add_weight_gradients(Projection& projection, const at::Tensor& x, const at::Tensor& dy) {
  if (projection.grad_weight.defined()) {
    kernels::gemm(dy.t(), x, projection.grad_weight, {.accumulate = true, .alpha = projection.output_scale});
  }
  if (!projection.grad_bias.defined()) return;
  kernels::run_or_capture([grad = projection.grad_bias, dy, scale = projection.output_scale] {
    grad.add_(at::sum(dy, {0}, false, at::kFloat), scale);
  });
}

/// The gradients of the adapters, and dx: base and adapter in one product where they lie in one matrix. In between, dS is the
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
