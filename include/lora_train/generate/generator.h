// Text generation: prompts in, tokens out, with a key-value cache and as many concurrent sequences as fit.
// V vocabulary, L layers, K kv heads, E head size.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lora_train/generate/prompt.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/sampling/sampling.h"
#include "lora_train/model/weights/weights.h"

namespace lora_train::generate {

/// Throws ConfigError naming an option that is out of range.
void check_sampling(const SamplingOptions& options);

/// The options in the kernels' form, and the key of a prompt's draws.
kernels::SamplingFilter filter_of(const SamplingOptions& options);
PhiloxKey sampling_key(std::uint64_t seed, std::int64_t prompt_index);

/// Chooses a token from a row of finite logits. A draw depends only on the seed, the prompt's index, and `position`,
/// the number of new tokens before this one.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t prompt_index,
                          std::int64_t position);

/// log softmax(logits)[id], in fp64.
double log_probability(std::span<const float> logits, std::int32_t id);

/// Memory limits. The cache takes cache_bytes, or what the longest sequence of a run needs if that is more. A token
/// takes 2 L K E elements of the compute dtype (cache_bytes_per_token). A sequence reserves prompt + max_new_tokens
/// tokens when it starts. Layers with a sliding window keep all tokens too.
struct GeneratorLimits {
  std::int64_t max_sequences = 16;     ///< decoded concurrently; the rest wait
  std::int64_t max_pass_tokens = 512;  ///< prompt tokens per forward pass; longer prompts take several
  std::int64_t cache_bytes = std::int64_t{1} << 30;
  bool use_graphs = true;  ///< capture decoding as CUDA graphs if possible
  /// On a CPU, guess tokens of few sequences and check them in the same pass; the answers are the same. Not for models
  /// with recurrent states, which cannot take a wrong guess back.
  bool drafts = true;
};

/// A prompt and its candidate completions.
struct ScoreRequest {
  std::vector<std::int32_t> prompt;                    ///< not empty
  std::vector<std::vector<std::int32_t>> completions;  ///< each not empty
  std::string name = {};                               ///< for messages
};

/// Greedy decoding and sampling. Runs on the device of the weights, in their dtype (fp32 or bf16). Not thread-safe.
///
/// On a CPU a prompt's result does not depend on the other prompts: prompts are prefilled one by one, and batched
/// decoding uses products whose sums do not depend on the number of rows (kernels/gemm/gemm.h). While it decodes up to
/// four sequences there, spare rows of a pass check guesses of what comes next (prompt lookup), which changes no token
/// and no bit. On a GPU, the last bits of products may differ with the batch size, and so may a greedy choice between
/// two nearly equal tokens. The random draw for a token is the same everywhere. A GPU chooses tokens itself
/// (kernels/sampling/sampling.h), if prompts are sampled alike, without log-probabilities and logits, and captures
/// decoding passes per number of rows (1, 2, 4, ...) to replay them; if it cannot, one warning says why.
class Generator {
 public:
  /// `weights` must outlive the generator. Their adapter columns must be written.
  Generator(const model::ModelConfig& config, const model::ModelShape& shape, model::BaseWeights& weights,
            const GeneratorLimits& limits = {}, kernels::AttentionBackend attention = kernels::AttentionBackend::kAuto);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  /// Answers prompts together, in no particular order. All are checked before the first is computed. Throws DataError
  /// naming the prompt if it is empty, has an id outside the vocabulary, or is longer than
  /// ModelConfig::context_length() together with its max_new_tokens; NumericError naming prompt and position if a logit
  /// is not finite; StopError between two passes; ConfigError from check_sampling.
  ///
  /// is_turn, for one prompt: reuses the cache for what the prompt shares with the last such run (with recurrent
  /// states: if it begins with all of that), and leaves room in it for what follows. The last bits of sums may differ
  /// from a run without it.
  void run(std::span<const Prompt> prompts, AnswerSink& sink, bool is_turn = false);

  /// log P(completion | prompt), summed over tokens, for every completion of every request. Computes each prompt once.
  /// Throws what run() throws.
  std::vector<std::vector<double>> score(std::span<const ScoreRequest> requests, bool use_adapter = true);

  /// Answers prompts together as they come, until queue.next() has no more. Chooses tokens on the host. Reserves the
  /// cache first: limits.cache_bytes, or what limits.max_sequences of the whole context need if that is less. A prompt
  /// that cannot be computed fails alone. Ignores requested stops.
  void serve(PromptQueue& queue);

  Totals totals() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Bytes of the cache for one token: 2 L K E elements, L being the layers with attention.
std::int64_t cache_bytes_per_token(const model::ModelConfig& config, at::ScalarType dtype);
/// Bytes of a sequence's recurrent states, whatever its length.
std::int64_t state_bytes(const model::ModelConfig& config, at::ScalarType dtype);

}  // namespace lora_train::generate
