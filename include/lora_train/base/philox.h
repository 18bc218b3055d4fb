// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
// No state: a value is a pure function of (key, counter), so that a run resumed, recomputed or split over ranks
// draws the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lora_train {

struct PhiloxKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
};

using PhiloxCounter = std::array<std::uint32_t, 4>;

/// constexpr, so that nvcc compiles it for GPUs too.
constexpr PhiloxCounter philox4x32(PhiloxCounter c, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ key.k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ key.k1, static_cast<std::uint32_t>(p0)};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return c;
}

/// The purpose of random numbers; part of every key, so that two uses never share a stream.
enum class RandomPurpose : std::uint32_t {
  kLoraInit = 1,
  kLoraDropout = 2,
  kDataOrder = 3,
  kModelInit = 4,
  kSplit = 5,
  kSampling = 6
};

/// Key of a stream: seed, purpose, a name (a PEFT parameter or Hugging Face tensor name; may be empty) and a step.
PhiloxKey philox_key(std::uint64_t seed, RandomPurpose purpose, std::string_view name, std::uint64_t step = 0);

/// Uniform in [-1, 1): a signed 24-bit integer times 2^-23, exact on every machine and compiler.
inline float philox_symmetric(std::uint32_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits >> 8) - (1 << 23)) * (1.0F / 8388608.0F);
}

}  // namespace lora_train
