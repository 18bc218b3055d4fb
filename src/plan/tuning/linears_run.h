// The linears of a decoder layer with their adapters, forward and backward as in training, on random numbers: what autotuning
// (tuning_cases.h) and bench/gpu_bench measure.
// N tokens, D input features, O outputs, C adapter columns.
#pragma once

#include <string>
#include <vector>

#include "lora_train/model/projection.h"

namespace lora_train::plan {

/// Memory for the projections of a layer with either row pitch. Several runs may share it, one at a time. Values are normal:
/// zeros would let a GPU run faster than training does.
struct LinearsMemory {
  LinearsMemory(const model::LayerShape& layer, std::int64_t num_tokens, at::ScalarType dtype, at::Device device);

  std::int64_t num_tokens;
  at::Tensor weight, input, output, d_input, residual;  ///< flat
};

/// The first layer of the model that has an adapter; the first layer if none has.
const model::LayerShape& first_adapted_layer(const model::ModelShape& shape);

/// "q|k|v", "gate|up", "o"
std::string short_name(const model::ProjectionShape& projection);

class LinearsRun {
 public:
  /// Views of the memory, laid out as `shapes` say. The shapes may differ from those of the layer that the memory was made for
  /// in row_pitch and gradient_columns.
  LinearsRun(const std::vector<model::ProjectionShape>& shapes, const LinearsMemory& memory);

  /// Fills the adapter columns of the input, and multiplies; the last projection of a block adds a residual.
  void forward(std::size_t index);
  /// dx, and the gradients of the adapters.
  void backward(std::size_t index);
  void run_all();
  const model::Projection& projection(std::size_t index) const { return linears_[index].projection; }
  std::size_t size() const { return linears_.size(); }

 private:
  struct Linear {
    model::Projection projection;
    at::Tensor input, residual, output, d_output, d_input;
  };
  std::vector<Linear> linears_;
};

/// The projections of a layer, in order.
std::vector<model::ProjectionShape> projections_of(const model::LayerShape& layer);

}  // namespace lora_train::plan
