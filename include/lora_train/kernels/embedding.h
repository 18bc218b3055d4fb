// Token embedding with an optional list of trainable rows. V vocabulary, D hidden, N tokens, k trainable rows.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::kernels {

/// Rows of the embedding (and of a tied head) that are trained instead of the frozen ones.
struct TrainableRows {
  at::Tensor indices;  ///< [k] int64, distinct, in [0, V); undefined = none
  at::Tensor values;   ///< [k, D] fp32 masters
  at::Tensor grads;    ///< [k, D] fp32, added to
};

/// out [N, D] (dtype of weight) = weight[ids], with trainable rows in place of the frozen ones. ids [N] int32.
void embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const TrainableRows& rows, at::Tensor& out);

/// Adds the gradient of every token to dweight [V, D] fp32 (undefined: frozen) and to rows.grads. dout [N, D].
void embedding_backward(const at::Tensor& ids, const at::Tensor& dout, at::Tensor* dweight, TrainableRows& rows);

}  // namespace lora_train::kernels
