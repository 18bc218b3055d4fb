// A model for inference: the base, or the base with an adapter.
#pragma once

#include <memory>

#include "lora_train/evaluate/generation.h"
#include "lora_train/generate/generator.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::evaluate {

struct InferenceModel {
  plan::RunDevice device;
  plan::LoadedModel model;
};

/// load_model() for commands that only compute. For a quantised base, decodes once as many layers as fit in half of the
/// free memory, unless the profile sets the number; ignores options.decoded_layers.
void load_without_plan(const Profile& profile, const plan::RunDevice& device, const lora::ModelFiles& files,
                       const plan::AdapterSetup& adapters, plan::LoadOptions options, plan::LoadedModel& loaded);

/// Loads the model for a Generator, without tokenizer and template. Checks device and adapter before reading weights.
/// Sequences have at most max_seq_len tokens.
InferenceModel load_for_inference(const GenerateRequest& request, std::int64_t max_seq_len,
                                  const std::shared_ptr<ranks::Communicator>& ranks);

/// GPU memory of a generator whose cache holds one sequence of `longest` tokens.
std::int64_t generator_bytes(const Profile& profile, const model::ModelConfig& config, std::int64_t longest);

/// Uses the model's weights, which must outlive it. The device's memory decides how many sequences are decoded at a
/// time.
std::unique_ptr<generate::Generator> make_generator(const plan::RunDevice& device, const plan::LoadedModel& model,
                                                    const RunSection& run);

}  // namespace lora_train::evaluate
