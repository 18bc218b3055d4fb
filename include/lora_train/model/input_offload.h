// Layer inputs in page-locked host memory (activation_offload). On the device, layers take turns with a ring of kInputRing
// inputs: while one layer computes, a stream of its own copies another one's input out (forward) or in (backward). Per token
// and layer, D elements move each way.
// N tokens, D hidden.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <optional>
#include <vector>

#include "lora_train/model/activation_plan.h"

namespace lora_train::model {

/// Enqueues copies and orders them by events; the host never waits. On a CPU, copies run at once, or are captured
/// (kernels/launch/graph.h). After a forward, and after a backward that reaches its first layer, the compute stream has waited for
/// every copy, so that a CUDA graph can capture either. Not thread-safe. Waits for the device when destroyed.
class InputOffload {
 public:
  /// `ring`: the layer inputs of `plan` on the device, [max_tokens, D].
  InputOffload(const ActivationPlan& plan, std::vector<at::Tensor> ring);
  ~InputOffload();
  InputOffload(const InputOffload&) = delete;
  InputOffload& operator=(const InputOffload&) = delete;

  /// Call it before the layer's forward, whose input is enqueued: sends the input to the host. The layer's output may then be
  /// enqueued.
  void begin_forward(std::int64_t layer, std::int64_t num_tokens);

  /// Call it before the layer's backward, for each layer from the last down to first_layer: fetches the input of the layer that
  /// comes after the next. The layer's own input is then in place.
  void begin_backward(std::int64_t layer, std::int64_t first_layer, std::int64_t num_tokens);

  /// [max_tokens, D] per offloaded layer.
  const std::vector<at::Tensor>& inputs() const { return inputs_; }

 private:
  bool is_offloaded(std::int64_t layer) const { return layer >= 0 && layer < std::ssize(inputs_); }
  const at::Tensor& on_device(std::int64_t layer) const { return ring_[static_cast<std::size_t>(layer % kInputRing)]; }
  /// Copies after all work that is enqueued now.
  void enqueue_copy(std::int64_t layer, std::int64_t num_tokens, const at::Tensor& from, const at::Tensor& to);
  void wait_for_copy(std::int64_t layer);

  std::vector<at::Tensor> ring_, inputs_;
  std::optional<c10::Stream> stream_;                         ///< as are all below, on a GPU only
  std::optional<c10::Event> before_;                          ///< the compute stream has come to a copy
  std::array<std::optional<c10::Event>, kInputRing> copied_;  ///< per place of the ring
};

}  // namespace lora_train::model
