// The activation buffers of a forward and backward pass, allocated as activation_plan.h plans them, and layer inputs
// kept on the host. N tokens, D hidden, C adapter columns of a projection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lora_train/model/activation_plan.h"

namespace lora_train::model {

/// Enqueues copies and orders them by events; the host never waits. On a CPU, copies run at once, or are captured
/// (kernels/launch/graph.h). After a forward, and after a backward that reaches its first layer, the compute stream has
/// waited for every copy, so that a CUDA graph can capture either. Not thread-safe. Waits for the device when
/// destroyed.
class InputOffload {
 public:
  /// `ring`: the layer inputs of `plan` on the device, [max_tokens, D].
  InputOffload(const ActivationPlan& plan, std::vector<at::Tensor> ring);
  ~InputOffload();
  InputOffload(const InputOffload&) = delete;
  InputOffload& operator=(const InputOffload&) = delete;

  /// Call it before the layer's forward, whose input is enqueued: sends the input to the host. Then the layer's output
  /// may be enqueued.
  void begin_forward(std::int64_t layer, std::int64_t num_tokens);

  /// Call it before the layer's backward, for each layer from the last down to first_layer: fetches the input of the
  /// layer after the next one. The layer's own input is then in place.
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
  std::optional<c10::Stream> stream_;                         ///< this and all below: on a GPU only
  std::optional<c10::Event> before_;                          ///< the compute stream has reached a copy
  std::array<std::optional<c10::Event>, kInputRing> copied_;  ///< per place of the ring
};

/// The buffers that a block keeps from forward to backward, narrowed to the tokens of a batch.
struct BlockActivations {
  at::Tensor input;  ///< [N, D] residual stream
  std::vector<at::Tensor>
      saved;  ///< per BlockShape::saved; undefined if the model has no such buffer; may hold only a tile
};

using LayerActivations = std::vector<BlockActivations>;

/// Not thread-safe: each pass overwrites the buffers of the previous one.
class Activations {
 public:
  /// recompute: one entry per layer. On at::kMeta the buffers have no memory.
  Activations(const ModelShape& shape, const ActivationOptions& options, std::vector<Recompute> recompute,
              at::ScalarType dtype, at::Device device);

  /// The layer's buffers, one entry per block.
  LayerActivations layer(std::int64_t layer, std::int64_t num_tokens) const;
  Recompute recompute(std::int64_t layer) const { return recompute_[static_cast<std::size_t>(layer)]; }
  std::int64_t max_tokens() const { return plan_.options.max_tokens; }
  const ActivationPlan& plan() const { return plan_; }
  std::int64_t bytes() const;
  /// The host memory of layer inputs; null if they stay on the device.
  InputOffload* offload() const { return offload_.get(); }

  at::Tensor final_hidden;  ///< [max_tokens, D] output of the last layer
  at::Tensor d_hidden;      ///< [max_tokens, D] gradient of the residual stream; adapter columns follow it
  at::Tensor scratch;       ///< [max_tokens, widest input] if an adapter needs it; less with tiles

  /// Gradient of a projection's input with its columns: [num_tokens, d_input_width()], one buffer for all.
  at::Tensor d_input(const ProjectionSizes& projection, std::int64_t num_tokens) const;
  /// A buffer of BlockShape::gradients as the gradient of a projection's output: [num_tokens, d_output_width()].
  at::Tensor gradient_of(std::string_view name, const ProjectionSizes& projection, std::int64_t num_tokens) const;
  /// One that is no projection's: [num_tokens, width].
  at::Tensor gradient(std::string_view name, std::int64_t num_tokens) const;
  /// Every buffer under its name, for reports.
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;

 private:
  at::Tensor buffer(std::int64_t index) const;

  ActivationPlan plan_;
  std::vector<Recompute> recompute_;
  std::vector<at::Tensor> buffers_;  ///< one per entry of plan_.buffers
  std::unique_ptr<InputOffload> offload_;
};

}  // namespace lora_train::model
