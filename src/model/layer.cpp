#include "lora_train/model/layer.h"

#include <algorithm>

#include "blocks/block.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"

namespace lora_train::model {
namespace {

const BlockCode& code_of(BlockKind kind) {
  switch (kind) {
    case BlockKind::kAttention: return attention::code;
    case BlockKind::kGatedDelta: return linear_attention::code;
    case BlockKind::kMlp: break;
  }
  return mlp::code;
}

const LayerShape& shape_of(const ForwardPass& pass, int64_t layer) {
  return pass.shape.layers[static_cast<std::size_t>(layer)];
}

/// Number of tokens that the buffers of a block hold: all, or a tile.
int64_t tile_tokens(const BlockShape& shape, const BlockActivations& activations) {
  int64_t tokens = activations.input.size(0);
  for (std::size_t i = 0; i < shape.saved.size(); ++i) {
    if (shape.saved[i].is_tiled && activations.saved[i].defined()) {
      tokens = std::min(tokens, activations.saved[i].size(0));
    }
  }
  return tokens;
}

bool is_tiled(const BlockShape& shape, const BlockActivations& activations) {
  return tile_tokens(shape, activations) < activations.input.size(0);
}

/// Calls run(pass, activations, rows) for each tile of the block, with the data of its tokens. rows(tensor) narrows a
/// tensor of all tokens. Dropout draws the masks of all tokens, because each token has its document and position.
template <class Run>
void for_each_tile(const ForwardPass& pass, const BlockShape& shape, BlockActivations& all, const Run& run) {
  if (!is_tiled(shape, all)) return run(pass, all, [](const at::Tensor& whole) { return whole; });
  const int64_t N = all.input.size(0), T = tile_tokens(shape, all);
  for (int64_t begin = 0; begin < N; begin += T) {
    const int64_t count = std::min(T, N - begin);
    const auto rows = [=](const at::Tensor& whole) { return whole.defined() ? whole.narrow(0, begin, count) : whole; };
    BlockActivations tile{rows(all.input), {}};
    for (std::size_t i = 0; i < shape.saved.size(); ++i) {
      const at::Tensor& buffer = all.saved[i];
      const bool holds_tile = shape.saved[i].is_tiled && buffer.defined();
      tile.saved.push_back(holds_tile ? buffer.narrow(0, 0, count) : rows(buffer));
    }
    ForwardPass of_tile = pass;
    DropoutContext& dropout = of_tile.linear.dropout;
    dropout.token_document = rows(dropout.token_document);
    dropout.token_position = rows(dropout.token_position);
    run(of_tile, tile, rows);
  }
}

/// The end of a block: output = input + branch, or input + norm(branch) if the block has an output norm.
struct Branch {
  const Projection& projection;  ///< computes the branch from `columns`
  const at::Tensor& columns;
  const SmallWeight& norm;
  at::Tensor& branch;  ///< [N, D], undefined without an output norm
  at::Tensor& rstd;    ///< [N] fp32, from the output norm

  Branch(const BlockCode& code, const BlockWeights& weights, BlockActivations& activations)
      : projection(weights.projections.back()),
        columns(activations.saved[code.columns]),
        norm(weights.small.back()),
        branch(activations.saved.end()[-2]),
        rstd(activations.saved.back()) {}
  bool has_norm() const { return norm.weight.defined(); }
};

void fill_saved(const BlockCode& code, const BlockForward& block) {
  code.fill_saved(block);
  const Branch b(code, block.weights, block.saved);
  if (b.has_norm()) projection_forward(b.projection, b.columns, {}, b.branch, block.pass.linear);
}

/// After fill_saved: writes the block's output [N, D].
void write_output(const BlockCode& code, const BlockForward& block, at::Tensor& output) {
  const at::Tensor& input = block.saved.input;
  const Branch b(code, block.weights, block.saved);
  if (!b.has_norm()) return projection_forward(b.projection, b.columns, input, output, block.pass.linear);
  kernels::rms_norm_forward(b.branch, b.norm.weight, block.pass.config.rms_norm_eps, output, b.rstd,
                            block.pass.config.norm_weight_offset, input);
}

/// The gradient of the last projection's output [N, d_output_width()]: d_hidden itself, rows of Activations::d_hidden,
/// or its gradient through the output norm.
at::Tensor branch_gradient(const BackwardPass& pass, const Branch& b, at::Tensor& norm_grad,
                           const at::Tensor& d_hidden) {
  const int64_t N = d_hidden.size(0);
  if (!b.has_norm()) return d_hidden.as_strided({N, b.projection.d_output_width()}, d_hidden.strides());
  at::Tensor wide = pass.buffers.gradient_of("d_branch", b.projection, N);
  at::Tensor d_branch = wide.narrow(1, 0, b.projection.out_features);
  kernels::rms_norm_backward(d_hidden, b.branch, b.norm.weight, b.rstd, d_branch, false, &norm_grad,
                             pass.forward.config.norm_weight_offset);
  return wide;
}

void block_backward(const BlockCode& code, const BackwardPass& pass, int64_t layer, BlockWeights& weights,
                    BlockActivations& saved, at::Tensor& d_hidden, bool need_input_grad) {
  Projection& last = weights.projections.back();
  at::Tensor d_columns = pass.buffers.d_input(last, d_hidden.size(0));
  at::Tensor d_output = branch_gradient(pass, Branch(code, weights, saved), weights.small.back().grad, d_hidden);
  projection_backward(last, saved.saved[code.columns], d_output, d_columns, true, pass.forward.linear);
  code.backward(pass, layer, weights, saved, d_columns, d_hidden, need_input_grad);
}

/// Runs all blocks. The output of the last one is written to `output`, or skipped if that is null.
void forward(const ForwardPass& pass, const LayerWeights& weights, int64_t layer, LayerActivations& saved,
             at::Tensor* output) {
  const auto& blocks = shape_of(pass, layer).blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockCode& code = code_of(blocks[i].kind);
    at::Tensor* const next = i + 1 < blocks.size() ? &saved[i + 1].input : output;
    if (next == nullptr && is_tiled(blocks[i], saved[i])) continue;  // the backward fills it tile by tile
    for_each_tile(pass, blocks[i], saved[i], [&](const ForwardPass& of_tile, BlockActivations& tile, const auto& rows) {
      const BlockForward block{of_tile, layer, weights[i], tile};
      fill_saved(code, block);
      if (next == nullptr) return;
      at::Tensor written = rows(*next);
      write_output(code, block, written);
    });
  }
}

void recompute(const ForwardPass& pass, const LayerWeights& weights, int64_t layer, LayerActivations& saved,
               Recompute mode) {
  if (mode == Recompute::kOff) return;
  if (mode == Recompute::kFull) return forward(pass, weights, layer, saved, nullptr);
  const auto& blocks = shape_of(pass, layer).blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    code_of(blocks[i].kind).recompute({pass, layer, weights[i], saved[i]}, mode);
  }
}

}  // namespace

void copy_columns(const char* name, const at::Tensor& from, const at::Tensor& to) {
  const kernels::WorkScope recorded(name, kernels::WorkClass::kCopy,
                                    [&](kernels::Work& work) { work.reads("from", from).writes("to", to); });
  kernels::run_or_capture([from, to] { at::Tensor(to).copy_(from); });
}

void norm_and_columns(const BlockForward& block, const SmallWeight& norm, const Projection& projection,
                      at::Tensor& normed, at::Tensor& rstd) {
  at::Tensor y = features(projection, normed);
  kernels::rms_norm_forward(block.saved.input, norm.weight, block.pass.config.rms_norm_eps, y, rstd,
                            block.pass.config.norm_weight_offset);
  fill_adapter_columns(projection, normed, block.pass.linear);
}

void input_backward(const BackwardPass& pass, SmallWeight& norm, Projection& projection, const at::Tensor& normed,
                    at::Tensor& d_output, const at::Tensor& input, const at::Tensor& rstd, at::Tensor& d_hidden,
                    bool need_input_grad) {
  const bool need_normed_grad = need_input_grad || norm.grad.defined();
  at::Tensor d_normed = pass.buffers.d_input(projection, d_hidden.size(0));
  projection_backward(projection, normed, d_output, d_normed, need_normed_grad, pass.forward.linear);
  if (!need_normed_grad) return;
  kernels::rms_norm_backward(features(projection, d_normed), input, norm.weight, rstd, d_hidden, true, &norm.grad,
                             pass.forward.config.norm_weight_offset);
}

void layer_forward(const ForwardPass& pass, const LayerWeights& weights, int64_t layer, LayerActivations& saved,
                   at::Tensor& output) {
  forward(pass, weights, layer, saved, &output);
}

void layer_backward(const BackwardPass& pass, LayerWeights& weights, int64_t layer, LayerActivations& saved,
                    at::Tensor& d_hidden, bool need_input_grad) {
  recompute(pass.forward, weights, layer, saved, pass.buffers.recompute(layer));
  const auto& blocks = shape_of(pass.forward, layer).blocks;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const bool need_grad = need_input_grad || i > 0;
    const BlockCode& code = code_of(blocks[i].kind);
    const bool fills_tiles = is_tiled(blocks[i], saved[i]);
    const auto run = [&](const ForwardPass& of_tile, BlockActivations& tile, const auto& rows) {
      if (fills_tiles) fill_saved(code, {of_tile, layer, weights[i], tile});
      at::Tensor d_rows = rows(d_hidden);
      block_backward(code, {of_tile, pass.attention, pass.buffers}, layer, weights[i], tile, d_rows, need_grad);
    };
    for_each_tile(pass.forward, blocks[i], saved[i], run);
  }
}

}  // namespace lora_train::model
