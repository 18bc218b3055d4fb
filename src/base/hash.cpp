#include "lora_train/base/hash.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lora_train {

std::uint64_t hash64(std::string_view bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

namespace {

std::string hex_of(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

std::string hash128_hex(std::string_view bytes) { return hex_of(XXH3_128bits(bytes.data(), bytes.size())); }

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::string_view bytes) { XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size()); }

std::string Hasher::hex() const { return hex_of(XXH3_128bits_digest(&state_->xxh3)); }

}  // namespace lora_train
