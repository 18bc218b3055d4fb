// The description of a trained tensor. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace lora_train::model {

/// The values that a new adapter starts with.
enum class InitialValues {
  kZeros,
  kKaimingUniform  ///< with a = sqrt(5): U(-1/sqrt(columns), 1/sqrt(columns))
};

/// One trained tensor. `name` is its name on disk: PEFT's for adapters, Hugging Face's for weights.
struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  bool decays = true;      ///< whether weight decay applies (not to biases and norms)
  double lr_factor = 1.0;  ///< multiplies the learning rate
  InitialValues initial_values = InitialValues::kZeros;
  bool is_embedding = false;
  std::int64_t offset = 0;  ///< first element in the flat buffers; set by Trainables

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

}  // namespace lora_train::model
