// What a generator holds, for generator.cpp and score.cpp.
#pragma once

#include <chrono>
#include <string>

#include "cached_decoder.h"
#include "lora_train/generate/generator.h"

namespace lora_train::generate {

struct GeneratorParts {
  model::ModelConfig config;
  GeneratorLimits limits;
  CachedDecoder decoder;
  GenerateStats stats = {};
};

struct Generator::State : GeneratorParts {};

/// A sequence to compute, for checks and messages.
struct SequenceInput {
  std::span<const std::int32_t> ids;
  std::int64_t num_new = 0;  ///< tokens to append
  std::string name;
};
/// Throws DataError naming the sequence (generator.h).
void check_sequence(const model::ModelConfig& config, const SequenceInput& sequence);

/// Reserves the cache for sequences of these lengths: as many as fit in limits.cache_bytes, at least one.
void reserve_cache(GeneratorParts& parts, const std::vector<std::int64_t>& lengths);

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
