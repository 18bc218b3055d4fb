// Content hashes (xxHash). Not cryptographic: for keys of streams, caches and fingerprints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lora_train {

/// XXH3 64-bit of the bytes, with an optional seed.
std::uint64_t hash64(std::string_view bytes, std::uint64_t seed = 0);

/// XXH3 128-bit as 32 lower-case hexadecimal digits.
std::string hash128_hex(std::string_view bytes);

/// The same hash, piece by piece: hex() of the pieces is hash128_hex of the whole.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(std::string_view bytes);
  /// Hash of everything so far; more may follow.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lora_train
