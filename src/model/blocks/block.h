// The computation of a block. Each kind of block has a shape (block_shapes.h) and one file for its code; layer.cpp
// selects the code.
#pragma once

#include "lora_train/model/layer.h"

namespace lora_train::model {

struct BlockForward {
  const ForwardPass& pass;
  int64_t layer = 0;
  const BlockWeights& weights;
  BlockActivations& saved;
};

struct BlockCode {
  /// The saved buffer [N, input_width()] that the block's last projection reads. Its output is the branch.
  std::size_t columns;
  /// Fills all buffers that the backward needs, up to `columns`.
  void (*fill_saved)(const BlockForward& block);
  /// Recomputes the buffers that kCheap or kGateUp drops.
  void (*recompute)(const BlockForward& block, Recompute mode);
  /// d_columns: the gradient of `columns`. d_hidden [N, D]: gradient of the block's output on entry, of its input on
  /// return (when need_input_grad).
  void (*backward)(const BackwardPass& pass, int64_t layer, BlockWeights& weights, BlockActivations& saved,
                   const at::Tensor& d_columns, at::Tensor& d_hidden, bool need_input_grad);
};

namespace attention {
extern const BlockCode code;
}
namespace linear_attention {
extern const BlockCode code;
}
namespace mlp {
extern const BlockCode code;
}

/// The first D columns of a projection's input buffer, without its adapter columns.
inline at::Tensor features(const Projection& projection, const at::Tensor& wide) {
  return wide.narrow(1, 0, projection.in_features);
}

/// Copies columns of rows to columns that are laid out otherwise. Both have the same shape.
void copy_columns(const char* name, const at::Tensor& from, const at::Tensor& to);
/// Writes the input norm of a block to the input buffer of a projection, and fills the adapter columns.
void norm_and_columns(const BlockForward& block, const SmallWeight& norm, const Projection& projection,
                      at::Tensor& normed, at::Tensor& rstd);
/// The backward of a block's first projection and of the norm before it: d_hidden += the gradient of the block's input,
/// unless nothing needs it. d_output [N, d_output_width()] is the gradient of the projection's output.
void input_backward(const BackwardPass& pass, SmallWeight& norm, Projection& projection, const at::Tensor& normed,
                    at::Tensor& d_output, const at::Tensor& input, const at::Tensor& rstd, at::Tensor& d_hidden,
                    bool need_input_grad);

}  // namespace lora_train::model
