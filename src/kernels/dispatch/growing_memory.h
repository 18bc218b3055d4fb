// Memory that kernels of one stream share, as much as was ever asked for.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

namespace lora_train::kernels {

/// Not thread-safe.
class GrowingMemory {
 public:
  /// At least this many bytes. What was given while work was being recorded stays as it is when larger memory takes its place:
  /// graphs go on using it.
  void* at_least(std::int64_t bytes, at::Device device, bool is_recording) {
    if (!memory_.defined() || memory_.numel() < bytes) {
      if (is_in_graph_) kept_.push_back(memory_);
      memory_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
      is_in_graph_ = false;
    }
    is_in_graph_ = is_in_graph_ || is_recording;
    return memory_.mutable_data_ptr();
  }
  std::size_t num_kept() const { return kept_.size(); }

 private:
  at::Tensor memory_;
  std::vector<at::Tensor> kept_;
  bool is_in_graph_ = false;
};

}  // namespace lora_train::kernels
