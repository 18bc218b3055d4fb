// The weights of a run. Three questions are kept apart: the format of a stored linear (per linear, from its tensors), its
// conversion to a compute view (a RowSink, row_sink.h), and where the bytes live until a layer is acquired (the class).
#pragma once

#include <c10/core/TensorOptions.h>

#include <functional>
#include <memory>

#include "lora_train/kernels/cast.h"
#include "lora_train/model/trainables.h"
#include "lora_train/model/weights.h"

namespace lora_train::storage {
class WeightFiles;
}

namespace lora_train::model {

/// What is trained besides adapters.
enum class TrainedWeights { kNone, kAll };

/// The trained tensors of a run: A and B of every adapter under PEFT's names, or with kAll every weight under its Hugging
/// Face name. Values start at zero. On at::kMeta they have no memory.
Trainables make_trainables(const ModelConfig& config, const ModelShape& shape, TrainedWeights trained,
                           at::Device device = at::kCPU);

/// The total number of elements of these tensors.
std::int64_t num_trained(const ModelConfig& config, const ModelShape& shape, TrainedWeights trained);

struct WeightOptions {
  at::ScalarType dtype = at::kFloat;  ///< compute dtype
  at::Device device = at::kCPU;
  TrainedWeights trained = TrainedWeights::kNone;
};

/// Layers in compute layout with their adapter columns, bound to the trained tensors that they are derived from.
class ComputeWeights : public BaseWeights {
 public:
  LayerWeights& acquire(int64_t layer, Pass) override { return layers_[static_cast<std::size_t>(layer)]; }
  void release(int64_t, Pass) override {}
  OuterWeights& acquire_outer(Pass) override { return outer_; }
  void release_outer(Pass) override {}
  void refresh() override { copies_.run(); }

 protected:
  /// Allocates nothing. `parameters` outlives the object.
  ComputeWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                 const WeightOptions& options);

  using Load = std::function<void(const std::string& name, const at::Tensor& target)>;
  /// Allocates a layer and calls `load` for each of its checkpoint tensors, with the tensor to fill.
  void fill_layer(int64_t layer, const Load& load);
  void fill_outer(const Load& load);
  /// Adds the copies that write the layer's adapter columns.
  void add_columns(int64_t layer, kernels::ScaledCopies& copies) const;
  /// Multiplies biases by output_scale, as the forward expects.
  static void scale_biases(LayerWeights& layer);
  void drop_layer(int64_t layer);
  /// For full fine-tuning. Call it after all layers are filled.
  void bind_trained_weights();

  const ModelConfig config_;
  const ModelShape shape_;
  Trainables& parameters_;
  const WeightOptions options_;
  std::vector<LayerWeights> layers_;
  OuterWeights outer_;
  kernels::ScaledCopies copies_;  ///< what refresh() writes: adapter columns, and in full fine-tuning every weight

 private:
  void bind_adapters(const ProjectionShape& shape, int64_t layer, Projection& projection);
};

/// Keeps all weights in device memory.
class ResidentWeights : public ComputeWeights {
 public:
  /// Copies every weight out of `files` (already checked by check_weights) into the compute dtype, in several threads, and
  /// releases the mapped pages afterwards. With kAll it fills the masters too. If `files` is null, the memory stays
  /// uninitialised for the caller to fill; on at::kMeta nothing is allocated. Throws StopError.
  ResidentWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                  const WeightOptions& options, const storage::WeightFiles* files = nullptr);

 private:
  void fill(const Load& load);
};

/// Keeps one decoder layer in memory at a time, on the CPU: acquire() reads it from the files and writes the adapter columns,
/// release() frees it. For a single pass over a model that may not fit into memory.
class StreamedWeights : public ComputeWeights {
 public:
  /// `files` outlives the object.
  StreamedWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters, at::ScalarType dtype,
                  const storage::WeightFiles& files);

  LayerWeights& acquire(int64_t layer, Pass pass) override;
  void release(int64_t layer, Pass) override { drop_layer(layer); }
  void refresh() override {}

 private:
  const storage::WeightFiles& files_;
};

/// Bytes of all weights in compute layout, adapter columns included.
std::int64_t weight_bytes(const ModelConfig& config, const ModelShape& shape, std::int64_t element_bytes);

}  // namespace lora_train::model
