// Content hashes (xxHash). Not cryptographic: for keys of streams, caches and fingerprints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lora_train {

/// XXH3 64-bit of the bytes, with an optional seed.
std::uint64_t hash64(std::string_view bytes, std::uint64_t seed = 0);

/// XXH3 128-bit as 32 lower-case hexadecimal digits.
std::string hash128_hex(std::string_view bytes);

}  // namespace lora_train
