// A model that is asked and not trained: the base, or the base with an adapter.
#pragma once

#include <filesystem>
#include <memory>

#include "lora_train/generate/generator.h"
#include "lora_train/runtime/setup.h"

namespace lora_train::evaluate {

struct InferenceModel {
  runtime::RunDevice device;
  runtime::LoadedModel model;
};

/// The model's folder without tokenizer and template; checks device and adapter (empty: the base) before weights are read.
/// Sequences have at most max_seq_len tokens.
InferenceModel load_for_inference(const Profile& profile, const std::filesystem::path& adapter,
                                  std::int64_t max_seq_len);

/// Works on the model's weights, which must outlive it; how many sequences at a time follows from the device's memory.
std::unique_ptr<generate::Generator> make_generator(const InferenceModel& model, AttnImplementation attention);

}  // namespace lora_train::evaluate
