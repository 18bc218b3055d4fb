// What commands share that let a model answer: the sampling flags (or generation_config.json), how long answers may be, and the
// settings that decide them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "command_line.h"
#include "lora_train/config/sampling.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/teach/generation_file.h"
#include "open_model.h"

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

/// How many tokens each answer may have: max_new_tokens, or what the context leaves; warns where that is less. Throws DataError for a
/// prompt that leaves none.
std::vector<std::int64_t> answer_lengths(const std::vector<data::Prompt>& prompts, std::int64_t max_new_tokens,
                                         std::int64_t context);

/// What the model decides of the answers; "model" comes first. `adapter` as it was given.
teach::GenerationSettings model_settings(const ModelSection& section, const std::string& adapter,
                                         const ModelFolders& folders, bool is_raw);

}  // namespace lora_train::cli
