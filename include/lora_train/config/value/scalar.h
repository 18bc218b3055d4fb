// Parses scalars. One rule for YAML, JSON and --set, so that 2e-4, 2.0e-4 and "0.0002" are the same number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lora_train {

/// true, on, yes / false, off, no in any case.
std::optional<bool> parse_bool(const std::string& text);

/// A finite decimal number with optional exponent, without '_' between digits, and with nothing before or after it.
std::optional<double> parse_number(const std::string& text);

/// An integer, also as "1e3" or "200.0".
std::optional<std::int64_t> parse_integer(const std::string& text);

/// Seconds: "90", "90s", "10m", "2h30m", "1d".
std::optional<double> parse_duration(const std::string& text);

/// "10m", "2h30m", "45s"; parse_duration reads it back.
std::string duration_text(double seconds);

}  // namespace lora_train
