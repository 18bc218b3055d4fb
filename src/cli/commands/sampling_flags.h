// Sampling flags of `generate`, and generation_config.json if --generation-config is given.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "command_line.h"
#include "lora_train/config/sampling.h"

namespace lora_train::cli {

/// The largest --max-new-tokens.
inline constexpr std::int64_t kMaxNewTokens = 2147483647;

class SamplingFlags {
 public:
  /// Parsing refuses flags out of their range (config/sampling.h).
  explicit SamplingFlags(CommandParser& parser);
  SamplingFlags(const SamplingFlags&) = delete;
  SamplingFlags& operator=(const SamplingFlags&) = delete;

  /// A flag that was given wins, then with --generation-config the model's file, then greedy. Throws ConfigError for a
  /// flag that means nothing without a temperature, and, with --generation-config, where the file is missing or asks for
  /// what is not supported (penalties, beams); FormatError for a malformed one and for values out of range.
  SamplingOptions options(const CommandParser& parser, const std::filesystem::path& model_folder) const;

 private:
  std::optional<double> temperature_, top_p_, min_p_;
  std::optional<std::int64_t> top_k_;
  std::uint64_t seed_ = 42;
  bool use_generation_config_ = false;
};

}  // namespace lora_train::cli
