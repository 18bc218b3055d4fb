// Decides when a request is repeated.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string_view>

namespace lora_train::hub {

/// The longest wait for a server (seconds).
constexpr double kLongestRetryAfterS = 120;

/// True for 408, 429 and 5xx, except 501 and 505.
bool is_transient(int status);

/// Seconds before retry `number` (from 0), for `random` in [0, 1): between half of and all of first * 2^number, at most
/// 30.
double retry_delay(int number, double first_s, double random);

/// Seconds that a Retry-After header asks for, as a number or as an HTTP date; nothing for any other text.
std::optional<double> parse_retry_after(std::string_view text, std::time_t now);

/// The first byte of a Content-Range ("bytes 0-99/1234"); nothing for any other text.
std::optional<std::uint64_t> content_range_begin(std::string_view text);

}  // namespace lora_train::hub
