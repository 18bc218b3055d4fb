#include "lora_train/model/input_offload.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lora_train/kernels/launch/graph.h"

namespace lora_train::model {
namespace {

c10::Stream compute_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

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

// Page-locked memory that a failed device may still read is leaked: freeing it would make LibTorch throw in a destructor.
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

}  // namespace lora_train::model
