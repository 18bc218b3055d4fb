#include "lora_train/model/layer.h"

#include "blocks/block.h"

namespace lora_train::model {
namespace {

const BlockCode& code_of(BlockKind kind) {
  switch (kind) {
    case BlockKind::kMlp: return mlp::code;
    case BlockKind::kAttention: break;
  }
  return attention::code;
}

const LayerShape& shape_of(const ForwardPass& pass, int64_t layer) {
  return pass.shape.layers[static_cast<std::size_t>(layer)];
}

/// Runs all blocks. The output of the last one is written to `output`, or skipped if that is null.
void forward(const ForwardPass& pass, const LayerWeights& weights, int64_t layer, LayerActivations& saved,
             at::Tensor* output) {
  const auto& blocks = shape_of(pass, layer).blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockCode& code = code_of(blocks[i].kind);
    const BlockForward block{pass, layer, weights[i], saved[i]};
    code.fill_saved(block);
    at::Tensor* const next = i + 1 < blocks.size() ? &saved[i + 1].input : output;
    if (next != nullptr) code.write_output(block, *next);
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
    code_of(blocks[i].kind).backward(pass, layer, weights[i], saved[i], d_hidden, need_grad);
  }
}

}  // namespace lora_train::model
