#include "lora_train/model/layer.h"

#include <algorithm>

#include "blocks/block.h"

namespace lora_train::model {
namespace {

const BlockCode& code_of(BlockKind kind) { return kind == BlockKind::kMlp ? mlp::code : attention::code; }

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
      code.fill_saved(block);
      if (next == nullptr) return;
      at::Tensor written = rows(*next);
      code.write_output(block, written);
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
      if (fills_tiles) code.fill_saved({of_tile, layer, weights[i], tile});
      at::Tensor d_rows = rows(d_hidden);
      code.backward({of_tile, pass.attention, pass.buffers}, layer, weights[i], tile, d_rows, need_grad);
    };
    for_each_tile(pass.forward, blocks[i], saved[i], run);
  }
}

}  // namespace lora_train::model
