// `generate`, `chat` and `serve`: answers of the base and of adapters, from one copy of the weights. Without torch.
#pragma once

#include <exception>
#include <filesystem>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/generate/prompt.h"
#include "lora_train/launch/world.h"
#include "lora_train/lora/adapter_config.h"

namespace lora_train::evaluate {

/// The model that answers.
struct GenerateRequest {
  Profile profile = {};                ///< the engine reads model, device, precision and similar keys
  std::filesystem::path adapter = {};  ///< PEFT folder; empty = the base model
  /// Instead: several, of which Prompt::adapter is an index. They must not have token rows (model/layer_shape.h).
  std::vector<lora::NamedAdapter> several = {};
  launch::World world = {};         ///< with several ranks, rank 0 decides which prompts are answered
  std::exception_ptr failure = {};  ///< why this rank of several has no prompts: all ranks end with it
};

/// Answers all prompts; those in a row that name the same adapter together. Several ranks split rank 0's prompts, which
/// have the same ids on all of them. Rank 0's sink also receives the other ranks' tokens, some answers later; the
/// others receive those of their own prompts. Totals cover all ranks, seconds are the slowest's. Throws Error;
/// StopError once rank 0 has all answers so far.
generate::Totals run_generation(const GenerateRequest& request, const std::vector<generate::Prompt>& prompts,
                                generate::AnswerSink& sink);

/// Answers one prompt after the other until queue.next() returns nothing. Keeps keys and values of the tokens that a
/// prompt shares with the last one and its answer, unless the adapter changes. Throws Error; StopError only before
/// on_start().
generate::Totals answer_turns(const GenerateRequest& request, generate::PromptQueue& queue);

/// Answers prompts together until queue.next() returns nothing. Throws Error; StopError only before on_start().
generate::Totals serve(const GenerateRequest& request, generate::PromptQueue& queue);

}  // namespace lora_train::evaluate
