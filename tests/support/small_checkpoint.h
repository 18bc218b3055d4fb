// A checkpoint of a few KB, without torch.
#pragma once

#include <string>

#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::testing_support {

/// Its tensors differ from step to step. What contents() returns points into the object.
class SmallCheckpoint {
 public:
  explicit SmallCheckpoint(std::int64_t step, std::size_t num_values = 200)
      : step_(step), bytes_(4 * num_values, '\0') {
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      bytes_[i] = static_cast<char>(i * 7 + static_cast<std::size_t>(step) * 31);
  }

  run_folder::Contents contents() const {
    run_folder::Contents made;
    made.state.step = step_;
    made.state.epoch = 0.1 * static_cast<double>(step_);
    made.state.tokens = 1000 * step_;
    made.total_steps = 100;
    made.fingerprints = {"of-data", "of-tokenizer", "of-template", "of-model", "of-profile"};
    made.profile_yaml = "model: some-model\n";
    made.files = {{"adapter_model.safetensors", "", {tensor("lora_A"), tensor("lora_B")}},
                  {"adapter_config.json", "{\"r\": " + std::to_string(step_) + "}\n"},
                  {storage::kOptimizerFile, "", {tensor("exp_avg.lora_A"), tensor("exp_avg_sq.lora_A")}}};
    return made;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  storage::TensorToWrite tensor(const char* name) const {
    return {name, storage::DType::kF32, {static_cast<std::int64_t>(bytes_.size() / 4)}, bytes_, nullptr};
  }

  std::int64_t step_;
  std::string bytes_;
};

}  // namespace lora_train::testing_support
