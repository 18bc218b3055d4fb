// Chooses tokens from logits: temperature, top-k, top-p and min-p, in that order, then a draw from Philox. B rows, V
// vocabulary. No torch here.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/base/philox.h"

namespace at {
class Tensor;
}

namespace lora_train::kernels {

/// Limits the tokens that may be drawn: config/sampling.h without the seed.
struct SamplingFilter {
  double temperature = 0;  ///< 0: the most likely token (ties: lowest id); the rest has no effect
  std::int64_t top_k = 0;  ///< keeps the k most likely, and ties with the last; 0 = all
  double top_p = 1;        ///< keeps the most likely until their total reaches this; 1 = all
  double min_p = 0;        ///< keeps those with at least this share of the largest probability; 0 = all
  auto operator<=>(const SamplingFilter&) const = default;
};

struct Candidate {
  std::int32_t id = 0;
  double probability = 0;
};

/// The tokens that may be drawn: most likely first (ties: lowest id first) with top_k or top_p, else by id. Not
/// normalised: the probability of logit l is exp((l - largest) / temperature), in fp64. temperature > 0; logits [V]
/// finite.
std::vector<Candidate> sampling_candidates(std::span<const float> logits, const SamplingFilter& filter);

/// A uniform number in [0, 1) with 53 random bits. constexpr, so that nvcc compiles it for GPUs too.
constexpr double sampling_draw(PhiloxKey key, std::int64_t position) {
  const auto at = static_cast<std::uint64_t>(position);
  const auto bits = philox4x32({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), 0, 0}, key);
  return static_cast<double>((std::uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}

/// The token at `draw` in [0, 1) of the candidates' cumulative probability, in their order.
std::int32_t sample_token(std::span<const float> logits, const SamplingFilter& filter, double draw);

/// The key of a row of sample_tokens, and back.
constexpr std::int64_t packed_key(PhiloxKey key) {
  return static_cast<std::int64_t>(std::uint64_t{key.k1} << 32 | std::uint64_t{key.k0});
}
constexpr PhiloxKey unpacked_key(std::int64_t key) {
  const auto bits = static_cast<std::uint64_t>(key);
  return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
}

/// Writes chosen[b], the token that sample_token chooses from logits[b] with sampling_draw(keys[b], positions[b]), or
/// -1 if a logit of the row is not finite. logits [B, V] fp32, V below 2^31, rows may be strided; keys and positions
/// [B] int64; chosen [B] int32. Follows the kernel setting `cross_entropy`.
/// On a GPU, sums run in another order and exp may differ in its last bit: a token differs from the CPU's only if a
/// draw or a top_p falls on a boundary between two tokens within rounding (about 1e-13 of the sum). The same bits in
/// every run.
void sample_tokens(const at::Tensor& logits, const SamplingFilter& filter, const at::Tensor& keys,
                   const at::Tensor& positions, at::Tensor& chosen);

/// The same on the host; copies the logits there.
decltype(sample_tokens) sample_tokens_reference;

/// True if sample_tokens runs on the device of these logits without the host.
bool samples_on_device(const at::Tensor& logits);

}  // namespace lora_train::kernels
