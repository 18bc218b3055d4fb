// Prompts, and who receives their answers. Plain data without torch.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/config/sampling.h"

namespace lora_train::generate {

/// Prompt::adapter of the base, from the same weights.
inline constexpr std::int64_t kNoAdapter = -1;

struct Prompt {
  std::vector<std::int32_t> ids;    ///< not empty
  std::int64_t index = 0;           ///< index in the whole file, even if only part of it is run; seeds the sampler
  std::int64_t max_new_tokens = 0;  ///< at least 1
  std::string name = {};            ///< for messages: "prompts.jsonl:3"; empty: "prompt <index>"
  std::int64_t id = 0;              ///< identifies it in the calls of AnswerSink
  SamplingOptions sampling = {};
  std::vector<std::int32_t> stop_ids = {};   ///< tokens that end an answer
  std::optional<std::int64_t> adapter = {};  ///< index among several, or kNoAdapter; empty: the model as loaded
  std::optional<std::int64_t> num_top = {};  ///< log-probabilities: of the token, and of this many most likely ones

  /// With its answer.
  std::int64_t length() const { return std::ssize(ids) + max_new_tokens; }
};

/// A new token. Its log-probabilities, if requested, are those before temperature and filters.
struct Token {
  std::int32_t id = 0;
  double log_probability = 0;
  std::vector<std::pair<std::int32_t, double>> top = {};  ///< most likely first
};

/// Receives answers as they are generated, in the thread that generates them; an exception ends the whole call.
/// `id` is Prompt::id.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  /// Called once the weights are loaded, before the first token. A prompt with its answer may have max_tokens tokens.
  virtual void on_start(std::int64_t /*max_tokens*/) {}
  /// False ends an answer that has no token yet, without on_done(); asked before each pass over its prompt.
  virtual bool is_wanted(std::int64_t /*id*/) { return true; }
  /// Called for every token, the stop token included; on a GPU, while the next pass runs. Return false to end the
  /// answer; on_done() follows.
  virtual bool on_token(std::int64_t /*id*/, const Token&) { return true; }
  /// Called when an answer has ended, in no particular order. is_cut: neither a stop token nor on_token() ended it.
  virtual void on_done(std::int64_t /*id*/, bool /*is_cut*/) {}
  /// Called while `error` is handled: this answer cannot be computed. Rethrow it to end the others too.
  virtual void on_failure(std::int64_t /*id*/, const Error& /*error*/) { throw; }
  /// True to get the logits [V] from which each token is chosen. On a GPU this copies them to the host.
  virtual bool wants_logits() const { return false; }
  virtual void on_logits(std::int64_t /*id*/, std::span<const float> /*logits*/) {}
};

/// Prompts that come while others are answered, or turn by turn.
class PromptQueue : public AnswerSink {
 public:
  /// The next prompt. With `may_wait`, nothing is being computed: waits for one, and returns nothing only at the end.
  virtual std::optional<Prompt> next(bool may_wait) = 0;
  /// Called instead of on_done() if a requested stop (base/stop_request.h) ends the answer to a turn; next() follows.
  virtual void on_stop() {}
};

/// Tokens and seconds so far. prompt_tokens counts only computed ones. The first new token of a prompt belongs to its
/// prefill (prompt_s); decoded_tokens counts the other new ones.
struct Totals {
  std::int64_t prompt_tokens = 0, new_tokens = 0, decoded_tokens = 0;
  double prompt_s = 0, decode_s = 0;
  std::int64_t cache_bytes = 0;    ///< current size of the cache
  std::int64_t decode_passes = 0;  ///< passes whose tokens the host chose; fewer than tokens if guesses were right
  std::int64_t replays = 0;        ///< decoding passes that replayed a graph
};

}  // namespace lora_train::generate
