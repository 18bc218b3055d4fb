// The activation buffers of a forward and backward pass, allocated as activation_plan.h plans them.
// N tokens, D hidden, C adapter columns of a projection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <string_view>
#include <vector>

#include "lora_train/model/activation_plan.h"
#include "lora_train/model/input_offload.h"

namespace lora_train::model {

/// What a block keeps from forward to backward, narrowed to the tokens of a batch.
struct BlockActivations {
  at::Tensor input;  ///< [N, D] residual stream
  std::vector<at::Tensor>
      saved;  ///< per BlockShape::saved; undefined if the model has no such buffer; perhaps of a tile
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
