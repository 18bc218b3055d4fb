// A small decoder with random weights, run forward and backward.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/storage/model_weights.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::model {

using testing_support::TemporaryFolder;
using testing_support::uniform;

inline constexpr const char* kConfig =
    R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 20,
  "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
  "vocab_size": 31, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
  "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1, "rope_theta": 10000.0, "hidden_act": "silu"})";

inline storage::WeightFiles random_weights(const ModelConfig& config, const TemporaryFolder& folder) {
  std::vector<at::Tensor> keep;
  std::vector<storage::TensorToWrite> tensors;
  std::uint64_t seed = 100;
  for (const auto& spec : expected_tensors(config)) {
    keep.push_back(uniform(spec.shape, ++seed) * 0.5 + (spec.kind == WeightKind::kNorm ? 1.0 : 0.0));
    tensors.push_back(tensor_to_write(spec.name, keep.back()));
  }
  storage::write_safetensors(folder / "model.safetensors", tensors);
  return storage::open_model_weights(folder.path());
}

inline Batch batch_of(const std::vector<int64_t>& lengths) {
  Batch batch;
  std::vector<std::int32_t> ids, positions, targets;
  std::vector<int64_t> supervised;
  batch.cu_seqlens = {0};
  for (const int64_t length : lengths) {
    for (int64_t t = 0; t < length; ++t) {
      if (t + 1 < length) {
        supervised.push_back(static_cast<int64_t>(ids.size()));
        targets.push_back(static_cast<std::int32_t>((7 * t + length) % 31));
      }
      ids.push_back(static_cast<std::int32_t>((5 * t + 3 * length) % 31));
      positions.push_back(static_cast<std::int32_t>(t));
    }
    batch.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.ids = at::tensor(ids, at::kInt);
  batch.positions = at::tensor(positions, at::kInt);
  batch.supervised = at::tensor(supervised, at::kLong);
  batch.targets = at::tensor(targets, at::kInt);
  return batch;
}

inline std::vector<AdapterSpec> adapters(const ModelConfig& config, std::int64_t first_layer, double dropout = 0) {
  std::vector<AdapterSpec> specs;
  for (std::int64_t layer = first_layer; layer < config.num_layers; ++layer) {
    for (const auto& linear : linear_names(config, layer)) {
      specs.push_back({AdapterKind::kLora, layer, linear, 2, 0.5, dropout});
    }
  }
  return specs;
}

class DecoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = parse_model_config(kConfig, "config.json");
    make_weights();
  }

  void use_layers(std::int64_t count) { use("num_hidden_layers", "3", count); }

  void use(const std::string& name, const std::string& old, std::int64_t value) {
    std::string text = kConfig;
    const std::string key = "\"" + name + "\": ";
    text.replace(text.find(key) + key.size(), old.size(), std::to_string(value));
    config_ = parse_model_config(text, "config.json");
    make_weights();
  }

  void make_weights() { files_ = std::make_unique<storage::WeightFiles>(random_weights(config_, folder_)); }

  struct Result {
    double loss;
    at::Tensor grads;
  };

  Result run(const Batch& batch, Recompute mode, std::int64_t first_layer, const FirstNeeded& first_needed, bool poison,
             const ColumnLayout& columns = {}) {
    const ModelShape shape =
        model_shape(config_, adapters(config_, first_layer, batch.dropout.enabled ? 0.3 : 0), columns);
    Trainables parameters = make_trainables(config_, shape, TrainedWeights::kNone);
    ResidentWeights weights(config_, shape, parameters, {.storage = storage_, .decoded_layers = decoded_layers_},
                            files_.get());
    parameters.values.copy_(uniform({parameters.size()}, 5) * 0.3);
    weights.refresh();
    Decoder decoder = make_decoder(config_, shape, weights, at::kFloat, 64, first_needed);
    Activations activations(
        shape,
        {.max_tokens = batch.num_tokens() + 5, .offload_inputs = offload_inputs_, .mlp_tile_tokens = mlp_tile_tokens_},
        std::vector<Recompute>(shape.layers.size(), mode), at::kFloat, at::kCPU);
    if (poison) {
      for (auto& [name, buffer] : activations.named_buffers()) buffer.fill_(NAN);
      if (activations.offload() != nullptr) {
        for (at::Tensor input : activations.offload()->inputs()) input.fill_(NAN);
      }
    }
    decoder_forward(decoder, batch, activations);
    at::Tensor d_hidden = activations.d_hidden.narrow(0, 0, batch.num_tokens()), loss = at::zeros({}, at::kDouble);
    LossHead head({weights.acquire_outer(Pass::kForward), 1e-6}, {batch.num_tokens()});
    head.train(activations.final_hidden.narrow(0, 0, batch.num_tokens()), batch,
               at::scalar_tensor(batch.supervised.size(0), at::kDouble), loss, d_hidden);
    decoder_backward(decoder, batch, activations);
    return {loss.item<double>(), parameters.grads.clone()};
  }

  /// Has the weights quantised while they are read, but for this linear.
  void quantise(LinearFormat format, bool nested, const std::string& except = "") {
    storage_.clear();
    for (const auto& spec : expected_tensors(config_)) {
      const std::string name = spec.name.substr(0, spec.name.rfind('.'));
      if (spec.kind != WeightKind::kLinear || name == except) continue;
      storage_[name] = quantised_storage(format, spec.shape[0], spec.shape[1], nested);
    }
  }

  TemporaryFolder folder_;
  ModelConfig config_;
  std::unique_ptr<storage::WeightFiles> files_;
  BaseStorage storage_;
  std::int64_t decoded_layers_ = kAllLayers;
  bool offload_inputs_ = false;
  std::int64_t mlp_tile_tokens_ = 0;
};

}  // namespace lora_train::model
