// The contents of a generator and what its runs share; drafts and batches of a decoding step.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cached_decoder.h"
#include "lora_train/generate/generator.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/kernels/sampling/sampling.h"

namespace lora_train::generate {

/// The input of one row. An idle row computes a token that is not kept.
struct DecodeRow {
  bool is_idle = true;
  CachePlace place = {};
  std::int64_t num_cached = 0;
  std::int64_t num_new = 0;  ///< new tokens so far; the last one is the next to go in
  std::int64_t key = 0;      ///< for its draws: kernels::packed_key
};

/// Not thread-safe. `decoder` must outlive it.
class DecodeBatch {
 public:
  DecodeBatch(CachedDecoder& decoder, std::int64_t max_rows, bool use_graphs);

  /// Configures the next passes. Forgets the graphs if the cache or the RoPE tables have grown, and so moved.
  void set_options(const kernels::SamplingFilter& filter, bool use_adapter);

  /// Sets the rows of the next passes: as many as a captured pass has, 1, 2, 4, ... or max_rows. Enqueues their upload.
  void set_rows(std::vector<DecodeRow> rows);

  /// Chooses the first new token of sequences from these rows of a prefill's result, for rows[i] of the next passes.
  /// Returns the tokens [n] int32 on the device; -1 if a logit is not finite.
  at::Tensor choose_first(const at::Tensor& hidden, const std::vector<std::int64_t>& hidden_rows,
                          const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& keys);

  /// Enqueues a pass: every row takes its last token, and gets its next one. Returns those, [W] int32 on the device,
  /// valid until the next pass; -1 if a logit is not finite.
  at::Tensor decode();

  std::int64_t num_replays() const { return num_replays_; }

 private:
  /// Values that a graph has captured.
  struct Captured {
    std::int64_t num_rows = 0;
    bool use_adapter = true;
    kernels::SamplingFilter filter = {};
    auto operator<=>(const Captured&) const = default;
  };
  void enqueue();
  PassTokens tokens() const;
  void advance_host();
  kernels::Graph* graph();

  CachedDecoder& decoder_;
  std::int64_t max_rows_;
  bool uses_graphs_;
  kernels::SamplingFilter filter_;
  bool use_adapter_ = true;
  std::vector<DecodeRow> rows_;
  at::Tensor ids_, chosen_;  ///< [max_rows] int32: the next input token; the last pass's choice
  at::Tensor int64s_;        ///< [5, max_rows]: slots, positions of draws, keys, advance (0 or 1), rows of states
  at::Tensor int32s_;        ///< [4, max_rows + 1]: positions, numbers of keys, first slots, advance
  at::Tensor cu_seqlens_;    ///< [max_rows + 1] int32: 0, 1, 2, ...
  model::LmHeadRows head_;   ///< for max_rows
  std::map<Captured, std::unique_ptr<kernels::Graph>> graphs_;
  std::set<Captured> has_run_;
  std::int64_t cache_capacity_ = 0, max_positions_ = 0;  ///< for the captured addresses: both only grow
  std::int64_t num_replays_ = 0;
};

/// Tokens whose keys and values a run has left in the cache, from its first slot on.
struct CachedTokens {
  std::vector<std::int32_t> ids;
  std::optional<std::int64_t> adapter = {};  ///< Prompt::adapter
};

struct GeneratorParts {
  model::ModelConfig config;
  GeneratorLimits limits;
  CachedDecoder decoder;
  Totals totals = {};
  CachedTokens left = {};                        ///< by the last turn; empty if another run came after it
  std::unique_ptr<DecodeBatch> batch = nullptr;  ///< for runs on a device, with its graphs
};

struct Generator::State : GeneratorParts {};

/// Sequences that are answered together, with tokens chosen on the host.
struct HostRequest {
  std::function<std::optional<Prompt>(bool may_wait)> next;  ///< as PromptQueue::next
  AnswerSink& sink;
  std::int64_t num_cached = 0;  ///< tokens of the first prompt that are in the cache already
  /// Alternates passes over prompts and over answers: a long prompt delays other answers, but does not stop them.
  /// Ignores requested stops.
  bool is_served = false;
};
/// Returns all tokens of the sequence that ended last. The cache must be reserved.
std::vector<std::int32_t> run_on_host(GeneratorParts& parts, const HostRequest& request);

/// Prompts with the same adapter and filter, for tokens chosen on the device.
struct DeviceRequest {
  std::span<const Prompt> prompts;
  AnswerSink& sink;
  std::int64_t num_cached = 0;  ///< as in HostRequest
};
/// A run that chooses and keeps tokens on the device: no pass waits for the host, which reads the tokens of a pass
/// while the next one runs. So a sequence that ends at a stop token is computed one token further, and that token is
/// dropped. Returns what run_on_host() returns.
std::vector<std::int32_t> run_on_device(GeneratorParts& parts, const DeviceRequest& request);

/// Gives the sink a token, the num_new-th of an answer. Returns false, after on_done(), if the answer has ended.
bool hand_over(AnswerSink& sink, const Prompt& prompt, std::int64_t num_new, const Token& token);

std::string name_of(const Prompt& prompt);

/// Throws DataError naming the sequence (generator.h) unless these tokens and `num_new` more can be computed.
void check_sequence(const model::ModelConfig& config, std::span<const std::int32_t> ids, std::int64_t num_new,
                    const std::string& name);

/// Reserves the cache for sequences of these lengths: as many as fit in limits.cache_bytes, at least one. Forgets the
/// contents.
void reserve_cache(GeneratorParts& parts, const std::vector<std::int64_t>& lengths);

/// Reserves it for a conversation of this length: as much as limits.cache_bytes holds, at most the context; doubles it
/// whenever the conversation needs more.
void reserve_for_conversation(GeneratorParts& parts, std::int64_t length);

/// Reserves it for future requests. Returns how many tokens a sequence may have.
std::int64_t reserve_for_requests(GeneratorParts& parts);

/// Number of a prompt's tokens that need not be computed again. The last one always is: the first new token comes from
/// it. Recurrent states are those after all tokens left: `has_states`, only a prompt that begins with them can use
/// them.
std::int64_t num_reusable(const CachedTokens& left, const Prompt& prompt, bool has_states = false);

bool are_finite(std::span<const float> logits);

/// Throws NumericError: logits are not finite. `position` is the number of tokens before the one that they predict.
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

/// How many tokens to guess for a sequence: one, and more while all guesses are right.
class DraftLength {
 public:
  std::size_t next(std::size_t most) const;
  void record(std::size_t num_drafted, std::size_t num_right);

 private:
  std::size_t wanted_ = 1;
};

/// Finds the latest earlier place with the longest ending of `tokens`, up to three, and returns up to `most` tokens
/// that follow it. Empty if the last token has not occurred before.
std::vector<std::int32_t> draft_of(std::span<const std::int32_t> tokens, std::size_t most);

}  // namespace lora_train::generate
