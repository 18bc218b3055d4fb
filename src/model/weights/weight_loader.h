// Where the values of new weights come from.
#pragma once

#include "lora_train/model/weights/base_weights.h"
#include "quantized_linear.h"
#include "weight_reader.h"

namespace lora_train::model {

/// Fills weights with the tensors of files.
class FileLoader : public WeightLoader {
 public:
  FileLoader(const ModelConfig& config, const storage::WeightFiles& files, at::Device device)
      : config_(config), files_(files), device_(device), reader_(files, device) {}

  void load(const std::string& tensor, const at::Tensor& target) override { reader_.add(tensor, target); }
  void load(QuantizedLayer::Linear& linear) override {
    const LinearStorage& storage = linear.storage;
    const TensorSpec spec{linear.name + ".weight", {storage.out_features, storage.in_features}, WeightKind::kLinear, 0};
    const StoredLinear stored = stored_linear(config_, spec, files_);
    if (stored.format != LinearFormat::kPlain) return read_quantized(files_, stored, device_, reader_, linear.weight);
    linear.weight = kernels::make_quantized_weight(quantised_code(storage.format), storage.out_features,
                                                   storage.in_features, device_);
    reader_.add(spec.name, std::make_unique<QuantizeSink>(linear.weight, storage.nested_block_size > 0,
                                                          files_.where(*stored.weight)));
  }
  void finish() override { reader_.read(); }

 private:
  const ModelConfig& config_;
  const storage::WeightFiles& files_;
  at::Device device_;
  WeightReader reader_;
};

/// Leaves plain weights uninitialised.
class NoFiles : public WeightLoader {
 public:
  NoFiles(double std, at::Device device) : std_(std), device_(device) {}
  void load(const std::string&, const at::Tensor&) override {}
  void load(QuantizedLayer::Linear& linear) override {
    linear.weight = empty_quantized_weight(linear.storage, device_);
    fill_at_random(linear.weight, std_);
  }
  void finish() override {}

 private:
  double std_;
  at::Device device_;
};

}  // namespace lora_train::model
