// What `generate` asks of the engine, and what it is told. Plain data without torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/config/sampling.h"

namespace lora_train::evaluate {

struct GeneratePrompt {
  std::vector<std::int32_t> ids;
  std::int64_t index = 0;  ///< in the whole file of prompts: keys the sampler
  std::int64_t max_new_tokens = 0;
  std::string name;  ///< for messages: "prompts.jsonl:3"
};

struct GenerateRequest {
  Profile profile;                ///< model, device, precision and what else concerns the engine
  std::filesystem::path adapter;  ///< PEFT folder; empty = the base model
  bool compare = false;           ///< completions of the base too, from the same weights
  std::vector<GeneratePrompt> prompts;
  std::vector<std::int32_t> stop_ids;
  SamplingOptions sampling = {};
};

/// Receives tokens as they are generated, in the thread that called generate(); what it throws ends that call.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  /// Weights are loaded; tokens follow.
  virtual void on_start() = 0;
  /// `prompt`: position in GenerateRequest::prompts. False ends this completion.
  virtual bool on_token(std::size_t prompt, bool is_base, std::int32_t id) = 0;
  /// The completion has ended; is_cut: neither by a stop id nor by on_token.
  virtual void on_done(std::size_t prompt, bool is_base, bool is_cut) = 0;
};

/// Tokens and seconds, as generate::GenerateStats.
struct GenerateTotals {
  std::int64_t prompt_tokens = 0, new_tokens = 0, decoded_tokens = 0;
  double prompt_s = 0, decode_s = 0;
};

}  // namespace lora_train::evaluate
