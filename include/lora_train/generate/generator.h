// Text generation: prompts in, tokens out, with a key-value cache and as many sequences at a time as fit.
// V vocabulary, L layers, K kv heads, E head size.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lora_train/generate/sampling.h"
#include "lora_train/kernels/attention.h"
#include "lora_train/model/weights.h"

namespace lora_train::generate {

/// Memory limits. The cache holds cache_bytes or the longest sequence of a run, whichever is more; a token takes
/// 2 L K E elements of the compute dtype (cache_bytes_per_token). A sequence reserves prompt + max_new_tokens tokens when
/// it starts; layers with a sliding window keep all tokens too.
struct GeneratorLimits {
  std::int64_t max_sequences = 16;     ///< decoded at a time; the others wait
  std::int64_t max_pass_tokens = 512;  ///< prompt tokens of a forward pass; longer prompts take several
  std::int64_t cache_bytes = std::int64_t{1} << 30;
};

struct Prompt {
  std::vector<std::int32_t> ids;    ///< not empty
  std::int64_t index = 0;           ///< keys the sampler: its index in the whole file, whichever part of it is run
  std::int64_t max_new_tokens = 0;  ///< at least 1
  std::string name = {};            ///< for messages: "prompts.jsonl:3"; empty: "prompt <index>"
};

struct GenerateOptions {
  SamplingOptions sampling;
  std::vector<std::int32_t> stop_ids = {};  ///< end a completion
  bool use_adapter = true;                  ///< false: the base model, from the same weights
  bool log_probabilities = false;           ///< fills Completion::log_probability
};

enum class StopReason {
  kStopToken,  ///< the last id is one of stop_ids
  kLength,     ///< max_new_tokens
  kCaller      ///< on_token returned false
};

struct Completion {
  std::vector<std::int32_t> ids;  ///< new tokens, the stop token included
  StopReason reason = StopReason::kLength;
  double log_probability = 0;  ///< sum of the log-probabilities of ids, before temperature etc.; if requested
};

/// Called in the thread of run(). `prompt` is the index in the span of prompts. All may be empty.
struct GenerateCallbacks {
  /// Every token, the stop token included, as soon as it is known. False ends this completion.
  std::function<bool(std::size_t prompt, std::int32_t id)> on_token = {};
  /// When a completion has ended. Completions end in no particular order.
  std::function<void(std::size_t prompt, const Completion&)> on_done = {};
  /// The logits [V] from which the next token is chosen; position 0 is the first new token. Synchronizes with a GPU.
  std::function<void(std::size_t prompt, std::int64_t position, std::span<const float> logits)> on_logits = {};
};

/// A prompt and what may follow it.
struct ScoreRequest {
  std::vector<std::int32_t> prompt;                    ///< not empty
  std::vector<std::vector<std::int32_t>> completions;  ///< each not empty
  std::string name = {};                               ///< for messages
};

/// Tokens and seconds of all runs so far. Counts computed prompt tokens. The first new token of a prompt is part of its
/// prefill, in prompt_s; decoded_tokens are the other new ones.
struct GenerateStats {
  std::int64_t prompt_tokens = 0, new_tokens = 0, decoded_tokens = 0;
  double prompt_s = 0, decode_s = 0;
  std::int64_t cache_bytes = 0;  ///< of the cache as it is now
};

/// Greedy decoding and sampling. Runs where the weights are, in their dtype (fp32 or bf16). Not thread-safe.
///
/// On a CPU a prompt's result does not depend on the other prompts: prompts are prefilled one by one, and batched decoding
/// uses products whose sums do not depend on the number of rows (kernels/skinny_gemm.h). On a GPU the
/// products of a larger batch may differ in their last bits, and a greedy choice between two nearly equal tokens with
/// them. The draw for a token is the same everywhere.
class Generator {
 public:
  /// `weights`, adapter columns written, must outlive the generator.
  Generator(const model::ModelConfig& config, const model::ModelShape& shape, model::BaseWeights& weights,
            const GeneratorLimits& limits = {}, kernels::AttentionBackend attention = kernels::AttentionBackend::kAuto);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  /// Completions in the order of the prompts. All prompts are checked before the first is computed. Throws DataError naming
  /// the prompt if it is empty, has an id outside of the vocabulary, or is, with its max_new_tokens, longer than
  /// max_position_embeddings; NumericError naming prompt and position if a logit is not finite; StopError between
  /// two passes; ConfigError from check_sampling. Completions that end before an exception reach on_done.
  std::vector<Completion> run(std::span<const Prompt> prompts, const GenerateOptions& options,
                              const GenerateCallbacks& callbacks = {});

  /// log P(completion | prompt), a sum over its tokens, for every completion of every request. The prompt is computed once.
  /// `on_done` is called after each request. Throws as run().
  std::vector<std::vector<double>> score(std::span<const ScoreRequest> requests, bool use_adapter = true,
                                         const std::function<void(std::size_t request)>& on_done = {});

  GenerateStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Bytes of the cache for one token: 2 L K E elements.
std::int64_t cache_bytes_per_token(const model::ModelConfig& config, at::ScalarType dtype);

}  // namespace lora_train::generate
