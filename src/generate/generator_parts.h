// What a generator holds, and what its runs share.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "cached_decoder.h"
#include "decode_batch.h"
#include "lora_train/generate/generator.h"

namespace lora_train::generate {

/// Tokens whose keys and values a run has left in the cache, from its first slot on.
struct CachedTokens {
  std::vector<std::int32_t> ids;
  bool use_adapter = true;
};

struct GeneratorParts {
  model::ModelConfig config;
  GeneratorLimits limits;
  CachedDecoder decoder;
  GenerateStats stats = {};
  CachedTokens left = {};                        ///< of the last run with reuse_cache; empty if another came after it
  std::unique_ptr<DecodeBatch> batch = nullptr;  ///< of runs on a device, with its graphs
};

struct Generator::State : GeneratorParts {};

/// One call of run().
struct RunRequest {
  std::span<const Prompt> prompts;
  const GenerateOptions& options;
  const GenerateCallbacks& callbacks;
  std::int64_t num_cached = 0;  ///< tokens of the first prompt that are in the cache already
};

/// The completions of a run, token by token.
class Completions {
 public:
  explicit Completions(const RunRequest& request) : request_(request), all_(request.prompts.size()) {}
  /// Appends a token and calls on_token. False: the completion has ended, for which end() is to be called.
  bool append(std::size_t prompt, std::int32_t id);
  void end(std::size_t prompt);  ///< calls on_done
  Completion& operator[](std::size_t prompt) { return all_[prompt]; }
  const Completion& operator[](std::size_t prompt) const { return all_[prompt]; }
  std::vector<Completion> take() { return std::move(all_); }

 private:
  const RunRequest& request_;
  std::vector<Completion> all_;
};

/// The run with tokens chosen and kept on the device: no pass waits for the host, which reads the tokens of a pass while the
/// next one runs. A sequence that ends at a stop token is therefore computed one token further, which nobody sees.
std::vector<Completion> run_on_device(GeneratorParts& parts, const RunRequest& request);

/// Generator::serve(), once the cache is reserved.
void serve_requests(GeneratorParts& parts, serve::RequestQueue& queue);

std::string name_of(const Prompt& prompt);
std::int64_t length_of(const Prompt& prompt);  ///< with its new tokens

/// A sequence to compute, for checks and messages.
struct SequenceInput {
  std::span<const std::int32_t> ids;
  std::int64_t num_new = 0;  ///< tokens to append
  std::string name;
};
/// Throws DataError naming the sequence (generator.h).
void check_sequence(const model::ModelConfig& config, const SequenceInput& sequence);

/// Reserves the cache for sequences of these lengths: as many as fit in limits.cache_bytes, at least one. Forgets what is in it.
void reserve_cache(GeneratorParts& parts, const std::vector<std::int64_t>& lengths);

/// Reserves it for a conversation that has this length now: as much as limits.cache_bytes holds, at most the context; more, twice as
/// much each time, once the conversation needs it.
void reserve_for_conversation(GeneratorParts& parts, std::int64_t length);

/// Reserves it for requests that are not known yet. Returns how many tokens a sequence may have.
std::int64_t reserve_for_requests(GeneratorParts& parts);

/// How many tokens of a prompt need not be computed again. The last one always is: the first new token comes from it.
std::int64_t num_reusable(const CachedTokens& left, const Prompt& prompt, bool use_adapter);

bool are_finite(std::span<const float> logits);

/// Throws NumericError unless all logits are finite. `position` is the number of tokens before the one that they predict.
void check_logits(std::span<const float> logits, const std::string& name, std::int64_t position);
[[noreturn]] void refuse_logits(const std::string& name, std::int64_t position);

/// Row `row` of a contiguous fp32 matrix on the CPU.
inline std::span<const float> logits_row(const at::Tensor& logits, std::int64_t row) {
  const std::int64_t V = logits.size(1);
  return {logits.const_data_ptr<float>() + row * V, static_cast<std::size_t>(V)};
}

/// Adds the seconds of its lifetime to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lora_train::generate
