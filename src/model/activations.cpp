#include "lora_train/model/activations.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::model {
namespace {

c10::Stream compute_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

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

InputOffload::InputOffload(const ActivationPlan& plan, std::vector<at::Tensor> ring) : ring_(std::move(ring)) {
  const at::Tensor& first = ring_.front();
  const at::Device device = first.device();
  const auto options = first.options().device(device.is_meta() ? at::kMeta : at::kCPU).pinned_memory(device.is_cuda());
  for (const std::int64_t count : page_locked_groups(plan.num_offloaded, static_cast<std::int64_t>(first.nbytes()))) {
    for (const at::Tensor& input : at::empty({count, first.size(0), first.size(1)}, options).unbind()) {
      inputs_.push_back(input);
    }
  }
  if (!device.is_cuda()) return;
  stream_ = c10::impl::VirtualGuardImpl(at::kCUDA).getNewStream(device);
  before_.emplace(at::kCUDA);
  for (auto& event : copied_) event.emplace(at::kCUDA);
}

// Page-locked memory that a failed device may still read is leaked: freeing it would make LibTorch throw in a
// destructor.
InputOffload::~InputOffload() {
  if (!stream_) return;
  try {
    // The device: a replay copies in the compute stream.
    c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(stream_->device_index());
  } catch (...) {
    new std::vector<at::Tensor>(std::move(inputs_));
  }
}

void InputOffload::enqueue_copy(std::int64_t layer, std::int64_t num_tokens, const at::Tensor& from,
                                const at::Tensor& to) {
  at::Tensor target = to.narrow(0, 0, num_tokens);
  const at::Tensor source = from.narrow(0, 0, num_tokens);
  if (!stream_) {
    return kernels::run_or_capture([target, source] { target.copy_(source); });
  }
  before_->record(compute_stream(ring_.front().device()));
  before_->block(*stream_);
  {
    const c10::StreamGuard in_stream(*stream_);
    target.copy_(source, /*non_blocking=*/true);
  }
  copied_[static_cast<std::size_t>(layer % kInputRing)]->record(*stream_);
}

void InputOffload::wait_for_copy(std::int64_t layer) {
  if (stream_) copied_[static_cast<std::size_t>(layer % kInputRing)]->block(compute_stream(ring_.front().device()));
}

void InputOffload::begin_forward(std::int64_t layer, std::int64_t num_tokens) {
  if (is_offloaded(layer)) {
    enqueue_copy(layer, num_tokens, on_device(layer), inputs_[static_cast<std::size_t>(layer)]);
  }
  const std::int64_t overwritten = layer + 1 - kInputRing;
  if (is_offloaded(overwritten)) wait_for_copy(overwritten);
}

void InputOffload::begin_backward(std::int64_t layer, std::int64_t first_layer, std::int64_t num_tokens) {
  const std::int64_t next = layer + 1 - kInputRing;
  if (is_offloaded(next) && next >= first_layer) {
    enqueue_copy(next, num_tokens, inputs_[static_cast<std::size_t>(next)], on_device(next));
  }
  if (is_offloaded(layer)) wait_for_copy(layer);
}

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
  return gradient(name, num_tokens).narrow(1, 0, projection.d_output_width());
}

at::Tensor Activations::gradient(std::string_view name, std::int64_t num_tokens) const {
  return buffer(plan_.gradients.find(name)->second).narrow(0, 0, num_tokens);
}

std::vector<std::pair<std::string, at::Tensor>> Activations::named_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (std::size_t i = 0; i < buffers_.size(); ++i) named.emplace_back(plan_.buffers[i].name, buffers_[i]);
  return named;
}

}  // namespace lora_train::model
