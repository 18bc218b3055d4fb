// A model for inference: the base, or the base with an adapter.
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

/// Loads the model without tokenizer and template. Checks device and adapter (empty: the base) before reading weights.
/// Sequences have at most max_seq_len tokens.
InferenceModel load_for_inference(const Profile& profile, const std::filesystem::path& adapter,
                                  std::int64_t max_seq_len);

/// Uses the model's weights, which must outlive it. The device's memory decides how many sequences are decoded at a time.
std::unique_ptr<generate::Generator> make_generator(const InferenceModel& model, const RunSection& run);

}  // namespace lora_train::evaluate
