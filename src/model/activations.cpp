#include "lora_train/model/activations.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lora_train::model {
namespace {

at::Tensor allocate(const BufferShape& buffer, std::int64_t N, at::ScalarType dtype, at::Device device) {
  const at::ScalarType type = buffer.type == ElementType::kFloat ? at::kFloat : dtype;
  const auto options = at::TensorOptions(type).device(device);
  switch (buffer.layout) {
    case BufferShape::Layout::kVector: return at::empty({N}, options);
    case BufferShape::Layout::kTokenLast: return at::empty({buffer.width, N}, options);
    case BufferShape::Layout::kRows: break;
  }
  return at::empty({N, buffer.row_elements()}, options).narrow(1, 0, buffer.width);
}

}  // namespace

Activations::Activations(const ModelShape& shape, const ActivationOptions& options, std::vector<Recompute> recompute,
                         at::ScalarType dtype, at::Device device)
    : plan_(plan_activations(shape, options, recompute)), recompute_(std::move(recompute)) {
  for (const BufferShape& planned : plan_.buffers) {
    buffers_.push_back(allocate(planned, plan_.num_rows(planned), dtype, device));
  }
  if (plan_.num_offloaded > 0) {
    std::vector<at::Tensor> ring;
    for (std::size_t i = 0; i < kInputRing; ++i) ring.push_back(buffer(plan_.layers[i].front().input));
    offload_ = std::make_unique<InputOffload>(plan_, std::move(ring));
  }
  final_hidden = buffer(plan_.final_hidden);
  scratch = buffer(plan_.scratch);
  if (options.needs_backward) d_hidden = buffer(plan_.d_hidden).narrow(1, 0, shape.hidden_size);
}

at::Tensor Activations::buffer(std::int64_t index) const {
  return index == ActivationPlan::kNone ? at::Tensor() : buffers_[static_cast<std::size_t>(index)];
}

std::int64_t Activations::bytes() const { return plan_.bytes(static_cast<std::int64_t>(final_hidden.element_size())); }

LayerActivations Activations::layer(std::int64_t layer, std::int64_t num_tokens) const {
  const auto cut = [&](std::int64_t index) {
    if (index == ActivationPlan::kNone) return at::Tensor();
    const BufferShape& planned = plan_.buffers[static_cast<std::size_t>(index)];
    const bool is_token_last = planned.layout == BufferShape::Layout::kTokenLast;
    return buffer(index).narrow(is_token_last ? 1 : 0, 0, std::min(num_tokens, plan_.num_rows(planned)));
  };
  LayerActivations blocks;
  for (const ActivationPlan::Block& planned : plan_.layers[static_cast<std::size_t>(layer)]) {
    BlockActivations& block = blocks.emplace_back();
    block.input = cut(planned.input);
    block.saved.reserve(planned.saved.size());
    for (const std::int64_t index : planned.saved) block.saved.push_back(cut(index));
  }
  return blocks;
}

at::Tensor Activations::d_input(const ProjectionSizes& projection, std::int64_t num_tokens) const {
  return buffer(plan_.d_input).as_strided({num_tokens, projection.d_input_width()}, {projection.d_input_pitch(), 1});
}

at::Tensor Activations::gradient_of(std::string_view name, const ProjectionSizes& projection,
                                    std::int64_t num_tokens) const {
  const at::Tensor whole = buffer(plan_.gradients.find(name)->second);
  return whole.narrow(0, 0, num_tokens).narrow(1, 0, projection.d_output_width());
}

std::vector<std::pair<std::string, at::Tensor>> Activations::named_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (std::size_t i = 0; i < buffers_.size(); ++i) named.emplace_back(plan_.buffers[i].name, buffers_[i]);
  return named;
}

}  // namespace lora_train::model
