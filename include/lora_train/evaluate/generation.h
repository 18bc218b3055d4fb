// `generate`, `chat` and `serve`: completions of the base and of adapters, from one copy of the weights. Requests
// without torch.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/config/sampling.h"
#include "lora_train/launch/world.h"
#include "lora_train/serve/request_queue.h"

namespace lora_train::evaluate {

struct GeneratePrompt {
  std::vector<std::int32_t> ids;
  std::int64_t index = 0;  ///< in the whole prompt file; part of the sampler's key
  std::int64_t max_new_tokens = 0;
  std::string name;  ///< for messages: "prompts.jsonl:3"
};

struct GenerateRequest {
  Profile profile;                ///< the engine reads model, device, precision and similar keys
  std::filesystem::path adapter;  ///< PEFT folder; empty = the base model
  bool compare = false;           ///< also generate completions of the base, from the same weights
  std::vector<GeneratePrompt> prompts;
  std::vector<std::int32_t> stop_ids;
  SamplingOptions sampling = {};
  launch::World world = {};         ///< with several ranks, rank 0 decides which prompts are answered
  std::exception_ptr failure = {};  ///< why this rank of several has no request: all ranks end with it
};

/// Receives tokens as they are generated, in the thread that called run_generation(); an exception ends that call. With
/// several ranks, rank 0 also receives the other ranks' tokens, some answers later; the others receive those of their
/// own prompts.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  /// Called once the weights are loaded, before the first token.
  virtual void on_start() = 0;
  /// `prompt`: index in GenerateRequest::prompts. Return false to end this completion.
  virtual bool on_token(std::size_t prompt, bool is_base, std::int32_t id) = 0;
  /// Called when a completion has ended. is_cut: neither a stop id nor on_token ended it.
  virtual void on_done(std::size_t prompt, bool is_base, bool is_cut) = 0;
};

/// A prompt in a conversation, and the model that answers it.
struct ConversationTurn {
  GeneratePrompt prompt;
  bool use_adapter = true;  ///< false: the base, from the same weights
};

/// Asks the questions, turn by turn, and receives the answers. The sink's prompt index is always 0.
class Conversation : public GenerateSink {
 public:
  /// Called after on_start(), and after each answer. Return nothing to end the conversation.
  virtual std::optional<ConversationTurn> next_turn() = 0;
  /// Called instead of on_done() if a requested stop (base/stop_request.h) ends an answer. The conversation continues
  /// with next_turn().
  virtual void on_stop() = 0;
};

/// Tokens and seconds, as in generate::GenerateStats.
struct GenerateTotals {
  std::int64_t prompt_tokens = 0, new_tokens = 0, decoded_tokens = 0;
  double prompt_s = 0, decode_s = 0;
};

/// Generates completions of the adapter and, with compare, of the base from the same weights. Several ranks split rank
/// 0's prompts; totals cover all ranks, seconds are the slowest's. Throws Error; StopError once rank 0 has all answers
/// so far.
GenerateTotals run_generation(const GenerateRequest& request, GenerateSink& sink);

/// Loads the model once and answers until conversation.next_turn() returns nothing. Keeps keys and values of the tokens
/// that a prompt shares with the last one and its answer, unless the turn switches between adapter and base. Ignores
/// request.prompts and request.compare. Throws Error; StopError only before on_start().
GenerateTotals answer_turns(const GenerateRequest& request, Conversation& conversation);

struct ServedAdapter {
  std::string name;
  std::filesystem::path folder;  ///< PEFT
};

struct ServeRequest {
  Profile profile;  ///< the engine reads model, device, precision and similar keys
  /// ServedRequest::owner is an index in this list. Adapters with token rows (model/layer_shape.h) are not allowed
  /// here.
  std::vector<ServedAdapter> adapters;
  /// Instead: the only adapter, with or without token rows; it answers requests without an owner.
  std::filesystem::path only_adapter;
};

/// Loads the model once and answers until `queue` ends. Throws Error; StopError only before queue.on_start().
GenerateTotals serve(const ServeRequest& request, serve::RequestQueue& queue);

}  // namespace lora_train::evaluate
