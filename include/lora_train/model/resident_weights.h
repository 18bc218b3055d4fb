// The simplest WeightSource: all weights in the device's memory in compute dtype, adapter columns beside them.
#pragma once

#include <c10/core/TensorOptions.h>

#include <memory>

#include "lora_train/model/adapter_spec.h"
#include "lora_train/model/parameters.h"
#include "lora_train/model/weights.h"

namespace lora_train::storage {
class WeightFiles;
}

namespace lora_train::model {

class WeightReader;

/// What is trained besides or instead of adapters.
enum class TrainedWeights { kNone, kAll };

class ResidentWeights : public WeightSource {
 public:
  /// Copies every weight out of `files` (checked before by check_weights) into compute dtype, by several threads, and
  /// releases the mapped pages behind it. Makes room for the adapters of `specs`. Throws StopError.
  /// With kAll (full fine-tuning) `specs` is empty and every weight is trained.
  ResidentWeights(const ModelConfig& config, const storage::WeightFiles& files, at::ScalarType dtype,
                  const std::vector<AdapterSpec>& specs, TrainedWeights trained, at::Device device = at::kCPU);
  /// Shapes alone: for counting bytes before a weight is read, or for whoever fills them. Their content is undefined.
  ResidentWeights(const ModelConfig& config, at::ScalarType dtype, const std::vector<AdapterSpec>& specs,
                  TrainedWeights trained, at::Device device = at::kMeta);

  LayerWeights& acquire(int64_t layer, Pass) override { return layers_[static_cast<std::size_t>(layer)]; }
  void release(int64_t, Pass) override {}
  OuterWeights& outer() override { return outer_; }
  void refresh() override;

  /// Trained tensors, views of which the layers hold. Adapters: PEFT names; their values are zero until module lora
  /// initialises or loads them, then refresh(). Full fine-tuning: Hugging Face names, values from the files.
  Parameters& parameters() { return parameters_; }
  /// Bytes of the weights in compute layout, adapter columns included; parameters() not.
  int64_t bytes() const;

 protected:
  enum class Layers { kLoad, kLeave };
  ResidentWeights(const ModelConfig& config, const storage::WeightFiles* files, at::ScalarType dtype,
                  const std::vector<AdapterSpec>& specs, TrainedWeights trained, at::Device device, Layers layers);
  /// Layer as `files` has it, with room for its adapter columns.
  void load_layer(int64_t layer, const storage::WeightFiles& files);
  LayerWeights& layer_weights(int64_t index) { return layers_[static_cast<std::size_t>(index)]; }

 private:
  void load(const std::string& name, const at::Tensor& target);
  void load_layer(int64_t layer);
  void bind_adapters(const std::vector<AdapterSpec>& specs);
  void bind_trained_weights();

  ModelConfig config_;
  at::TensorOptions options_;             ///< compute dtype and device
  WeightReader* reader_ = nullptr;        ///< while weights are loaded; null: shapes alone
  Parameters parameters_;
  std::vector<LayerWeights> layers_;
  OuterWeights outer_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  ///< (compute tensor, fp32 master) in full fine-tuning
};

/// The same with one decoder layer in memory at a time, on the CPU: acquire() reads it from the files and writes the adapter
/// columns, release() forgets it. For one pass over a model that need not fit.
class StreamedWeights : public ResidentWeights {
 public:
  /// `files` outlives the object.
  StreamedWeights(const ModelConfig& config, const storage::WeightFiles& files, at::ScalarType dtype,
                  const std::vector<AdapterSpec>& specs);

  LayerWeights& acquire(int64_t layer, Pass pass) override;
  void release(int64_t layer, Pass pass) override;
  void refresh() override {}

 private:
  const storage::WeightFiles& files_;
};

}  // namespace lora_train::model
