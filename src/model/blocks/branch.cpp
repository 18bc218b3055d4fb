// The parts common to all blocks: the norm at their start, and the residual addition at their end.
#include <ATen/ATen.h>

#include "block.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"

namespace lora_train::model {

void norm_and_columns(const BlockForward& block, const NormWeight& norm, const Projection& projection,
                      at::Tensor& normed, at::Tensor& rstd) {
  at::Tensor y = features(projection, normed);
  kernels::rms_norm_forward(block.saved.input, norm.weight, block.pass.config.rms_norm_eps, y, rstd,
                            block.pass.config.norm_weight_offset);
  fill_adapter_columns(projection, normed, block.pass.linear);
}

void input_norm_backward(const BackwardPass& pass, NormWeight& norm, const Projection& projection,
                         const at::Tensor& d_normed, const at::Tensor& input, const at::Tensor& rstd,
                         at::Tensor& d_hidden) {
  kernels::rms_norm_backward(features(projection, d_normed), input, norm.weight, rstd, d_hidden, true, &norm.grad,
                             pass.forward.config.norm_weight_offset);
}

void fill_branch(const BlockForward& block, const Branch& branch) {
  if (!branch.norm.weight.defined()) return;
  projection_forward(branch.projection, branch.columns, {}, branch.branch, block.pass.linear);
}

void add_branch(const BlockForward& block, const Branch& branch, at::Tensor& output) {
  const at::Tensor& input = block.saved.input;
  if (!branch.norm.weight.defined()) {
    return projection_forward(branch.projection, branch.columns, input, output, block.pass.linear);
  }
  kernels::rms_norm_forward(branch.branch, branch.norm.weight, block.pass.config.rms_norm_eps, output, branch.rstd,
                            block.pass.config.norm_weight_offset, input);
}

at::Tensor branch_gradient(const BackwardPass& pass, const Branch& branch, at::Tensor& norm_grad,
                           const at::Tensor& d_hidden) {
  const int64_t N = d_hidden.size(0);
  if (!branch.norm.weight.defined()) {
    return d_hidden.as_strided({N, branch.projection.d_output_width()}, d_hidden.strides());
  }
  at::Tensor wide = pass.buffers.gradient_of("d_branch", branch.projection, N);
  at::Tensor d_branch = wide.narrow(1, 0, branch.projection.out_features);
  kernels::rms_norm_backward(d_hidden, branch.branch, branch.norm.weight, branch.rstd, d_branch, false, &norm_grad,
                             pass.forward.config.norm_weight_offset);
  return wide;
}

}  // namespace lora_train::model
