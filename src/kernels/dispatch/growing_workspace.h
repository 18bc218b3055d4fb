// A device workspace shared by the kernels of one stream. It grows to the largest request and never shrinks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

namespace lora_train::kernels {

/// Not thread-safe.
class GrowingWorkspace {
 public:
  /// Returns at least `bytes` bytes. If a larger buffer replaces one that was returned during a capture, the old one is kept,
  /// because the graph still uses it.
  void* at_least(std::int64_t bytes, at::Device device, bool is_capturing) {
    if (!memory_.defined() || memory_.numel() < bytes) {
      if (is_in_graph_) kept_.push_back(memory_);
      memory_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
      is_in_graph_ = false;
    }
    is_in_graph_ = is_in_graph_ || is_capturing;
    return memory_.mutable_data_ptr();
  }
  std::size_t num_kept() const { return kept_.size(); }

 private:
  at::Tensor memory_;
  std::vector<at::Tensor> kept_;
  bool is_in_graph_ = false;
};

}  // namespace lora_train::kernels
